"""YAML and JSON files as plain JSON values that know where in the file each part stands.

parse: `read_document`, the one way in for manifests, governance files, sessions, data files and scenarios; bounded
arguments: what an application passes to a constructor, compared with its annotations; the end of what it opened
document: a value with its places; faults that show their line
validation: what rules and models find wrong in a file, as faults with places; what is left of a faulty record
"""

from pdp.documents.document import Document, Part, shown_name, written_value
from pdp.documents.parse import MAX_FILE_BYTES, decode, read_bytes, read_document
from pdp.documents.validation import FieldError, faults_of, nearest, read_record

__all__ = [
    "MAX_FILE_BYTES",
    "Document",
    "FieldError",
    "Part",
    "decode",
    "faults_of",
    "nearest",
    "read_bytes",
    "read_document",
    "read_record",
    "shown_name",
    "written_value",
]
