"""The audit stream in a file. Several processes may append to the file, which can be rotated on request.

Before a writer appends, it locks the file, for a limited time, and checks that the path still names this file, that the
file is not shorter, that the last known line is unchanged, and that the file ends with a complete event, which the head
names. A new file must continue the chain of the file that it replaces. Key and head are outside the stream's folder.
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
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.audit.chain import GENESIS, KEY_BYTES, LINE_BYTES, ROTATED, AuditEvent, AuditLog
from pdp.audit.verify import checked_event
from pdp.clock import to_milliseconds
from pdp.errors import AuditError
from pdp.json import parse_json

if TYPE_CHECKING:  # Most streams record no requests.
    from pdp.audit.requests import Requests

StreamKey = bytes | Path | Callable[[], bytes]

_log = logging.getLogger("pdp.audit")

PATIENCE: Final = 5.0  # A write waits at most this many seconds for another thread or process to unlock the file.

_HEAD_BYTES: Final = 160
_MOST_HEAD_BYTES: Final = 4096  # The output of `pdp audit verify --json` is longer.
_POLL: Final = 0.005
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
_EVIDENCE: Final = "run `pdp audit verify`, move the file away as evidence, and start a new file"


class FileAudit(AuditLog):
    """An audit stream in a JSON Lines file. Several processes may write it; a forked process has to open it again.

    Args:
        path: the file. A new file is created; an existing file is continued.
        key: at least 32 bytes, a function that returns them, or a file in another folder with them. Without a key,
            another writer of the file can also replace its content.
        head: a file in another folder that names the last event, to detect a truncated or replaced stream.
        fsync: wait until each event is on the disk. Otherwise the operating system decides when to write.
        patience: seconds to wait for another thread or process that has locked the stream.
        requests: records the request of each decision; see `pdp.files.FileRequests`.

    Raises:
        AuditError: the file, the key or the head cannot be used, or another process has locked the file.

    Examples:
        >>> from pathlib import Path
        >>> audit = FileAudit(Path("audit.jsonl"), key=b"32 bytes or more of random data.")
        >>> audit.append({"time": "2026-07-01T10:00:00.000Z", "type": "note"})
        >>> audit.close()
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
        requests: Requests | None = None,
    ) -> None:
        super().__init__(None if key is None else key_bytes(key, path))
        self._requests = requests
        self.seal = None if requests is None else requests.seal
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
        """Record one event, waiting at most `patience` seconds for the lock. Raise `AuditError` on failure."""
        self._append(event, time.monotonic() + self._patience)

    def offer(self, event: AuditEvent) -> Callable[[], object] | None:
        """Record one event if that needs no wait, else return a function that records the event within `patience`."""
        if not self._fsync and self._append(event, None):
            return None
        return partial(self._append, event, time.monotonic() + self._patience)

    def close(self) -> None:
        """Close the file, so that later events raise `AuditError`.

        Raises:
            AuditError: another thread is writing, so the file stays open.
        """
        if not self._lock.acquire(timeout=self._patience):
            raise self._fault("is in use by another thread and cannot be closed")
        try:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
        finally:
            self._lock.release()

    def _append(self, event: AuditEvent | None, until: float | None) -> bool:
        """Check the stream's end and append an event, if any. If `until` is None, return False rather than wait."""
        if os.getpid() != self._process:
            # In a forked process, a thread that no longer exists may hold the lock, and file locks are shared with the
            # parent.
            raise AuditError(f"audit file {self.path} was opened before this process was forked", hint="open it again")
        # The thread lock comes first, because a file lock does not exclude threads of the same process.
        if not self._lock.acquire(timeout=0 if until is None else max(0.0, until - time.monotonic())):
            if until is None:
                return False
            raise self._fault(f"was locked by another thread for {self._patience:g} s")
        try:
            if self._file < 0:
                raise self._fault("is closed")
            is_locked = self._hold(until)
            if is_locked and event is not None:
                if self._requests is not None and "sealed" in event:
                    self._requests.keep(event)
                self._record(event)
        except BlockingIOError:
            raise self._fault(f"was locked by another process for {self._patience:g} s", "run `lslocks`") from None
        except OSError as error:
            raise self._fault(f"cannot be used: {error.strerror}", "check the file, the folder and the disk") from error
        finally:
            try:
                if self._file >= 0:
                    fcntl.flock(self._file, fcntl.LOCK_UN)
            finally:
                self._lock.release()
        return is_locked

    def _hold(self, until: float | None) -> bool:
        """Lock the newest file of the stream and check its end. If `until` is None, return False instead of waiting."""
        while locked(self._file, until):
            status = os.stat(self._name)  # noqa: PTH116 - `Path` takes twice as long
            if (status.st_dev, status.st_ino) == self._identity:
                self._read_on(status.st_size, self._head)
                if not (status.st_nlink > 1 and self._size and self._rotated(status)):
                    return True
            self._follow()
        return False

    def _read_on(self, size: int, head: Head | None) -> None:
        """Check that no known event has changed, and continue the chain after the last event in the file."""
        seen = len(self._last)
        if size < self._size or os.pread(self._file, seen, self._size - seen) != self._last:
            raise self._fault("has lost or changed events that this process has seen", _EVIDENCE)
        torn = b""
        if size > self._size:
            # Read the last complete line, and an incomplete line that a killed writer may have left.
            start = max(self._size, size - 2 * LINE_BYTES)
            *lines, torn = os.pread(self._file, size - start, start).split(b"\n")
            if lines:
                self._continue_after(lines[-1])
            elif start > self._size or not seen:
                raise self._fault("cannot be continued: its last event is incomplete", _EVIDENCE)
            self._size = size - len(torn)
        if head is not None:
            self._update_head(head)
        if torn:
            os.ftruncate(self._file, self._size)
            _log.warning("audit file %s: an incomplete last line of %d bytes was removed", self.path, len(torn))

    def _update_head(self, head: Head) -> None:
        """Make the head name the last event. An empty head, or one event behind after a crash, is no error."""
        named = head.last()
        if named == (self._seq - 1, self._prev):
            return
        before = parse_json(self._last)["prev_hash"] if self._last else GENESIS
        if named not in ((self._seq - 2, before), (-1, GENESIS)):
            raise self._fault(
                f"does not end at event {named[0]}, although the file's head names that event as the last one",
                _EVIDENCE,
            )
        head.write(self._seq - 1, self._prev, fsync=self._fsync)

    def _continue_after(self, line: bytes, *, follows: bool = False) -> None:
        """Continue the chain after the event in a line. With `follows`, the event must be the chain's next one."""
        event = self._checked(line)
        if event["seq"] < self._seq or (follows and (event["seq"], event["prev_hash"]) != (self._seq, self._prev)):
            raise self._fault("cannot be continued: events were removed, inserted, moved or repeated", _EVIDENCE)
        self._seq, self._prev, self._last = event["seq"] + 1, event["hash"], line + b"\n"

    def _follow(self) -> None:
        """Switch to the next file of the stream, after the current file was rotated."""
        self._read_on(os.fstat(self._file).st_size, None)
        file = _next_file(self.path, self._seq)
        try:
            self._continue_after(_first_line(file), follows=True)
        except BaseException:
            os.close(file)
            raise
        self._size = len(self._last)
        self._adopt(file)

    def _rotated(self, status: os.stat_result) -> bool:
        """Create the next file of the stream if a rotation was requested. Return whether the next file is in place."""
        kept = _rotated_name(self.path, self._checked(_first_line(self._file))["seq"])
        if not (kept.exists() and os.path.samestat(kept.stat(), status)):
            return False
        line, _ = self._chained({"time": to_milliseconds(time.time()), "type": ROTATED})
        try:
            replace_file(self.path.resolve(), line + b"\n", mode=stat.S_IMODE(status.st_mode))
        except OSError:
            _log.exception("audit file %s cannot be rotated, so events are still appended to it", self.path)
        # Even if the sync of the folder failed, the file may be new, so the file is compared with the old file.
        return not os.path.samestat(self.path.stat(), status)

    def _write(self, line: bytes, line_hash: str) -> None:
        try:
            if os.write(self._file, line + b"\n") <= len(line):
                raise OSError(ENOSPC, os.strerror(ENOSPC))  # noqa: TRY301 - handled like an error of the write
            if self._fsync:
                os.fsync(self._file)
            if self._head is not None:
                self._head.write(self._seq, line_hash, fsync=self._fsync)
        except (OSError, AuditError):
            # An incomplete line would break the chain for all later events, so it is removed.
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
            raise self._fault(f"cannot be continued: {error.message}", error.hint or _EVIDENCE) from error

    def _fault(self, message: str, hint: str | None = None) -> AuditError:
        return AuditError(f"audit file {self.path} {message}", hint=hint)


