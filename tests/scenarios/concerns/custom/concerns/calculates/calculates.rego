# METADATA
# title: Calculates
# description: |
#   A user's concern that calculates with values of the request. The suite calculating.scenarios.yaml states the results,
#   which are the same on both engines. An undefined result is left out.
package custom.concerns.calculates

import data.authz.lib.number
import data.authz.lib.reason
import data.authz.lib.text

# METADATA
# title: Calculated
# description: The results of every function of the libraries, for the values of the request.
# custom:
#   code: calculates.result
deny contains reason.new(rego.metadata.rule(), {name: result | some name; result := _results[name]}) if input.context.calculates

_values := input.context.calculates

_results["sum"] := number.sum(_values.list)

_results["product"] := number.product(_values.list)

_results["difference"] := number.difference(_values.list[0], _values.list[1])

_results["percentage"] := number.percentage(_values.list[0], _values.list[1])

_results["rounded"] := number.rounded(_values.list[0], _values.decimals)

_results["at_most"] if number.at_most(_values.list[0], _values.list[1])

_results["equal"] if number.equals(_values.list[0], _values.list[1])

_results["whole"] if number.whole(_values.list[0])

_results["small"] := text.lowercase(_values.text)

_results["capital"] := text.uppercase(_values.text)
