"""Read YAML and JSON files as plain JSON values, with the line and column of each value in the file.

parse: `read_document`, which reads every manifest, governance file, session, data file and scenario within fixed limits
arguments: `checked`, which compares the arguments of calls with their annotations, and the base class `Closable`
document: a parsed file with the location of each value, and faults that show a line of the file
validation: faults of pydantic models and findings of rules, with locations; and the valid part of a faulty record
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
