# METADATA
# title: Disclosure
# description: |
#   Questions about a patient are not sent to the web: while the application shows a patient, a step with a web search is
#   denied, unless that patient has agreed. `session.facts.patient` comes from the application. The steps are read after
#   the corrections of the contract.
package custom.concerns.disclosure

import data.authz.lib.reason
import rego.v2

# METADATA
# title: Patient in view
# description: The step would search the web while a patient is shown who has not agreed to it.
# custom:
#   code: disclosure.patient_in_view
deny contains reason.new(rego.metadata.rule(), {}) if {
	input.context.arguments.web_search == true
	not _agreed
}

_agreed if _patient == null

_agreed if _patient.agreed == true

_patient := object.get(input.context, "patient", null)
