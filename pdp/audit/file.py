"""The stream of events in a file, which several processes append to, and which is rotated on request.

Its key and its head lie in another folder: whoever takes, restores or rewrites that of the stream has them not with it.

Whoever appends holds the file's lock, for a bounded time, and first makes sure that the file is the one it has seen:
the same file under the path, not shorter, the last line that it saw as it was, and a whole event of this stream at its
end, which the head names. A file that takes its place has to go on exactly where it ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import ENOSPC
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from pdp.audit.chain import GENESIS, KEY_BYTES, ROTATED, AuditEvent, AuditLog
from pdp.audit.verify import checked_event
from pdp.clock import to_milliseconds
from pdp.errors import AuditError
from pdp.json import parse_json

StreamKey = bytes | Path | Callable[[], bytes]

_log = logging.getLogger("pdp.audit")

PATIENCE: Final = 5.0  # seconds that an event waits for a stream that another thread or process holds
LINE_BYTES: Final = 64 * 1024  # bytes that a line has at most, its line break included

_HEAD_BYTES: Final = 160
_POLL: Final = 0.005
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
_EVIDENCE: Final = "see `pdp audit verify`; move it away as evidence, and start again with a new one"


class FileAudit(AuditLog):
    """A stream in a JSON Lines file, which several processes may append to. A forked process opens it again.

    Args:
        path: the file; it is made, or continued.
        key: at least 32 bytes, what returns them, or a file in another folder that holds them. Without one the chain
            is not keyed: whoever can write the file can write it anew.
        head: a file in another folder, which names the last event, so that a stream that was cut or replaced shows.
        fsync: wait until each event is on the disk, not only with the operating system.
        patience: seconds that an event waits for a stream that another thread or process holds.

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
        self._head = None if head is None else Head(head, path, make=True)
        self._file = -1
        self._size, self._last = 0, b""
        try:
            self._adopt(os.open(self.path, _FLAGS | os.O_CREAT, 0o600))
            self._append(None, time.monotonic() + patience)
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

    def offer(self, event: AuditEvent) -> Callable[[], object] | None:
        """As `AuditLog.offer`. The patience counts from here, however late what is returned is called."""
        if not self._fsync and self._append(event, None):
            return None
        return partial(self._append, event, time.monotonic() + self._patience)

    def close(self) -> None:
        """Close the file. Appending afterwards is an AuditError, as is closing it while another thread waits for it."""
        if not self._lock.acquire(timeout=self._patience):
            raise self._fault("is in use by another thread, and is not closed")
        try:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
        finally:
            self._lock.release()

    def _append(self, event: AuditEvent | None, until: float | None) -> bool:
        """Take up the end of the stream and record an event, if any. Without `until`, return False for waiting."""
        if os.getpid() != self._process:
            # Its lock may be held by a thread that is not there, and file locks are shared with the parent.
            raise AuditError(f"audit file {self.path} was opened before this process was forked", hint="open it again")
        # The thread lock first: a file lock does not keep threads of one process from each other.
        if not self._lock.acquire(timeout=0 if until is None else max(0.0, until - time.monotonic())):
            if until is None:
                return False
            raise self._fault(f"was held by another thread for {self._patience:g} s")
        try:
            if self._file < 0:
                raise self._fault("is closed")
            held = self._hold(until)
            if held and event is not None:
                self._record(event)
        except BlockingIOError:
            raise self._fault(f"was held by another process for {self._patience:g} s", "`lslocks` names it") from None
        except OSError as error:
            raise self._fault(f"cannot be used: {error.strerror}", "check file, folder and disk") from error
        finally:
            try:
                if self._file >= 0:
                    fcntl.flock(self._file, fcntl.LOCK_UN)
            finally:
                self._lock.release()
        return held

    def _hold(self, until: float | None) -> bool:
        """Lock the file that the stream ends in, and take up its end; False where that needs waiting."""
        while locked(self._file, until):
            status = os.stat(self._name)  # noqa: PTH116 - before every event, and a `Path` takes twice as long
            if (status.st_dev, status.st_ino) == self._identity:
                self._read_on(status.st_size, self._head)
                if not (status.st_nlink > 1 and self._size and self._rotated(status)):
                    return True
            self._follow()
        return False

    def _read_on(self, size: int, head: Head | None) -> None:
        """Make sure that what was seen of the file is there, and take up the chain after its last event."""
        seen = len(self._last)
        if size < self._size or os.pread(self._file, seen, self._size - seen) != self._last:
            raise self._fault("has lost or changed events that this process has seen", _EVIDENCE)
        torn = b""
        if size > self._size:
            # This holds the last line, and the part of one that a writer wrote who was killed.
            start = max(self._size, size - 2 * LINE_BYTES)
            *lines, torn = os.pread(self._file, size - start, start).split(b"\n")
            if lines:
                self._take_up(lines[-1])
            elif start > self._size or not seen:
                raise self._fault("cannot be continued: it does not end in a whole event", _EVIDENCE)
            self._size = size - len(torn)
        if head is not None:
            self._make_good(head)
        if torn:
            os.ftruncate(self._file, self._size)
            _log.warning("audit file %s: an unfinished line of %d bytes was cut", self.path, len(torn))

    def _make_good(self, head: Head) -> None:
        """Let the head name the last event; it names the one before where a writer was killed before it wrote it."""
        named = head.last()
        if named == (self._seq - 1, self._prev):
            return
        before = parse_json(self._last)["prev_hash"] if self._last else GENESIS
        if named not in ((self._seq - 2, before), (-1, GENESIS)):
            raise self._fault(f"does not end at its head, event {named[0]}", _EVIDENCE)
        head.write(self._seq - 1, self._prev, fsync=self._fsync)

    def _take_up(self, line: bytes, *, follows: bool = False) -> None:
        """Take up the chain after the event of a line; `follows`: after nothing but what was seen."""
        event = self._checked(line)
        if event["seq"] < self._seq or (follows and (event["seq"], event["prev_hash"]) != (self._seq, self._prev)):
            raise self._fault("cannot be continued: events were left out, put in, moved or repeated", _EVIDENCE)
        self._seq, self._prev, self._last = event["seq"] + 1, event["hash"], line + b"\n"

    def _follow(self) -> None:
        """Go on in the file that goes on from this one, which was rotated."""
        self._read_on(os.fstat(self._file).st_size, None)
        file = _next_file(self.path, self._seq)
        try:
            self._take_up(_first_line(file), follows=True)
        except BaseException:
            os.close(file)
            raise
        self._size = len(self._last)
        self._adopt(file)

    def _rotated(self, status: os.stat_result) -> bool:
        """Put a file that goes on from this one in its place, if that was requested, and return whether it is there."""
        kept = _rotated_name(self.path, self._checked(_first_line(self._file))["seq"])
        if not (kept.exists() and os.path.samestat(kept.stat(), status)):
            return False
        line, _ = self._chained({"time": to_milliseconds(time.time()), "type": ROTATED})
        try:
            replace_file(self.path.resolve(), line + b"\n", mode=stat.S_IMODE(status.st_mode))
        except OSError:
            _log.exception("audit file %s cannot be rotated, and goes on", self.path)
        # It may be there all the same, where only the folder could not be waited for.
        return not os.path.samestat(self.path.stat(), status)

    def _write(self, line: bytes, line_hash: str) -> None:
        if len(line) >= LINE_BYTES:
            raise AuditError(f"audit event of {len(line)} bytes is too large to be continued after")
        try:
            if os.write(self._file, line + b"\n") <= len(line):
                raise OSError(ENOSPC, os.strerror(ENOSPC))  # noqa: TRY301 - as if writing raised it
            if self._fsync:
                os.fsync(self._file)
            if self._head is not None:
                self._head.write(self._seq, line_hash, fsync=self._fsync)
        except (OSError, AuditError):
            # A part of a line would spoil the chain for all that follow, and what is refused did not happen.
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(line) + 1
        self._last = line + b"\n"

    def _adopt(self, file: int) -> None:
        status = os.fstat(file)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._identity = file, (status.st_dev, status.st_ino)
        if not stat.S_ISREG(status.st_mode):
            raise self._fault("is not a regular file")

    def _checked(self, line: bytes) -> dict[str, Any]:
        try:
            return checked_event(line, self._hash)
        except AuditError as error:
            raise self._fault(f"cannot be continued: {error.message}", _EVIDENCE) from error

    def _fault(self, message: str, hint: str | None = None) -> AuditError:
        return AuditError(f"audit file {self.path} {message}", hint=hint)


