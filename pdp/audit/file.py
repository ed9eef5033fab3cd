"""What happened, in order and provably so: one event before a tool runs and one after, each chained to the last.

Every event holds the hash of the one before, so that a change in the middle shows. Payloads are not in it: arguments
and results stand as keyed digests (HMAC-SHA-256 with the stream's key, since small payloads could be guessed).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Required, TypedDict
from weakref import WeakSet

import orjson

from pdp.errors import AuditError
from pdp.json import JsonValueError, canonical, digest, parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

GENESIS: Final = "sha256:" + "0" * 64
"""`prev_hash` of the first event of a stream."""

KEPT: Final = 100_000
"""How many events a stream in memory keeps."""

_TEXT_LENGTH: Final = 256
_TAIL_BYTES: Final = 1024 * 1024
_KEY_BYTES: Final = 32


class AuditEvent(TypedDict, total=False):
    """One event, as design.md lists it; `time` and `type` are always there, and what does not apply is null.

    The log adds `seq` (from 0), `prev_hash` and `hash` (SHA-256 of the RFC 8785 form of all other fields).
    """

    time: Required[str]
    type: Required[str]
    request_id: str | None
    tool_call_id: str | None
    run_id: str | None
    subject: str | None
    agent: str | None
    tool: str | None
    manifest_version: str | None
    manifest_digest: str | None
    arguments_digest: str | None
    status: str | None
    rejection: str | None
    verdict: str | None
    codes: Sequence[str]
    decision_id: str | None
    bundle_revision: str | None
    approval_id: str | None
    idempotency_key: str | None
    outcome: str | None
    result_digest: str | None
    error_code: str | None
    duration_ms: float | None


_EMPTY: Final[dict[str, Any]] = {**dict.fromkeys(AuditEvent.__annotations__), "codes": ()}


def recordable(text: object) -> str | None:
    """Return a text that an event can hold: at most 256 characters, and no lone surrogates."""
    if text is None or (type(text) is str and len(text) <= _TEXT_LENGTH and text.isascii()):
        return text
    return str(text)[:_TEXT_LENGTH].encode(errors="backslashreplace").decode()


class AuditLog(ABC):
    """An append-only, hash-chained stream of events. Safe to share between threads."""

    def __init__(self, key: bytes) -> None:
        block = key.ljust(hashlib.sha256().block_size, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))
        self._lock = threading.Lock()
        self._seq = 0
        self._prev = GENESIS

    def digest(self, payload: bytes) -> str:
        """Return the keyed digest that stands in the stream for `payload`."""
        # RFC 2104 from the states after the key's two blocks: three times as fast as `hmac.digest`.
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(payload)
        outer.update(inner.digest())
        return "hmac-sha256:" + outer.hexdigest()

    def append(self, event: AuditEvent) -> None:
        """Chain and record one event.

        Raises:
            AuditError: it could not be recorded. Whoever was about to execute must not.
        """
        record = {**_EMPTY, **event}
        with self._exclusive():
            record["seq"] = self._seq
            record["prev_hash"] = self._prev
            try:
                text = canonical(record)
            except JsonValueError as error:
                raise AuditError(f"audit event cannot be written: {error}") from error
            record_hash = digest(text)
            self._write(_hashed(text, record_hash))
            self._seq += 1
            self._prev = record_hash

    def _exclusive(self) -> AbstractContextManager[Any]:
        """Hold the stream, and know its end, for one event."""
        return self._lock

    @abstractmethod
    def _write(self, line: bytes) -> None:
        """Record one line of JSON, without its line break; AuditError when it cannot be."""

    def close(self) -> None:  # noqa: B027 - not every stream holds something
        """Release what the stream holds."""


class MemoryAudit(AuditLog):
    """A stream in memory, for tests and for looking at. It keeps the last 100,000 events."""

    def __init__(self) -> None:
        super().__init__(os.urandom(_KEY_BYTES))
        self._lines: deque[bytes] = deque(maxlen=KEPT)

    def _write(self, line: bytes) -> None:
        self._lines.append(line)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events recorded so far, with `seq`, `prev_hash` and `hash`."""
        return [orjson.loads(line) for line in self._lines]


class FileAudit(AuditLog):
    """A stream in a JSON Lines file, which several processes may append to.

    The key for the digests lies beside it in `<file>.key`, readable by its owner only; it is made with the file.

    Args:
        path: the file; it is made when it is not there, and continued when it is.
        fsync: wait until each event is on the disk, not only with the operating system.

    Raises:
        AuditError: the file or its key cannot be opened, or its last line is not an event.
    """

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self.path = path
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
        _streams.add(self)

    def _in_child(self) -> None:
        """Begin anew after a fork: the parent may have held the lock, and what is inherited shares its file lock."""
        self._lock = threading.Lock()
        if self._file >= 0:
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
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
            last = _checked(tail[:-1].rsplit(b"\n", 1)[-1])
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


_streams: WeakSet[FileAudit] = WeakSet()


def _after_fork() -> None:
    for stream in list(_streams):
        stream._in_child()  # noqa: SLF001 - this module's own


os.register_at_fork(after_in_child=_after_fork)


def _stream_key(path: Path) -> bytes:
    keyfile = path.with_name(path.name + ".key")
    draft = path.with_name(f"{path.name}.key.{os.getpid()}.{threading.get_ident()}")
    # Written aside and linked, so that nobody ever reads half a key; the first one there wins.
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(os.urandom(_KEY_BYTES))
    with suppress(FileExistsError):
        os.link(draft, keyfile)
    draft.unlink()
    key = keyfile.read_bytes()
    if len(key) != _KEY_BYTES:
        raise AuditError(f"audit key {keyfile} is not {_KEY_BYTES} bytes long", hint="restore it from a backup")
    return key


# "hash" is the last key; order means nothing in JSON, and verifying takes it out again.
def _hashed(content: bytes, record_hash: str) -> bytes:
    return content[:-1] + b',"hash":"' + record_hash.encode() + b'"}'


def _checked(line: bytes) -> dict[str, Any]:
    """Return the event of one line, its hash and its very bytes checked."""
    try:
        # Strictly: of two keys of one name, another reader could take the other one.
        event: dict[str, Any] = parse_json(line)
        content = canonical({name: value for name, value in event.items() if name != "hash"})
        intact = line == _hashed(content, event["hash"]) and event["hash"] == digest(content)
        event["seq"] += 0
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AuditError("not an event") from error
    if not intact:
        raise AuditError("the hash does not match")
    return event


def verify_chain(lines: list[bytes]) -> int:
    """Check a stream from its first event on and return the number of events.

    Raises:
        AuditError: an event was changed, left out, put in or moved; the message names the first such line.
    """
    prev = GENESIS
    for number, line in enumerate(lines):
        try:
            event = _checked(line)
        except AuditError as error:
            raise AuditError(f"audit line {number + 1}: {error.message}") from error
        if (event["seq"], event["prev_hash"]) != (number, prev):
            raise AuditError(f"audit line {number + 1}: events before it were left out, put in or moved")
        prev = event["hash"]
    return len(lines)
