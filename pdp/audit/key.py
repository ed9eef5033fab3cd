"""Where the key of a stream comes from: never from beside the stream, where whoever rewrites it would find it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pdp.audit.chain import KEY_BYTES
from pdp.errors import AuditError

if TYPE_CHECKING:
    from collections.abc import Callable

    StreamKey = bytes | Path | Callable[[], bytes]

KEY_VARIABLE: Final = "PDP_AUDIT_KEY"
"""The environment variable that holds the key of the streams that commands write and verify."""

_HINT: Final = "make one with `openssl rand -hex 32`"


def key_bytes(key: StreamKey, stream: Path) -> bytes:
    """Return the key itself.

    Args:
        key: the key, a file that holds it (a line break at its end does not count), or what returns it.
        stream: the file that it is for.

    Raises:
        AuditError: it is shorter than 32 bytes, or its file cannot be read or is not kept apart from the stream.
    """
    value = _key_of_file(key, stream) if isinstance(key, Path) else key() if callable(key) else key
    if not isinstance(value, bytes) or len(value) < KEY_BYTES:
        raise AuditError(f"the key of audit file {stream} has less than {KEY_BYTES} bytes", hint=_HINT)
    return value


def key_of_environment(file: Path | None = None) -> StreamKey | None:
    """Return the key for a command: the file that it names, else the variable `PDP_AUDIT_KEY`; None without both."""
    return file or os.environ.get(KEY_VARIABLE, "").strip().encode() or None


def is_beside(path: Path, stream: Path) -> bool:
    """Return whether a file lies in the folder of a stream, or below it: who takes or restores that takes both."""
    return path.resolve().is_relative_to(stream.resolve().parent)


def _key_of_file(path: Path, stream: Path) -> bytes:
    where = f"audit key file {path}"
    if is_beside(path, stream):
        raise AuditError(f"{where} lies in the folder of its stream, or below", hint="move it to another folder")
    try:
        with path.open("rb") as file:
            status, value = os.fstat(file.fileno()), file.read().rstrip(b"\r\n")
        owner = stream.stat().st_uid if stream.exists() else os.geteuid()
    except OSError as error:
        raise AuditError(f"{where} cannot be read: {error.strerror}", hint="check folder and permissions") from error
    forbidden = stat.S_IWGRP | stat.S_IRWXO | (stat.S_IWUSR if status.st_uid == owner else 0)
    if status.st_mode & forbidden:
        raise AuditError(
            f"{where} can be written by who owns the stream or by a group, or used by all", hint="run `chmod 400` on it"
        )
    return value
