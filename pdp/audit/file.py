"""The stream of events in a file, which several processes append to, and which is rotated on request.

Whoever appends holds the file's lock, for a bounded time, and first makes sure that the file is the one it has seen:
the same file under the path, not shorter, its last line as it was, and what others have appended chained to it. A file
that takes its place has to go on exactly where it ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import time
from contextlib import suppress
from errno import ENOSPC
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pdp.audit.chain import AuditLog, chained_events
from pdp.audit.event import RECOVERED, ROTATED
from pdp.audit.head import Head
from pdp.audit.key import key_bytes
from pdp.clock import to_milliseconds
from pdp.errors import AuditError
from pdp.json import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pdp.audit.event import AuditEvent
    from pdp.audit.key import StreamKey

_log = logging.getLogger("pdp.audit")

PATIENCE: Final = 5.0
"""Seconds that an event waits for a stream that another thread or process holds."""

LINE_BYTES: Final = 64 * 1024
"""Bytes that a line has at most, its line break included, and that are read of what others have appended."""

_POLL: Final = 0.005
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
_START: Final = b'{"agent":'
_EVIDENCE: Final = "see `pdp audit verify`; move it away as evidence, and start again with a new one"


class FileAudit(AuditLog):
    """A stream in a JSON Lines file, which several processes may append to. A forked process opens it again.

    Args:
        path: the file; it is made when it is not there, and continued when it is.
        key: at least 32 bytes, what returns them, or a file elsewhere that holds them. Without one the chain is not
            keyed: whoever can write the file can write it anew.
        head: a file in another folder, which names the last event, so that a stream that was cut or replaced shows.
        fsync: wait until each event is on the disk, not only with the operating system.
        patience: seconds that an event waits for a stream that another thread or process holds.

    Raises:
        AuditError: file, key or head cannot be used, or another holds the file.
    """

    may_wait = True

    def __init__(
        self,
        path: Path,
        *,
        key: StreamKey | None = None,
        head: Path | None = None,
        fsync: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(None if key is None else key_bytes(key, path))
        self.path = path.absolute()
        self._name = str(self.path)
        self._process = os.getpid()
        self._fsync = fsync
        self._patience = patience
        self._file = -1
        self._size, self._last = 0, b""
        self._head = None if head is None else Head(head, path)
        try:
            self._adopt(os.open(self.path, _FLAGS | os.O_CREAT, 0o600))
            self._hold(time.monotonic() + patience)
            self._leave()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise AuditError(
                    f"audit file {path} cannot be opened: {error.strerror}", hint="check folder and permissions"
                ) from error
            raise

    def append(self, event: AuditEvent) -> None:
        """Chain and record one event; wait for the stream at most its patience. Raises as `AuditLog.append`."""
        self._append(event, time.monotonic() + self._patience)

    def offer(self, event: AuditEvent) -> Callable[[], None] | None:
        """As `AuditLog.offer`. The patience counts from here, however late what is returned is called."""
        if self._fsync or not self._hold(None):
            return partial(self._append, event, time.monotonic() + self._patience)
        try:
            self._record(event)
        finally:
            self._leave()
        return None

    def close(self) -> None:
        """Close the file. Appending afterwards is an AuditError, as is closing it while another thread waits for it."""
        if not self._lock.acquire(timeout=self._patience):
            raise self._fault("is in use by another thread, and is not closed")
        try:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
            if self._head is not None:
                self._head.close()
        finally:
            self._lock.release()

    def _append(self, event: AuditEvent, until: float) -> None:
        self._hold(until)
        try:
            self._record(event)
        finally:
            self._leave()

    def _hold(self, until: float | None) -> bool:
        """Hold the stream, and know its end; `until` when to wait, None: return False instead of waiting."""
        if os.getpid() != self._process:
            # Its lock may be held by a thread that is not there, and file locks are shared with the parent.
            raise AuditError(f"audit file {self.path} was opened before this process was forked", hint="open it again")
        # The thread lock first: a file lock does not keep threads of one process from each other.
        if not self._lock.acquire(timeout=0 if until is None else max(0.0, until - time.monotonic())):
            if until is None:
                return False
            raise self._fault(f"was held by another thread for {self._patience:g} s")
        held = False
        try:
            if self._file < 0:
                raise self._fault("is closed")
            held = _locked(self._file, until) and self._catch_up(until)
        except BlockingIOError:
            raise self._fault(f"was held by another process for {self._patience:g} s", "`lslocks` names it") from None
        except OSError as error:
            raise self._fault(f"cannot be used: {error.strerror}", "was it moved or deleted? start again") from error
        finally:
            if not held:
                self._leave()
        return held

    def _leave(self) -> None:
        try:
            if self._file >= 0:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        finally:
            self._lock.release()

    def _catch_up(self, until: float | None) -> bool:
        """Take up what others have appended, and rotate if asked to; False where that needs waiting."""
        status = os.stat(self._name)  # noqa: PTH116 - before every event, and a `Path` takes twice as long
        while (status.st_dev, status.st_ino) != self._identity:
            if not self._follow(until):
                return False
            status = self.path.stat()
        torn = self._read_on(status.st_size, self._head)
        if torn:
            self._cut(torn)
        if status.st_nlink > 1 and self._size:
            self._rotate(status)
        return True

    def _read_on(self, size: int, head: Head | None) -> bytes:
        """Make sure that what was seen of the file is there, and take up the chain where the file ends.

        `head`: has to name the end that was seen, or an event after it: a crash leaves it behind, and never ahead.
        Returns: a line at the end that its writer did not live to finish.
        """
        seen = len(self._last)
        if size < self._size or os.pread(self._file, seen, self._size - seen) != self._last:
            raise self._fault("has lost or changed events that this process has seen", _EVIDENCE)
        if size == self._size and (head is None or head.names(self._seq - 1, self._prev)):
            return b""
        start = max(self._size, size - LINE_BYTES)
        *lines, torn = os.pread(self._file, size - start, start).split(b"\n")
        end = (self._seq - 1, self._prev)
        if start == self._size:
            events = self._checked(lines, end if self._seq else None)
        else:
            # The first line of these is a part of one.
            events = self._checked(lines[1:], anywhere=True)
        if events:
            if events[0]["seq"] < self._seq:
                raise self._fault("cannot be continued: it repeats events", _EVIDENCE)
            end = (events[0]["seq"] - 1, events[0]["prev_hash"])
        ends = [end, *((event["seq"], event["hash"]) for event in events)]
        named = None if head is None else head.last()
        if named is not None and named not in ends:
            raise self._fault(f"does not end at its head, event {named[0]}", _EVIDENCE)
        whole = size - len(torn) if events else self._size
        # A power failure may leave zeros in the place of what was to be written.
        text = torn.rstrip(b"\0")
        if text.endswith(b"}") or text[: len(_START)] != _START[: len(text)] or whole + len(torn) != size:
            raise self._fault("cannot be continued: it does not end in a whole event", _EVIDENCE)
        if head is not None:
            head.write(*ends[-1], fsync=self._fsync)
        if events:
            self._seq, self._prev = ends[-1][0] + 1, ends[-1][1]
            self._size, self._last = whole, lines[-1] + b"\n"
        return torn

    def _cut(self, torn: bytes) -> None:
        """Cut a line that was never reported as recorded, and record that."""
        os.ftruncate(self._file, self._size)
        _log.warning("audit file %s: an unfinished line of %d bytes was cut", self.path, len(torn))
        self._record({**_event(RECOVERED), "arguments_digest": self.digest(torn), "outcome": "unknown"})

    def _follow(self, until: float | None) -> bool:
        """Go on in the file that goes on from this one, which was rotated; False where that needs waiting."""
        self._read_on(os.fstat(self._file).st_size, None)
        file = os.open(self.path, _FLAGS)
        # Where it was rotated more than once meanwhile, the path is a later file, and the next one has its number by
        # now. In this order, as it may be rotated at any moment.
        if b'"seq":%d,' % self._seq not in _first_line(file) and _rotated_name(self.path, self._seq).exists():
            os.close(file)
            file = os.open(_rotated_name(self.path, self._seq), _FLAGS)
        followed = False
        try:
            self._checked([_first_line(file)], (self._seq - 1, self._prev))
            followed = _locked(file, until)
        finally:
            if not followed:
                os.close(file)
        if followed:
            self._adopt(file)
        return followed

    def _rotate(self, status: os.stat_result) -> None:
        """Begin a new file that goes on from this one, if that was requested. Where it cannot be, this one goes on."""
        [first] = self._checked([_first_line(self._file)], anywhere=True)
        kept = _rotated_name(self.path, first["seq"])
        if not (kept.exists() and os.path.samestat(kept.stat(), status)):
            return
        path = self.path.resolve()
        draft = path.with_name(path.name + ".next")
        line, _ = self._chained(_event(ROTATED))
        file = -1
        try:
            draft.unlink(missing_ok=True)
            file = os.open(draft, _FLAGS | os.O_CREAT | os.O_EXCL, stat.S_IMODE(status.st_mode))
            # Held before anybody else can see it.
            _locked(file, None)
            self._write_line(file, line)
            draft.rename(path)
            if self._fsync:
                _sync_folder(path.parent)
        except OSError:
            if file >= 0:
                os.close(file)
            _log.exception("audit file %s cannot be rotated, and goes on", self.path)
        else:
            self._adopt(file)
            self._read_on(len(line) + 1, self._head)

    def _write(self, line: bytes, line_hash: str) -> None:
        if len(line) >= LINE_BYTES:
            raise AuditError(f"audit event of {len(line)} bytes is too large to be continued after")
        try:
            self._write_line(self._file, line)
            if self._head is not None:
                self._head.write(self._seq, line_hash, fsync=self._fsync)
        except (OSError, AuditError) as error:
            # A part of a line would spoil the chain for all that follow, and what is refused did not happen.
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            if isinstance(error, OSError):
                raise self._fault(f"cannot be written: {error.strerror}") from error
            raise
        self._size += len(line) + 1
        self._last = line + b"\n"

    def _write_line(self, file: int, line: bytes) -> None:
        if os.write(file, line + b"\n") <= len(line):
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        if self._fsync:
            os.fsync(file)

    def _adopt(self, file: int) -> None:
        """Take a file in the place of the one that is open; none of it is seen yet."""
        status = os.fstat(file)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._identity = file, (status.st_dev, status.st_ino)
        self._size, self._last = 0, b""
        if not stat.S_ISREG(status.st_mode):
            raise self._fault("is not a regular file")

    def _checked(
        self, lines: list[bytes], after: tuple[int, str] | None = None, *, anywhere: bool = False
    ) -> list[dict[str, Any]]:
        try:
            return [*chained_events(lines, self._hash, after, anywhere=anywhere)]
        except AuditError as error:
            # Without the line's number, which counts from what was read.
            raise self._fault(f"cannot be continued: {error.message.partition(': ')[2]}", _EVIDENCE) from error

    def _fault(self, message: str, hint: str | None = None) -> AuditError:
        return AuditError(f"audit file {self.path} {message}", hint=hint)


def request_rotation(path: Path) -> Path:
    """Ask whoever appends to a stream next to begin a new file, and return the name that this one then keeps.

    The request is that name: a second one (a hard link) for the file.

    Raises:
        AuditError: it is not a stream with events, or cannot get that name.
    """
    try:
        with path.open("rb") as file:
            name = _rotated_name(path, parse_json(_first_line(file.fileno()))["seq"])
            with suppress(FileExistsError):
                name.hardlink_to(path.resolve())
            named = os.path.samestat(name.stat(), os.fstat(file.fileno()))
    except OSError as error:
        raise AuditError(
            f"audit file {path} cannot be rotated: {error.strerror}", hint="ask as somebody who may write its folder"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise AuditError(f"audit file {path} cannot be rotated: its first line is not an event") from error
    if not named:
        raise AuditError(f"audit file {path} cannot be rotated: {name} is another file", hint="move that away")
    return name


def _rotated_name(path: Path, first: int) -> Path:
    """Return the name under which that file of a stream stays which begins with the event of this number."""
    real = path.resolve()
    return real.with_name(f"{real.name}.{first:012}")


def _first_line(file: int) -> bytes:
    return os.pread(file, LINE_BYTES, 0).partition(b"\n")[0]


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _locked(file: int, until: float | None) -> bool:
    """Lock a file. While another holds it: False without `until`; BlockingIOError when that time has come."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if until is None:
                return False
            left = until - time.monotonic()
            if left <= 0:
                raise
            time.sleep(min(_POLL, left))
        else:
            return True


def _event(kind: str) -> AuditEvent:
    return {"time": to_milliseconds(time.time()), "type": kind}
