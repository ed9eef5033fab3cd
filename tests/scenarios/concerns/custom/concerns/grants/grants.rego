# METADATA
# title: Grants
# description: |
#   A user's concern that returns the request's `grants` unchanged, well-formed or not. The suite custom.scenarios.yaml
#   shows the decisions.
package custom.concerns.grants

# METADATA
# title: Said
# description: The request contains this item.
# custom:
#   code: grants.said
allow contains item if some item in input.context.grants
