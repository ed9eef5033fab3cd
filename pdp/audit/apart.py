"""What of a stream lies in another folder: its key, and its head.

Whoever takes, restores or rewrites the folder of a stream would otherwise have both with it.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pdp.audit.chain import GENESIS, KEY_BYTES
from pdp.errors import AuditError
from pdp.json import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    StreamKey = bytes | Path | Callable[[], bytes]

_HEAD_BYTES: Final = 160


def key_bytes(key: StreamKey, stream: Path) -> bytes:
    """Return the key itself.

    Args:
        key: the key, a file that holds it (a line break at its end does not count), or what returns it.
        stream: the file that it is for.

    Raises:
        AuditError: it is shorter than 32 bytes, or its file cannot be read or lies in the folder of the stream.
    """
    if isinstance(key, Path):
        _check_apart("audit key file", key, stream)
        try:
            value = key.read_bytes().rstrip(b"\r\n")
        except OSError as error:
            raise AuditError(f"audit key file {key} cannot be read: {error.strerror}") from error
    else:
        value = key() if callable(key) else key
    if not isinstance(value, bytes) or len(value) < KEY_BYTES:
        raise AuditError(
            f"the key of audit file {stream} has less than {KEY_BYTES} bytes",
            hint="make one with `openssl rand -hex 32`",
        )
    return value


class Head:
    """Number and hash of a stream's last event, in a file of its own, so that a stream that was cut or replaced shows.

    Who writes the stream writes it as well, under the same lock, and after the event: a crash leaves it behind.

    Args:
        path: the file.
        stream: the file whose head it is.
        make: make the file where it is not there.

    Raises:
        AuditError: it lies in the folder of the stream or below, or cannot be opened.
    """

    def __init__(self, path: Path, stream: Path, *, make: bool = False) -> None:
        _check_apart("head", path, stream)
        self._path = path
        self._text, self._last = b"", (-1, GENESIS)
        with self._opened(os.O_WRONLY | os.O_CREAT if make else os.O_RDONLY):
            pass

    def last(self) -> tuple[int, str]:
        """Return `seq` and `hash` of the event that it names; -1, and the first `prev_hash`, where it is empty."""
        with self._opened(os.O_RDONLY) as file:
            text = os.read(file, _HEAD_BYTES) or _head_text(-1, GENESIS)
            if text != self._text:
                value = parse_json(text)
                self._text, self._last = text, (value["seq"] + 0, value["hash"] + "")
            return self._last

    def write(self, seq: int, last_hash: str, *, fsync: bool) -> None:
        """Name the stream's last event."""
        with self._opened(os.O_WRONLY) as file:
            text = _head_text(seq, last_hash)
            os.write(file, text)
            if fsync:
                os.fsync(file)
            self._text, self._last = text, (seq, last_hash)

    @contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        try:
            file = os.open(self._path, flags | os.O_CLOEXEC, 0o600)
            try:
                yield file
            finally:
                os.close(file)
        except OSError as error:
            raise AuditError(f"head {self._path}: {error.strerror}", hint="check folder and permissions") from error
        except (ValueError, KeyError, TypeError) as error:
            raise AuditError(f"head {self._path} was changed: it does not name an event", hint="restore it") from error


def _head_text(seq: int, last_hash: str) -> bytes:
    # Always of one length, as it is written in place; JSON does not mind blanks.
    return f'{{"seq":{seq},"hash":"{last_hash}"}}'.ljust(_HEAD_BYTES - 1).encode() + b"\n"


def _check_apart(name: str, path: Path, stream: Path) -> None:
    if path.resolve().is_relative_to(stream.resolve().parent):
        raise AuditError(f"{name} {path} lies in the folder of its stream, or below", hint="use another folder")
