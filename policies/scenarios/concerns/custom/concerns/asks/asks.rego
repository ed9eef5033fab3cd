# METADATA
# title: Asks
# description: |
#   A user's concern of one part alone, which says whatever the settings say, well-formed or not: the suite
#   custom.scenarios.yaml shows what the decision makes of it.
package custom.concerns.asks

# METADATA
# title: Said
# description: What the settings say.
# custom:
#   code: asks.said
step_up contains item if some item in data.settings.asks[input.context.says]
