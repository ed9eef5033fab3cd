# METADATA
# title: Entitlements
# description: |
#   Decides who may read which corpus and document (tool registry document, RAG). The concerns `documents` and `delegation`
#   use it.
# schemas:
#   - input: schema.request
package authz.lib.entitlement

import data.authz.lib.manifest
import data.authz.lib.resource
import data.authz.lib.shape

# The call reads a corpus or a document, or it is a search of any kind.
needed if input.resource.type == "corpus"

needed if input.resource.type == "document"

needed if manifest.entry.pattern == "search"

# `entitlements` (`{"corpora": [...], "documents": [...]}`) name the resource. An entitlement to a corpus covers its
# documents, unless the directory marks a document as restricted. Any value except false marks it.
covers(entitlements) if {
	input.resource.type == "corpus"
	_named(entitlements, "corpora", input.resource.id)
}

covers(entitlements) if {
	input.resource.type == "document"
	_named(entitlements, "documents", input.resource.id)
}

covers(entitlements) if {
	is_object(resource.document)
	object.get(resource.document, "restricted", false) == false
	_named(entitlements, "corpora", resource.document.corpus)
}

_named(entitlements, kind, id) if {
	shape.strings(entitlements, kind)
	id in entitlements[kind]
}
