package custom.concerns.disclosure_test

import data.custom.concerns.disclosure

_denied := {{
	"code": "disclosure.patient_in_view",
	"message": "The step would search the web while a patient is shown who has not agreed to it.",
	"details": {},
}}

_cases := {
	"no patient": [{}, set()],
	"no patient, said so": [{"patient": null}, set()],
	"a patient": [{"patient": {"id": "pt-1"}}, _denied],
	"a patient who agreed": [{"patient": {"id": "pt-1", "agreed": true}}, set()],
	"a patient who did not": [{"patient": {"id": "pt-1", "agreed": false}}, _denied],
	"agreement in words": [{"patient": {"id": "pt-1", "agreed": "true"}}, _denied],
	"a patient by name alone": [{"patient": "pt-1"}, _denied],
}

test_web_search[name] if {
	some name, [context, expected] in _cases
	searching := object.union(context, {"arguments": {"web_search": true}})
	found := disclosure.deny with input as {"context": searching}
	found == expected
}

test_without_web_search[name] if {
	some name, [context, _] in _cases
	every arguments in [{}, {"web_search": false}, {"web_search": null}] {
		found := disclosure.deny with input as {"context": object.union(context, {"arguments": arguments})}
		found == set()
	}
}
