# METADATA
# title: Who may ask OPA what
# description: |
#   Locks a sidecar down: health for anybody, decisions for whoever has the token, and nothing else for nobody. Without a
#   token in OPA's environment there are no decisions. Of the query parameters, two are admitted: with `provenance`, OPA
#   says which version it is.
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
