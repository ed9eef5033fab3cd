# METADATA
# title: The resource
# description: |
#   What request and directory (`data.directory`) know of the resource. A data author writes the directory, so whatever
#   stands in it may be of a wrong type: that is `unreadable`, and never a marking less.
# schemas:
#   - input: schema.request
package authz.lib.resource

import data.authz.lib.manifest
import data.authz.lib.shape
import rego.v2

# The markings that request and directory state, together; a document has its corpus's too. Where neither states any
# (absent, which is not empty) they are unknown, and count as all that the tool may touch.
markings contains marking if some marking in input.resource.properties.markings

markings contains marking if {
	some record in _records
	some marking in record.markings
}

markings contains marking if {
	not _stated
	some marking in manifest.entry.markings
}

# The directory's record of a document, of whatever type; undefined for other resources and unknown ones.
document := data.directory.documents[input.resource.id] if input.resource.type == "document"

# The resource is a corpus or a document, and what the directory has of it is not of the right types, or names a corpus
# that the directory does not have: nobody knows that corpus's markings.
unreadable if {
	_kept_in_directory
	not _readable
}

_kept_in_directory if input.resource.type == "corpus"

_kept_in_directory if input.resource.type == "document"

_stated if input.resource.properties.markings

_stated if {
	some record in _records
	record.markings
}

_records contains data.directory.corpora[input.resource.id] if input.resource.type == "corpus"

_records contains document

_records contains data.directory.corpora[document.corpus]

_readable if {
	is_object(_directory)
	is_object(object.get(_directory, "corpora", {}))
	is_object(object.get(_directory, "documents", {}))
	every record in _records {
		shape.strings(record, "markings")
		is_boolean(object.get(record, "restricted", false))
		not _dangling(record)
	}
}

# Whatever is no text, is the name of no corpus.
_dangling(record) if {
	corpus := record.corpus
	not is_object(data.directory.corpora[corpus])
}

default _directory := {}

_directory := data.directory
