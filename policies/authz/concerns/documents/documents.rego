# METADATA
# title: Documents
# description: |
#   The subject is entitled to the corpus or the document that it reads (tool registry document, RAG). A search of anything
#   else is denied, since entitlements name only corpora and documents.
# schemas:
#   - input: schema.request
package authz.concerns.documents

import data.authz.lib.entitlement
import data.authz.lib.manifest
import data.authz.lib.reason
import rego.v2

# METADATA
# title: Not entitled
# description: The subject is not entitled to this corpus or document.
# custom:
#   code: documents.not_entitled
#   remedy: Ask for an entitlement, in the claim `entitlements` or the directory. A search names a corpus or a document.
deny contains reason.new(rego.metadata.rule(), {"type": input.resource.type, "id": input.resource.id}) if {
	entitlement.needed
	not _entitled
}

# METADATA
# title: Snapshot pinned
# description: A search records which snapshot of the corpus it read, so that its evidence can be found again.
# custom:
#   code: documents.snapshot_pinned
obligations contains {"id": "pin_retrieval_snapshot", "on": "ALLOW", "parameters": {}} if {
	manifest.entry.pattern == "search"
}

_entitled if entitlement.covers(input.subject.properties.entitlements)

_entitled if entitlement.covers(data.directory.entitlements[input.subject.id])
