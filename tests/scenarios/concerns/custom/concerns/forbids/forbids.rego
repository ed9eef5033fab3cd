# METADATA
# title: Forbids
# description: |
#   A user's concern that returns the request's `forbids` unchanged, well-formed or not. The suite custom.scenarios.yaml
#   shows the decisions.
package custom.concerns.forbids

# METADATA
# title: Said
# description: The request contains this item.
# custom:
#   code: forbids.said
deny contains item if some item in input.context.forbids
