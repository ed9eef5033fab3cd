"""The stream of events in a file, which several processes append to."""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from pdp.audit.chain import GENESIS, KEY_BYTES, AuditLog, checked_event
from pdp.errors import AuditError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TAIL_BYTES: Final = 1024 * 1024


class FileAudit(AuditLog):
    """A stream in a JSON Lines file, which several processes may append to. A forked process opens it again.

    The key for the digests lies beside it in `<file>.key`, readable by its owner only; it is made with the file.

    Args:
        path: the file; it is made when it is not there, and continued when it is.
        fsync: wait until each event is on the disk, not only with the operating system.

    Raises:
        AuditError: the file or its key cannot be opened, or its last line is not an event.
    """

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self.path = path
        self._process = os.getpid()
        self._fsync = fsync
        self._size = 0
        try:
            super().__init__(_stream_key(path))
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise AuditError(
                f"audit file {path} cannot be opened: {error.strerror}", hint="check folder and permissions"
            ) from error
        with self._exclusive():
            pass

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if os.getpid() != self._process:
            # Its lock may be held by a thread that is not there, and file locks are shared with the parent.
            raise AuditError(f"audit file {self.path} was opened before this process was forked", hint="open it again")
        # The thread lock first: a file lock does not keep threads of one process from each other.
        with self._lock:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX)
                size = os.fstat(self._file).st_size
                if size < self._size:
                    raise AuditError(
                        f"audit file {self.path} has lost events: it is shorter than this process has seen it",
                        hint="keep it as evidence and begin a new one",
                    )
                if size > self._size:
                    self._continue()
            except OSError as error:
                raise AuditError(f"audit file {self.path} cannot be used: {error.strerror}") from error
            except ValueError as error:
                raise AuditError(f"audit file {self.path} is closed") from error
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _continue(self) -> None:
        """Take up the chain where the file ends."""
        size = os.fstat(self._file).st_size
        self._size = size
        if size == 0:
            self._seq, self._prev = 0, GENESIS
            return
        start = max(0, size - _TAIL_BYTES)
        tail = os.pread(self._file, size - start, start)
        try:
            last = checked_event(tail[:-1].rsplit(b"\n", 1)[-1])
            whole = tail.endswith(b"\n")
        except AuditError:
            whole = False
        if not whole:
            raise AuditError(
                f"audit file {self.path} cannot be continued: its last line is not a whole event",
                hint="keep the file as evidence and begin a new one",
            )
        self._seq, self._prev = last["seq"] + 1, last["hash"]

    def _write(self, line: bytes) -> None:
        data = line + b"\n"
        if len(data) > _TAIL_BYTES:
            raise AuditError(f"audit event of {len(data)} bytes is too large to be continued after")
        try:
            written = os.write(self._file, data)
            if written != len(data):
                # A part of a line would spoil the chain for all that follow.
                os.ftruncate(self._file, self._size)
                raise OSError(28, "no space left")  # noqa: TRY301 - a short write means just that
            if self._fsync:
                os.fsync(self._file)
        except OSError as error:
            raise AuditError(f"audit file {self.path} cannot be written: {error.strerror}") from error
        self._size += len(data)

    def close(self) -> None:
        """Close the file. Appending afterwards is an AuditError."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _stream_key(path: Path) -> bytes:
    keyfile = path.with_name(path.name + ".key")
    draft = path.with_name(f"{path.name}.key.{os.getpid()}.{threading.get_ident()}")
    # Written aside and linked, so that nobody ever reads half a key; the first one there wins.
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(os.urandom(KEY_BYTES))
    with suppress(FileExistsError):
        os.link(draft, keyfile)
    draft.unlink()
    key = keyfile.read_bytes()
    if len(key) != KEY_BYTES:
        raise AuditError(f"audit key {keyfile} is not {KEY_BYTES} bytes long", hint="restore it from a backup")
    return key
