# METADATA
# title: Access to OPA
# description: |
#   Restricts a sidecar: health for every client, decisions for clients with the token, and nothing else. The token is in
#   OPA's environment, or in a file: `--set-file=pdp.token=FILE`. Without a token there are no decisions. Two query
#   parameters are allowed; with `provenance`, OPA returns its version.
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
	input.identity in (_tokens - {""})
}

_tokens contains opa.runtime().env.PDP_OPA_TOKEN

_tokens contains trim_space(opa.runtime().config.pdp.token)