def request_rotation(path: Path) -> Path:
    """Ask the next writer to begin a new file. Return the path, a hard link, at which the present file stays available.

    Raises `AuditError` if the file is not an audit stream or the link cannot be created.
    """
    try:
        with path.open("rb") as file:
            name = _rotated_name(path, parse_json(_first_line(file.fileno()))["seq"])
            with suppress(FileExistsError):
                name.hardlink_to(path.resolve())
            is_same = os.path.samestat(name.stat(), os.fstat(file.fileno()))
    except OSError as error:
        raise AuditError(
            f"audit file {path} cannot be rotated: {error.strerror}", hint="name an audit file in a writable folder"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise AuditError(
            f"audit file {path} cannot be rotated: its first line is not an event",
            hint="name the file that the application appends its events to",
        ) from error
    if not is_same:
        raise AuditError(
            f"audit file {path} cannot be rotated: {name} already exists and is another file",
            hint="move that file away",
        )
    return name


def _rotated_name(path: Path, first: int) -> Path:
    """Return the path of a file after its rotation. `first` is the number of the file's first event."""
    real = path.resolve()
    return real.with_name(f"{real.name}.{first:012}")


def _next_file(path: Path, seq: int) -> int:
    """Open the stream's file that begins with event `seq`: the current file or, after a rotation, the rotated file."""
    # The current file is opened first: if a rotation happens in between, the rotated file can still be found by its
    # name.
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
    """Replace a file atomically after its new content is on the disk. Raise `OSError` on failure.

    The new file's time is at least a second later, because web servers compute an ETag from seconds and size.
    """
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        draft = Path(file.name)
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            # Temporary files are readable by their owner only, but engines of other users read bundles.
            draft.chmod(mode)
            with suppress(FileNotFoundError):
                later = max(int(draft.stat().st_mtime), int(path.stat().st_mtime) + 1)
                os.utime(draft, (later, later))
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Wait until the names of a folder's files are on the disk."""
    folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def locked(file: int, until: float | None) -> bool:
    """Lock a file and return True. If the file is locked, wait `until` a time; if `until` is None, return False."""
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
    """Return the key of a stream. Raise `AuditError` if the key cannot be read or is shorter than 32 bytes."""
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
            f"the key of audit file {stream} is shorter than {KEY_BYTES} bytes",
            hint="create a key with `openssl rand -hex 32`",
        )
    return value


