# METADATA
# title: Obliges
# description: |
#   A user's concern of one part alone, which says whatever the settings say, well-formed or not: the suite
#   custom.scenarios.yaml shows what the decision makes of it.
package custom.concerns.obliges

# METADATA
# title: Said
# description: What the settings say.
# custom:
#   code: obliges.said
obligations contains item if some item in data.settings.obliges[input.context.says]
