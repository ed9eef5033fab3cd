"""Files with the oldest events of an audit stream in a database. An event `audit.archived` names each file."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import Any

from pdp.audit.file import sync_folder
from pdp.audit.verify import ArchivedPart, part_name
from pdp.errors import AuditError, UsageError


def write_part(folder: Path, events: Iterable[tuple[bytes, Mapping[str, Any]]]) -> ArchivedPart | None:
    """Write events, each with its line, to a new file in a folder, and read it back. Return None without events."""
    first = last = None
    content = hashlib.sha256()
    try:
        with NamedTemporaryFile(dir=folder, prefix=".audit.") as file:
            # Equal events give an equal file, because the file's header has neither a name nor a time.
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                for line, last in events:
                    first = first or last
                    content.update(line + b"\n")
                    packed.write(line + b"\n")
            if first is None or last is None:
                return None
            file.flush()
            os.fsync(file)
            with gzip.open(file.name) as written:
                if hashlib.file_digest(written, "sha256").digest() != content.digest():
                    raise AuditError(f"folder {folder}: the content of a new file is wrong", hint="check the disk")
            name = part_name(first["seq"], last["seq"])
            part = ArchivedPart(first["seq"], last["seq"], last["hash"], name, _digest_of(Path(file.name)))
            with suppress(FileExistsError):
                (folder / name).hardlink_to(file.name)
        sync_folder(folder)
    except OSError as error:
        raise AuditError(f"folder {folder}: {error.strerror}", hint="check the folder and the disk") from error
    check_part(folder, part)
    return part


def check_part(folder: Path, part: ArchivedPart) -> None:
    """Raise `AuditError` unless the folder has the file of a part, unchanged."""
    path, why = folder / part.file, "is another file"
    try:
        if _digest_of(path) == part.digest:
            return
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    hint = "name the folder with the file that was written, or restore it"
    raise AuditError(f"{path} {why}; events {part.first} to {part.last} stay in the database", hint=hint)


def check_folder(folder: Path) -> None:
    """Raise `UsageError` if files cannot be written to a folder."""
    try:
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UsageError(
            f"folder {folder}: {error.strerror}",
            hint="create the folder of audit_archive or --to, and make it writable",
        ) from None


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
