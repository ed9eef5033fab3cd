# METADATA
# title: Night
# description: Nothing is paid at night.
package custom.concerns.night

# METADATA
# title: Closed
# description: Not at night.
# custom:
#   code: night.closed
deny contains {"code": "night.closed", "message": "Not at night.", "details": {}} if {
	input.action.name in _names
}

_names := {"pay", _other}

_other := "transfer"
