"""Reading the files that commands are given, each fault with its place."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import ValidationError

from pdp.canonical import MAX_BYTES
from pdp.documents import faults_of, read_document
from pdp.errors import FileFaultsError, UsageError
from pdp.session import Session


def read_session(path: Path) -> Session:
    """Read a session file.

    Raises:
        UsageError: the file is missing or faulty.
    """
    document = read_document(path)
    try:
        return Session.model_validate(document.value)
    except ValidationError as error:
        raise FileFaultsError(faults_of(error, document, Session)) from None


def read_proposal(name: str) -> bytes:
    """Return the bytes of a proposal, from a file or, for `-`, from standard input. What they say is the PEP's matter.

    Raises:
        UsageError: the file is missing, a folder or not readable.
    """
    # One byte more than is admitted is enough to know that it is too large.
    if name == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        with Path(name).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{name}: cannot be read: {error.strerror}", hint="name a file with a proposal") from None
