# METADATA
# title: Grants
# description: |
#   A user's concern of one part alone, which says whatever the settings say, well-formed or not: the suite
#   custom.scenarios.yaml shows what the decision makes of it.
package custom.concerns.grants

# METADATA
# title: Said
# description: What the settings say.
# custom:
#   code: grants.said
allow contains item if some item in data.settings.grants[input.context.says]
