"""The stream of events: append-only, and each event holds the hash of the one before, so that a change shows.

An event says who asked for what, what was decided, and what came of it. Payloads are not in it: arguments and results
stand as keyed digests (HMAC-SHA-256 with a key of the stream, as small payloads can be guessed), and the reason of a
rejection has `***` for what was proposed.

With a key a hash is an HMAC, and only who has the key can write an event that fits. Without one, whoever can write the
stream can write all of it anew; its hashes say so (`sha256:` instead of `hmac-sha256:`).
"""

import hashlib
import hmac
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, Final, Required, TypedDict

import orjson

from pdp.errors import AuditError
from pdp.json import JsonValueError, canonical, digest

GENESIS: Final = "sha256:" + "0" * 64  # `prev_hash` of the first event of a stream
KEPT: Final = 100_000  # how many events a stream in memory holds
KEY_BYTES: Final = 32  # bytes that a stream's key has at least
ROTATED: Final = "audit.rotated"  # the type of the first event of a file that goes on from one that was rotated

_TEXT_LENGTH: Final = 256
_START_LENGTH: Final = _TEXT_LENGTH - len("~sha256:") - 64


class AuditEvent(TypedDict, total=False):
    """One event, as design.md lists it; `time` and `type` are always there, and what does not apply is null.

    The log adds `seq` (from 0), `prev_hash` and `hash` (of the RFC 8785 form of all other fields: an HMAC with the key
    of the stream, or SHA-256 without one).
    """

    time: Required[str]
    type: Required[str]
    request_id: str | None
    tool_call_id: str | None
    run_id: str | None
    subject: str | None
    agent: str | None
    tool_name: str | None
    manifest_version: str | None
    manifest_digest: str | None
    arguments_digest: str | None
    status: str | None
    in_manifest: bool | None
    schema_valid: bool | None
    idempotency_missing: bool | None
    risk_tier: str | None
    pdp_action: str | None
    step_name: str | None
    rejection: str | None
    reason: str | None
    replayed: bool | None
    verdict: str | None
    codes: Sequence[str]
    decision_id: str | None
    bundle_revision: str | None
    approval_id: str | None
    idempotency_key: str | None
    outcome: str | None
    result_digest: str | None
    retrieval_snapshot: str | None
    sources: Sequence[str]
    spent: Sequence[dict[str, str | None]]
    flow: dict[str, Any] | None
    error_code: str | None
    duration_ms: float | None


EMPTY: Final[dict[str, Any]] = {
    name: () if name in ("codes", "sources", "spent") else None
    for name in sorted((*AuditEvent.__annotations__, "prev_hash", "seq"))
}
"""An event to which nothing applies; its fields are sorted, as they are written."""


def recordable(text: object) -> str | None:
    """Return a text that an event can hold: at most 256 characters, and no lone surrogates.

    What does not fit ends in a digest of the whole, and has exactly 256 characters: no two texts become one.
    """
    if text is None or (type(text) is str and len(text) < _TEXT_LENGTH and text.isascii()):
        return text
    whole = str(text)
    start = whole[:_TEXT_LENGTH].encode(errors="backslashreplace").decode()
    if len(whole) < _TEXT_LENGTH and start == whole:
        return whole
    return start[:_START_LENGTH].ljust(_START_LENGTH) + "~" + digest(whole.encode(errors="surrogatepass"))


def keyed_hash(key: bytes, use: bytes) -> Callable[[bytes], str]:
    """Return what gives `hmac-sha256:` and an HMAC-SHA-256, with a key that is derived from another one for one use."""
    derived = hashlib.sha256(use + b"\0" + hashlib.sha256(key).digest()).digest()
    begun = hmac.new(derived, digestmod="sha256")

    def hashed(data: bytes) -> str:
        # Faster than `hmac.digest`, which reads the key each time.
        mac = begun.copy()
        mac.update(data)
        return "hmac-sha256:" + mac.hexdigest()

    return hashed


def chain_hash(key: bytes | None) -> Callable[[bytes], str]:
    """Return what hashes the events of a stream with this key; without one, anybody can."""
    return digest if key is None else keyed_hash(key, b"tool-pdp audit chain")


class AuditLog(ABC):
    """An append-only, hash-chained stream of events. Safe to share between threads.

    Without a key (at least 32 bytes) the chain is not keyed, and nobody can check payload digests later.
    """

    may_wait: ClassVar[bool] = False
    """Whether `append` may wait for others, so that an event loop hands it to a thread."""

    def __init__(self, key: bytes | None = None) -> None:
        self._hash = chain_hash(key)
        self.digest = keyed_hash(os.urandom(KEY_BYTES) if key is None else key, b"tool-pdp audit payload")
        """Returns the keyed digest that stands in the stream for a payload."""
        self._lock = threading.Lock()
        self._seq = 0
        self._prev = GENESIS

    def append(self, event: AuditEvent) -> None:
        """Chain and record one event. AuditError where it cannot be recorded: whoever was about to execute must not."""
        with self._lock:
            self._record(event)

    def append_within(self, event: AuditEvent, transaction: object) -> None:  # noqa: ARG002 - of databases
        """Record one event as `append` does, while a transaction of a store is open, if it is not None."""
        self.append(event)

    def offer(self, event: AuditEvent) -> Callable[[], object] | Future[None] | None:
        """Record one event as `append` does, and return None; or, if that may have to wait, what records it.

        A Future: it is being recorded.
        """
        self.append(event)
        return None

    def _record(self, event: AuditEvent) -> None:
        """Chain and write one event. The caller holds the stream."""
        line, record_hash = self._chained(event)
        self._write(line, record_hash)
        self._seq += 1
        self._prev = record_hash

    def _chained(self, event: AuditEvent) -> tuple[bytes, str]:
        record = {**EMPTY, **event}
        record["seq"] = self._seq
        record["prev_hash"] = self._prev
        try:
            # Without a duration no value is a float, and the fields stand sorted, as in `EMPTY`: then orjson's form is
            # the RFC's.
            is_plain = len(record) == len(EMPTY) and record["duration_ms"] is None
            text = orjson.dumps(record) if is_plain else canonical(record)
        except (TypeError, JsonValueError) as error:
            raise AuditError(f"audit event cannot be written: {error}") from error
        record_hash = self._hash(text)
        return hashed_line(text, record_hash), record_hash

    @abstractmethod
    def _write(self, line: bytes, line_hash: str) -> None:
        """Record one line of JSON, without its line break, which has this hash; AuditError when it cannot be."""

    def close(self) -> None:  # noqa: B027 - not every stream holds something
        """Release what the stream holds."""


class MemoryAudit(AuditLog):
    """A stream in memory, for tests and for looking at. It holds the last 100,000 events."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[bytes] = deque(maxlen=KEPT)

    def _write(self, line: bytes, line_hash: str) -> None:  # noqa: ARG002 - as every stream does
        self._lines.append(line)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events recorded so far, with `seq`, `prev_hash` and `hash`."""
        return [orjson.loads(line) for line in self._lines]


# "hash" is the last key; order means nothing in JSON, and verifying takes it out again.
def hashed_line(content: bytes, record_hash: str) -> bytes:
    """Return the line of an event: its canonical form with its hash."""
    return content[:-1] + b',"hash":"' + record_hash.encode() + b'"}'
