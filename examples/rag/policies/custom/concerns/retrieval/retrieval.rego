# METADATA
# title: Retrieval
# description: |
#   What a retrieval has to do beyond the baseline. The manifest's entry states no pattern, so that the baseline does not
#   know it for a search. This concern is the example's own: it can grant nothing.
package custom.concerns.retrieval

import data.authz.lib.reason
import rego.v2

# METADATA
# title: Nothing asked
# description: The query is empty, so that the retrieval would list whatever there is.
# custom:
#   code: retrieval.nothing_asked
deny contains reason.new(rego.metadata.rule(), {}) if {
	input.action.name == "retrieve_documents"
	not _asks
}

# METADATA
# title: Snapshot pinned
# description: A retrieval records which state of the corpus it read, so that its evidence can be found again.
# custom:
#   code: retrieval.snapshot_pinned
obligations contains {"id": "pin_retrieval_snapshot", "on": "ALLOW", "parameters": {}} if {
	input.action.name == "retrieve_documents"
}

# A rule of its own, so that a query which is absent asks nothing.
_asks if {
	is_string(input.context.arguments.query)
	input.context.arguments.query != ""
}
