# METADATA
# title: Forbids
# description: |
#   A user's concern of one part alone, which says whatever the settings say, well-formed or not: the suite
#   custom.scenarios.yaml shows what the decision makes of it.
package custom.concerns.forbids

# METADATA
# title: Said
# description: What the settings say.
# custom:
#   code: forbids.said
deny contains item if some item in data.settings.forbids[input.context.says]
