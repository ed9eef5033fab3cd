package custom.concerns.authority_test

import data.custom.concerns.authority

_settings := {"underwriting": {"largest_premium": {"EUR": 100}}}

_exceeded(premium) := {{
	"code": "authority.exceeded",
	"message": "The premium is above the amount that the desk may bind.",
	"details": {"premium": premium},
}}

_cases := {
	"below": [{"amount": 99, "currency": "EUR"}, true],
	"equal": [{"amount": 100, "currency": "EUR"}, true],
	"above": [{"amount": 100.5, "currency": "EUR"}, false],
	"another currency": [{"amount": 1, "currency": "USD"}, false],
	"a text": [{"amount": "1", "currency": "EUR"}, false],
	"no amount": [{"currency": "EUR"}, false],
	"no object": [7, false],
}

_asked(premium) := [
	{"action": {"name": "issue_policy"}, "context": {"arguments": {"premium": premium}}},
	{"action": {"name": "stage_policy"}, "context": {"arguments": {"action": {"payload": {"premium": premium}}}}},
]

test_authority[name] if {
	some name, [premium, within] in _cases
	every asked in _asked(premium) {
		found := authority.deny with input as asked with data.settings as _settings
		found == {reason | some reason in _exceeded(premium); not within}
	}
}

test_without_settings if {
	premium := {"amount": 1, "currency": "EUR"}
	every asked in _asked(premium) {
		found := authority.deny with input as asked with data.settings as {}
		found == _exceeded(premium)
	}
}

test_other_tools if {
	asked := {"action": {"name": "convert_premium"}, "context": {"arguments": {"premium": {"amount": 1000}}}}
	found := authority.deny with input as asked with data.settings as _settings
	found == set()
}
