"""The head of a stream in a second place: which event is its last, so that a stream that was cut or replaced shows."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pdp.audit.key import is_beside
from pdp.errors import AuditError
from pdp.json import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BYTES: Final = 160


class Head:
    """Number and hash of a stream's last event, in a file in another folder; nothing, before its first event.

    Who writes the stream writes it as well, under the same lock, and after the event: a crash leaves it behind.

    Args:
        path: the file; it is made where it is not there.
        stream: the file whose head it is.
        write: whether it is written, too.

    Raises:
        AuditError: it lies in the folder of the stream or below, or cannot be opened.
    """

    def __init__(self, path: Path, stream: Path, *, write: bool = True) -> None:
        self._path = path
        if is_beside(path, stream):
            raise AuditError(f"head {path} lies in the folder of its stream, or below", hint="use another folder")
        with self._usable():
            self._file = os.open(path, os.O_CLOEXEC | (os.O_RDWR | os.O_CREAT if write else os.O_RDONLY), 0o600)

    def names(self, seq: int, last_hash: str) -> bool:
        """Return whether it names exactly this event."""
        with self._usable():
            return os.pread(self._file, _BYTES, 0) == _line(seq, last_hash)

    def last(self) -> tuple[int, str] | None:
        """Return `seq` and `hash` of the event that it names; None where it is empty."""
        with self._usable():
            text = os.pread(self._file, _BYTES, 0)
            if not text:
                return None
            value = parse_json(text)
            return value["seq"] + 0, value["hash"] + ""

    def write(self, seq: int, last_hash: str, *, fsync: bool) -> None:
        """Name the stream's last event."""
        with self._usable():
            if not os.path.samestat(self._path.stat(), os.fstat(self._file)):
                raise ValueError("replaced by another file")
            os.pwrite(self._file, _line(seq, last_hash), 0)
            if fsync:
                os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise AuditError(f"head {self._path}: {error.strerror}", hint="check folder and permissions") from error
        except (ValueError, KeyError, TypeError) as error:
            raise AuditError(f"head {self._path} was changed: it does not name an event", hint="restore it") from error


def _line(seq: int, last_hash: str) -> bytes:
    # Always of one length, as it is written in place; JSON does not mind blanks.
    return f'{{"seq":{seq},"hash":"{last_hash}"}}'.ljust(_BYTES - 1).encode() + b"\n"
