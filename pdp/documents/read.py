"""Read a YAML or JSON file, strictly: bounded, UTF-8, with the fault and its place for whatever is wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pdp.documents.document import Document, Part
from pdp.documents.parse import Parser, UnreadableError, is_json
from pdp.errors import FileFaultsError, UsageError

if TYPE_CHECKING:
    from pdp.errors import Fault

MAX_FILE_BYTES: Final = 32 * 1024 * 1024
"""Largest file that is read: ten thousand richly described tools have about 12 MiB."""


def read_document(path: Path | str, *, text: bytes | str | None = None, faults: list[Fault] | None = None) -> Document:
    """Read a file into plain JSON values that know their places.

    A name that ends in `.json` must hold JSON; `.yaml` and `.yml` hold YAML; for any other name a text that starts
    with `{` or `[` and is JSON is read as such, else as YAML. Of YAML only scalars that JSON has too get a type (null,
    booleans, decimal numbers): dates, `no`, `1:30` or `0x1F` are strings. Tags, merge keys and several documents in one
    file are faults.

    Args:
        path: the file, or `-` for standard input.
        text: the content, when it has been read already; then `path` is only the name to show and to tell the format.
        faults: where to collect faults after which reading went on, so that they can be shown beside others. Without
            it they are raised.

    Raises:
        UsageError: the file is missing, a folder, not readable, or larger than 32 MiB.
        FileFaultsError: the content is faulty; every fault that could be found.
    """
    name = "<stdin>" if str(path) == "-" else str(path)
    raw = read_bytes(path) if text is None else text.encode() if isinstance(text, str) else text
    content = _decode(_bounded(raw, name), name)
    expects_json = name.endswith(".json") or (
        not name.endswith((".yaml", ".yml")) and content.lstrip()[:1] in ("{", "[") and is_json(content)
    )
    parser = Parser(Document(name, content, Part(None, 1, 1)), content, json=expects_json)
    try:
        root = parser.parse()
    except UnreadableError:
        raise FileFaultsError((faults or []) + parser.faults) from None
    if faults is not None:
        faults += parser.faults
    elif parser.faults:
        raise FileFaultsError(parser.faults)
    return Document(name, content, root)


def read_bytes(path: Path | str) -> bytes:
    """Return the content of a file, or of standard input for `-`.

    Raises:
        UsageError: the file is missing, a folder, not readable, or larger than 32 MiB.
    """
    name = "<stdin>" if str(path) == "-" else str(path)
    try:
        if str(path) == "-":
            return _bounded(sys.stdin.buffer.read(MAX_FILE_BYTES + 1), name)
        with Path(path).open("rb") as file:
            return _bounded(file.read(MAX_FILE_BYTES + 1), name)
    except FileNotFoundError:
        raise UsageError(f"{name}: no such file", hint="check the path") from None
    except IsADirectoryError:
        raise UsageError(f"{name}: is a folder, not a file", hint="name a file in it") from None
    except PermissionError:
        raise UsageError(f"{name}: no permission to read it", hint="check the file's owner and mode") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise UsageError(f"{name!r}: cannot be read: {reason or error}", hint="check the path") from None


def _bounded(content: bytes, name: str) -> bytes:
    if len(content) > MAX_FILE_BYTES:
        raise UsageError(
            f"{name}: larger than {MAX_FILE_BYTES // 1024 // 1024} MiB",
            hint="check that this is the right file, or split it",
        )
    return content


def _decode(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8-sig", "replace")
        fault = Document(name, before, Part(None, 1, 1)).fault_at(
            before.count("\n") + 1,
            len(before) - before.rfind("\n"),
            f"not text: byte 0x{raw[error.start]:02x} is not UTF-8",
            "save the file as UTF-8, and check that it is the right one",
        )
        raise FileFaultsError([fault]) from None