class Head:
    """A file with the number and hash of a stream's last event, so that a truncated or replaced stream is detected.

    After a crash, the file may name the last event but one. Raises `AuditError` if it is unusable or beside the stream.
    """

    def __init__(self, path: Path, stream: Path, *, make: bool = False) -> None:
        _check_apart("head", path, stream)
        self._path = path
        with self._opened(os.O_WRONLY | os.O_CREAT if make else os.O_RDONLY):
            pass

    def last(self) -> tuple[int, str]:
        """Return `seq` and `hash` of the event that the head names; for an empty head, -1 and the first `prev_hash`."""
        with self._opened(os.O_RDONLY) as file:
            value = orjson.loads(os.read(file, _MOST_HEAD_BYTES) or _head_text(-1, GENESIS))
            return value["seq"] + 0, value["hash"] + ""

    def write(self, seq: int, last_hash: str, *, fsync: bool) -> None:
        """Write the number and hash of the stream's last event to the head."""
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
    # The head is overwritten in place, so its text is padded to a fixed length. JSON ignores the padding.
    return f'{{"seq":{seq},"hash":"{last_hash}"}}'.ljust(_HEAD_BYTES - 1).encode() + b"\n"


def _check_apart(name: str, path: Path, stream: Path) -> None:
    if path.resolve().is_relative_to(stream.resolve().parent):
        raise AuditError(
            f"{name} {path} must not be in the folder of its audit stream or below", hint="use another folder"
        )
