"""The append-only stream of events. Each event contains the hash of the previous event, so that tampering is detected.

An event records who requested which call, the decision, and the outcome. Arguments and results are recorded as keyed
digests (HMAC-SHA-256 with the stream's key), because small payloads can be guessed from a plain digest. Reasons show
proposed values as `***`. With a key, the hash of an event is an HMAC too (`hmac-sha256:`), so only holders of the key
can write a valid event. Without a key (`sha256:`), anyone who can write the stream can rewrite all events.
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

from pdp.decision import Decision
from pdp.errors import AuditError
from pdp.json import JsonValueError, canonical, digest

GENESIS: Final = "sha256:" + "0" * 64  # The `prev_hash` of a stream's first event.
KEPT: Final = 100_000  # The maximum number of events that a stream in memory keeps.
KEY_BYTES: Final = 32  # The minimum length of a stream's key in bytes.
LINE_BYTES: Final = 128 * 1024  # The maximum length of an event's line in bytes, including its line break.
ROTATED: Final = "audit.rotated"  # The type of the first event in a file that continues a rotated file.

_TEXT_LENGTH: Final = 256
_START_LENGTH: Final = _TEXT_LENGTH - len("~sha256:") - 64


class AuditEvent(TypedDict, total=False):
    """An audit event. `time` and `type` are always set.

    Fields that do not apply are null. The stream adds `seq` (from 0), `prev_hash` and `hash` (of the RFC 8785 form).
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
    grant_id: str | None
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
"""An event with default values. Its fields are in the sorted order in which they are written."""


def recordable(text: object) -> str | None:
    """Return a text that an event can contain, with at most 256 characters and no lone surrogates.

    A text that has to be changed is cut and ends in a digest of the whole text, so that no two texts become equal.
    """
    if text is None or (type(text) is str and len(text) < _TEXT_LENGTH and text.isascii()):
        return text
    whole = str(text)
    start = whole[:_TEXT_LENGTH].encode(errors="backslashreplace").decode()
    if len(whole) < _TEXT_LENGTH and start == whole:
        return whole
    return start[:_START_LENGTH].ljust(_START_LENGTH) + "~" + digest(whole.encode(errors="surrogatepass"))


def keyed_hash(key: bytes, use: bytes) -> Callable[[bytes], str]:
    """Return a function that computes an HMAC-SHA-256 (`hmac-sha256:...`). Each `use` has a separate key."""
    derived = hashlib.sha256(use + b"\0" + hashlib.sha256(key).digest()).digest()
    keyed = hmac.new(derived, digestmod="sha256")

    def hashed(data: bytes) -> str:
        # Copying an initialised HMAC is faster than `hmac.digest`, which prepares the key for each event.
        mac = keyed.copy()
        mac.update(data)
        return "hmac-sha256:" + mac.hexdigest()

    return hashed


def chain_hash(key: bytes | None) -> Callable[[bytes], str]:
    """Return the function that hashes the events of a stream: SHA-256, or an HMAC with the key."""
    return digest if key is None else keyed_hash(key, b"tool-pdp audit chain")


class AuditLog(ABC):
    """An append-only stream of events, chained by hashes. Thread-safe.

    Without a key of at least 32 bytes, the hashes are not keyed, and the digests of payloads cannot be checked later.
    """

    may_wait: ClassVar[bool] = False
    """Whether `append` may wait for other writers, so that an event loop should call it in a thread."""
    seal: Callable[[AuditEvent, bytes, Decision], AuditEvent] | None = None  # Adds the encrypted request.

    def __init__(self, key: bytes | None = None) -> None:
        self._hash = chain_hash(key)
        self.digest = keyed_hash(os.urandom(KEY_BYTES) if key is None else key, b"tool-pdp audit payload")
        """Returns the keyed digest of a payload."""
        self._lock = threading.Lock()
        self._seq = 0
        self._prev = GENESIS

    def append(self, event: AuditEvent) -> None:
        """Record one event. If this raises `AuditError`, the caller must not run the tool."""
        with self._lock:
            self._record(event)

    def append_within(self, event: AuditEvent, transaction: object) -> None:  # noqa: ARG002 - for databases
        """Record one event while a transaction of another store is open; `transaction` may be None."""
        self.append(event)

    def offer(self, event: AuditEvent) -> Callable[[], object] | Future[None] | None:
        """Record one event and return None. If that would block, return a future or a function that records it."""
        self.append(event)
        return None

    def _record(self, event: AuditEvent) -> None:
        """Chain an event and write it. The caller must hold the stream's lock."""
        line, record_hash = self._chained(event)
        self._write(line, record_hash)
        self._seq += 1
        self._prev = record_hash

    def _chained(self, event: AuditEvent) -> tuple[bytes, str]:
        record = {**EMPTY, **event}
        record.pop("sealed", None)  # The recorded request is stored beside the stream.
        record["seq"] = self._seq
        record["prev_hash"] = self._prev
        try:
            # Without a duration, no value is a float and the keys are sorted, so orjson writes the RFC 8785 form.
            is_plain = len(record) == len(EMPTY) and record["duration_ms"] is None
            text = orjson.dumps(record) if is_plain else canonical(record)
        except (TypeError, JsonValueError) as error:
            raise AuditError(f"audit event cannot be written: {error}") from error
        record_hash = self._hash(text)
        line = hashed_line(text, record_hash)
        if len(line) >= LINE_BYTES:
            raise AuditError(f"audit event of {len(line)} bytes exceeds the limit of {LINE_BYTES - 1} bytes")
        return line, record_hash

    @abstractmethod
    def _write(self, line: bytes, line_hash: str) -> None:
        """Write an event, as one line of JSON, with its hash. Raise `AuditError` on failure."""

    def close(self) -> None:  # noqa: B027 - some streams hold no resource
        """Close the stream and release its resources."""


class MemoryAudit(AuditLog):
    """An audit stream in memory with the last 100,000 events, for tests and for inspection.

    Examples:
        >>> from pdp import Pep
        >>> audit = MemoryAudit()
        >>> call = {"tool": "lookup_beneficiary", "arguments": {"payee_name": "Acme", "invoice_ref": "INV-8842"}}
        >>> with Pep.from_project("pdp.yaml", audit=audit) as pep:
        ...     evaluation = pep.decide(call, {"claims": {"sub": "officer-123"}})
        >>> [(event["type"], event["verdict"]) for event in audit.events]
        [('tool.lookup_beneficiary.dispatch', 'DENY')]
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[bytes] = deque(maxlen=KEPT)

    def _write(self, line: bytes, line_hash: str) -> None:  # noqa: ARG002 - signature of the base class
        self._lines.append(line)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The recorded events, with `seq`, `prev_hash` and `hash`."""
        return [orjson.loads(line) for line in self._lines]


# The key "hash" is written last. JSON ignores the order, and the check removes this key first.
def hashed_line(content: bytes, record_hash: str) -> bytes:
    """Return an event as a line of the stream: its canonical JSON with the hash added."""
    return content[:-1] + b',"hash":"' + record_hash.encode() + b'"}'
