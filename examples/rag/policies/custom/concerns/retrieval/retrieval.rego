# METADATA
# title: Retrieval
# description: |
#   Adds rules for retrievals to the baseline. The manifest's entry states no pattern, so the baseline does not treat it as
#   a search. This concern belongs to the example and can grant nothing.
package custom.concerns.retrieval

import data.authz.lib.reason
import rego.v2

# METADATA
# title: Nothing asked
# description: The query is empty, so the retrieval would list every document.
# custom:
#   code: retrieval.nothing_asked
deny contains reason.new(rego.metadata.rule(), {}) if {
	input.action.name == "retrieve_documents"
	not _asks
}

# METADATA
# title: Snapshot pinned
# description: A retrieval records which snapshot of the corpus it read, so that its evidence can be found again.
# custom:
#   code: retrieval.snapshot_pinned
obligations contains {"id": "pin_retrieval_snapshot", "on": "ALLOW", "parameters": {}} if {
	input.action.name == "retrieve_documents"
}

# This is a separate rule, so that a missing query counts as empty.
_asks if {
	is_string(input.context.arguments.query)
	input.context.arguments.query != ""
}
