# METADATA
# title: The resource
# description: |
#   Reads what the request and the directory (`data.directory`) state about the resource. People write the directory, so a
#   value may have a wrong type. Such a record is `unreadable`, and never removes a marking.
# schemas:
#   - input: schema.request
package authz.lib.resource

import data.authz.lib.manifest
import data.authz.lib.shape
import rego.v2

# The markings of the request and of the directory together; a document also has those of its corpus. Where neither states
# any (absent, which is not empty), the resource counts as having every marking that the tool may touch.
markings contains marking if some marking in input.resource.properties.markings

markings contains marking if {
	some record in _records
	some marking in record.markings
}

markings contains marking if {
	not _stated
	some marking in manifest.entry.markings
}

# The directory's record of a document, of any type; undefined for other resources and unknown documents.
document := data.directory.documents[input.resource.id] if input.resource.type == "document"

# The resource is a corpus or a document whose record is mistyped, or names a corpus that the directory does not have. Its
# markings are unknown.
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

# Only a string can name a corpus.
_dangling(record) if {
	corpus := record.corpus
	not is_object(data.directory.corpora[corpus])
}

default _directory := {}

_directory := data.directory
