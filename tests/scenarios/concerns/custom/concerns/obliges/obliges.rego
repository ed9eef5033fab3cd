# METADATA
# title: Obliges
# description: |
#   A user's concern of one part alone, which says whatever the request tells it, well-formed or not: the suite
#   custom.scenarios.yaml shows what the decision makes of it.
package custom.concerns.obliges

# METADATA
# title: Said
# description: What the request says.
# custom:
#   code: obliges.said
#   unreached: It passes on what the request says, under that obligation's own id.
obligations contains item if some item in input.context.obliges
