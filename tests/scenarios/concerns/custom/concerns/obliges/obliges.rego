# METADATA
# title: Obliges
# description: |
#   A user's concern that returns the request's `obliges` unchanged, well-formed or not. The suite custom.scenarios.yaml
#   shows the decisions.
package custom.concerns.obliges

# METADATA
# title: Said
# description: The request contains this item.
# custom:
#   code: obliges.said
#   unreached: The obligation in the request has another id.
obligations contains item if some item in input.context.obliges
