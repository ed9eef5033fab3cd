package authz.concerns.known

allow contains {"code": "known.action", "message": "A known action.", "details": {}} if {
	input.action.name in data.settings.known
}

deny contains {"code": "known.unknown", "message": "An unknown action.", "details": {"action": input.action.name}} if {
	not input.action.name in data.settings.known
}
