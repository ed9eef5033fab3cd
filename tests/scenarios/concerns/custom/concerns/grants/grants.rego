# METADATA
# title: Grants
# description: |
#   A user's concern of one part alone, which says whatever the request tells it, well-formed or not: the suite
#   custom.scenarios.yaml shows what the decision makes of it.
package custom.concerns.grants

# METADATA
# title: Said
# description: What the request says.
# custom:
#   code: grants.said
allow contains item if some item in input.context.grants
