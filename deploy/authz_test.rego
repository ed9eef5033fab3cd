package system.authz_test

import data.system.authz

_env(token) := {"env": {"PDP_OPA_TOKEN": token}}

_decide := {"method": "POST", "path": ["v1", "data", "authz", "decision"], "params": {}}

_cases := {
	"health": {"input": {"method": "GET", "path": ["health"]}, "runtime": _env("t"), "allow": true},
	"a decision with the token": {"input": object.union(_decide, {"identity": "t"}), "runtime": _env("t"), "allow": true},
	"the parameters of the enforcement point": {
		"input": object.union(_decide, {
			"identity": "t",
			"params": {"strict-builtin-errors": ["true"], "provenance": ["true"]},
		}),
		"runtime": _env("t"), "allow": true,
	},
	"another parameter": {
		"input": object.union(_decide, {"identity": "t", "params": {"explain": ["full"]}}),
		"runtime": _env("t"), "allow": false,
	},
	"a plan with the token": {
		"input": {"method": "POST", "path": ["v1", "data", "authz", "plan"], "params": {}, "identity": "t"},
		"runtime": _env("t"), "allow": true,
	},
	"with another": {"input": object.union(_decide, {"identity": "u"}), "runtime": _env("t"), "allow": false},
	"with none": {"input": _decide, "runtime": _env("t"), "allow": false},
	"an empty token is none": {
		"input": object.union(_decide, {"identity": ""}),
		"runtime": _env(""), "allow": false,
	},
	"a token in a file": {
		"input": object.union(_decide, {"identity": "t"}),
		"runtime": {"env": {}, "config": {"pdp": {"token": "t\n"}}}, "allow": true,
	},
	"another token than in the file": {
		"input": object.union(_decide, {"identity": "u"}),
		"runtime": {"env": {}, "config": {"pdp": {"token": "t"}}}, "allow": false,
	},
	"an empty file has no token": {
		"input": object.union(_decide, {"identity": ""}),
		"runtime": {"env": {}, "config": {"pdp": {"token": "\n"}}}, "allow": false,
	},
	"no token set": {"input": object.union(_decide, {"identity": ""}), "runtime": {"env": {}}, "allow": false},
	"writing a policy": {
		"input": {"method": "PUT", "path": ["v1", "policies", "x"], "identity": "t"},
		"runtime": _env("t"), "allow": false,
	},
	"writing data": {
		"input": {"method": "PUT", "path": ["v1", "data", "authz", "decision"], "identity": "t"},
		"runtime": _env("t"), "allow": false,
	},
	"reading data": {
		"input": {"method": "GET", "path": ["v1", "data"], "identity": "t"},
		"runtime": _env("t"), "allow": false,
	},
	"another document": {
		"input": {"method": "POST", "path": ["v1", "data", "config"], "identity": "t"},
		"runtime": _env("t"), "allow": false,
	},
	"an ad hoc query": {
		"input": {"method": "POST", "path": ["v1", "query"], "identity": "t"},
		"runtime": _env("t"), "allow": false,
	},
}

test_allow[name] if {
	some name, case in _cases
	authz.allow == case.allow with input as case.input with opa.runtime as case.runtime
}
