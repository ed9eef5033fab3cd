# METADATA
# title: Access to OPA
# description: |
#   Restricts a sidecar: health for every client, decisions for clients with the token, and nothing else. Without a token in
#   OPA's environment there are no decisions. Two query parameters are allowed; with `provenance`, OPA returns its version.
package system.authz

default allow := false

allow if {
	input.method == "GET"
	input.path == ["health"]
}

allow if {
	input.method == "POST"
	input.path in [["v1", "data", "authz", "decision"], ["v1", "data", "authz", "plan"]]
	object.keys(input.params) - {"provenance", "strict-builtin-errors"} == set()
	_token != ""
	input.identity == _token
}

_token := opa.runtime().env.PDP_OPA_TOKEN
