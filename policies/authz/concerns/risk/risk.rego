# METADATA
# title: Risk
# description: The policy knows the tool's risk tier. The concern `approvals` decides what a high tier needs.
# schemas:
#   - input: schema.request
package authz.concerns.risk

import data.authz.lib.manifest
import data.authz.lib.reason

# METADATA
# title: Risk acceptable
# description: The tool's risk tier is known.
# custom:
#   code: risk.acceptable
allow contains reason.new(rego.metadata.rule(), {"risk_tier": manifest.entry.risk_tier}) if {
	manifest.entry.risk_tier in {"low", "medium", "high"}
}
