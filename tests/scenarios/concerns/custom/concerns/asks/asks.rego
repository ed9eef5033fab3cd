# METADATA
# title: Asks
# description: |
#   A user's concern that returns the request's `asks` unchanged, well-formed or not. The suite custom.scenarios.yaml shows
#   the decisions.
package custom.concerns.asks

# METADATA
# title: Said
# description: The request contains this item.
# custom:
#   code: asks.said
step_up contains item if some item in input.context.asks
