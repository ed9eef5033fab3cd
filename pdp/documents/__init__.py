"""YAML and JSON files as plain JSON values that know where in the file each part stands.

`read_document` is the one way in: manifests, governance files, sessions, data files and scenarios all come through it.
`faults_of` turns what a pydantic model finds wrong in a document's value into faults with places.
"""

from pdp.documents.document import Document, Part, shown_name
from pdp.documents.read import MAX_FILE_BYTES, read_bytes, read_document
from pdp.documents.validation import FieldError, faults_of, known_keys, nearest

__all__ = [
    "MAX_FILE_BYTES",
    "Document",
    "FieldError",
    "Part",
    "faults_of",
    "known_keys",
    "nearest",
    "read_bytes",
    "read_document",
    "shown_name",
]
