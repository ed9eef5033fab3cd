# METADATA
# title: Forbids
# description: |
#   A user's concern of one part alone, which says whatever the request tells it, well-formed or not: the suite
#   custom.scenarios.yaml shows what the decision makes of it.
package custom.concerns.forbids

# METADATA
# title: Said
# description: What the request says.
# custom:
#   code: forbids.said
deny contains item if some item in input.context.forbids