def request_rotation(path: Path) -> Path:
    """Ask whoever appends to a stream next to begin a new file, and return the name that this one then keeps.

    The request is that name: a second one (a hard link) for the file. AuditError: not a stream, or no such name.
    """
    try:
        with path.open("rb") as file:
            name = _rotated_name(path, parse_json(_first_line(file.fileno()))["seq"])
            with suppress(FileExistsError):
                name.hardlink_to(path.resolve())
            named = os.path.samestat(name.stat(), os.fstat(file.fileno()))
    except OSError as error:
        raise AuditError(
            f"audit file {path} cannot be rotated: {error.strerror}", hint="name a stream in a folder you may write"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise AuditError(
            f"audit file {path} cannot be rotated: its first line is not an event",
            hint="name the file that the application appends its events to",
        ) from error
    if not named:
        raise AuditError(f"audit file {path} cannot be rotated: {name} is another file", hint="move that away")
    return name


def _rotated_name(path: Path, first: int) -> Path:
    """Return the name under which that file of a stream stays which begins with the event of this number."""
    real = path.resolve()
    return real.with_name(f"{real.name}.{first:012}")


def _next_file(path: Path, seq: int) -> int:
    """Open the file that goes on with this event: the one under the path, or, if that was rotated too, another one."""
    # In this order, as it may be rotated at any moment.
    file = os.open(path, _FLAGS)
    try:
        rotated = os.open(_rotated_name(path, seq), _FLAGS)
    except OSError:
        return file
    os.close(file)
    return rotated


def _first_line(file: int) -> bytes:
    return os.pread(file, LINE_BYTES, 0).partition(b"\n")[0]


def replace_file(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a file aside, wait until the disk has it, and put it in its place at once or not at all; OSError if not.

    It is dated later, in whole seconds, than the one that it replaces: web servers make an ETag of seconds and size,
    and two releases may have one size and come within a second.
    """
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        draft = Path(file.name)
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            # Temporary files are for their owner alone, but engines of other users read bundles.
            draft.chmod(mode)
            with suppress(FileNotFoundError):
                later = max(int(draft.stat().st_mtime), int(path.stat().st_mtime) + 1)
                os.utime(draft, (later, later))
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def locked(file: int, until: float | None) -> bool:
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


def key_bytes(key: StreamKey, stream: Path) -> bytes:
    """Return the key of a stream; at the end of a file that holds it, a line break does not count.

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
    AuditError: it lies in the folder of the stream or below, or cannot be opened.
    """

    def __init__(self, path: Path, stream: Path, *, make: bool = False) -> None:
        _check_apart("head", path, stream)
        self._path = path
        with self._opened(os.O_WRONLY | os.O_CREAT if make else os.O_RDONLY):
            pass

    def last(self) -> tuple[int, str]:
        """Return `seq` and `hash` of the event that it names; -1, and the first `prev_hash`, where it is empty."""
        with self._opened(os.O_RDONLY) as file:
            value = orjson.loads(os.read(file, _HEAD_BYTES) or _head_text(-1, GENESIS))
            return value["seq"] + 0, value["hash"] + ""

    def write(self, seq: int, last_hash: str, *, fsync: bool) -> None:
        """Name the stream's last event."""
        with self._opened(os.O_WRONLY) as file:
            os.write(file, _head_text(seq, last_hash))
            if fsync:
                os.fsync(file)

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
