# METADATA
# title: Retrieval
# description: |
#   The manifest's entry states no pattern, so that the baseline does not know it for a search. This concern is the
#   example's own: it says so, and can grant nothing.
package custom.concerns.retrieval

# METADATA
# title: Snapshot pinned
# description: A retrieval records which state of the corpus it read, so that its evidence can be found again.
# custom:
#   code: retrieval.snapshot_pinned
obligations contains {"id": "pin_retrieval_snapshot", "on": "ALLOW", "parameters": {}} if {
	input.action.name == "retrieve_documents"
}
