# METADATA
# title: Disclosure
# description: |
#   What is asked about a patient stays in the house: no web search while the application has one in view, unless that
#   patient has agreed. `session.facts.patient` is the application's; whether a step searches the web is decided after the
#   contract's corrections.
package custom.concerns.disclosure

import data.authz.lib.reason
import rego.v2

# METADATA
# title: Patient in view
# description: The step would search the web with a patient in view who has not agreed to it.
# custom:
#   code: disclosure.patient_in_view
deny contains reason.new(rego.metadata.rule(), {}) if {
	input.context.arguments.web_search == true
	not _agreed
}

_agreed if _patient == null

_agreed if _patient.agreed == true

_patient := object.get(input.context, "patient", null)
