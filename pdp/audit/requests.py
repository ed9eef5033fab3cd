"""Records the request and the answer of each decision, encrypted, so that it can be decided again.

A record is encrypted with AES-256-GCM and bound to its audit event: the fields `BOUND` of the event are authenticated
data, so a record opens for its own event only. If the key is destroyed, no record can be opened.
"""

from __future__ import annotations

import os
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from errno import ENOSPC
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import orjson

from pdp.audit.chain import KEY_BYTES, AuditEvent, keyed_hash
from pdp.clock import to_seconds
from pdp.decision import Decision
from pdp.errors import AuditError
from pdp.installed import extra
from pdp.json import canonical

with extra("follow"):
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

REQUESTS_KEY: Final = "PDP_REQUESTS_KEY"
"""The environment variable from which commands read the key of recorded requests."""

DAYS: Final = 30.0
"""The days for which requests are kept by default."""

BOUND: Final = (
    "decision_id", "request_digest", "request_id", "time", "tool_name", "run_id", "manifest_digest", "bundle_revision",
    "verdict", "codes",
)  # fmt: skip
"""The fields of an event to which its record is bound."""

_NONCE: Final = 12
_DAY: Final = 86_400
_SUFFIX: Final = ".requests"


class RecordedRequest(NamedTuple):
    """An opened record: the request as the engine got it, and the decision as `plain_answer` returns it."""

    body: bytes
    answer: bytes


class Requests:
    """Encrypts and opens recorded requests with a key of at least 32 bytes. Records are kept for `days`."""

    def __init__(self, key: bytes, days: float = DAYS) -> None:
        if len(key) < KEY_BYTES:
            raise AuditError(
                f"the key of the recorded requests is shorter than {KEY_BYTES} bytes",
                hint="create a key with `openssl rand -hex 32`",
            )
        self._cipher = AESGCM(HKDF(SHA256(), 32, None, b"tool-pdp requests").derive(key))
        self._digest = keyed_hash(key, b"tool-pdp request")
        self.days = days

    def seal(self, event: AuditEvent, body: bytes, decision: Decision) -> AuditEvent:
        """Return the event with the keyed digest of its request, and with the record, which streams store beside it."""
        nonce = os.urandom(_NONCE)
        recorded: dict[str, Any] = {**event, "request_digest": self._digest(body)}
        text = body + b"\n" + plain_answer(decision)
        recorded["sealed"] = nonce + self._cipher.encrypt(nonce, text, _bound(recorded))
        return cast("AuditEvent", recorded)

    def open(self, event: Mapping[str, Any], sealed: bytes) -> RecordedRequest:
        """Return the record of an event. Raise `AuditError` for another key, or a record of another event."""
        try:
            text = self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], _bound(event))
        except (InvalidTag, ValueError, TypeError):
            raise AuditError(
                f"event {event.get('seq')}: the recorded request cannot be opened: event or record were changed or "
                "moved, or the key is another one"
            ) from None
        body, _, answer = text.partition(b"\n")
        return RecordedRequest(body, answer)

    def keep(self, event: AuditEvent) -> None:
        """Store the record of an event that is about to be written. A database does this with the event itself."""


class FileRequests(Requests):
    """Stores recorded requests in a folder, for `FileAudit`. Each day has one file.

    Args:
        folder: the folder, which is created if it does not exist.
        key: at least 32 bytes. Keep it elsewhere, because it opens all requests.
        days: the age at which the file of a day is deleted, when a new day begins.

    Raises:
        AuditError: the key is too short, or the folder cannot be created.

    Examples:
        >>> from pathlib import Path
        >>> from pdp import FileAudit, Pep
        >>> requests = FileRequests(Path("requests"), key=b"32 bytes or more of random data.")
        >>> audit = FileAudit(Path("decisions.jsonl"), requests=requests)
        >>> call = {"tool": "lookup_beneficiary", "arguments": {"payee_name": "Acme", "invoice_ref": "INV-8842"}}
        >>> with Pep.from_project("pdp.yaml", audit=audit) as pep:
        ...     decision = pep.decide(call, {"claims": {"sub": "officer-123"}}).decision
        >>> audit.close()
        >>> list(requests.load()) == [decision.decision_id]
        True
    """

    def __init__(self, folder: Path, *, key: bytes, days: float = DAYS) -> None:
        super().__init__(key, days)
        self._folder = folder.absolute()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise AuditError(f"folder {folder} cannot be created: {error.strerror}") from error

    def keep(self, event: AuditEvent) -> None:
        """Append the record of an event to the file of its day. The caller has locked the audit stream."""
        recorded = cast("dict[str, Any]", event)
        path = self._folder / f"{event['time'][:10]}{_SUFFIX}"
        if not path.exists():
            last = to_seconds(time.time() - self.days * _DAY)[:10]
            for old in self._folder.glob(f"*{_SUFFIX}"):
                if old.name < last:
                    old.unlink(missing_ok=True)
        # The line break comes first, so that a line that a killed process has left incomplete damages no other line.
        line = f"\n{event['decision_id']} {b64encode(recorded['sealed']).decode()}".encode()
        with path.open("ab", buffering=0) as file:
            if file.write(line) < len(line):
                raise OSError(ENOSPC, os.strerror(ENOSPC))

    def load(self) -> dict[str, bytes]:
        """Return all records by `decision_id`. Lines that are incomplete are left out."""
        records: dict[str, bytes] = {}
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            for line in filter(None, path.read_bytes().splitlines()):
                decision_id, _, text = line.partition(b" ")
                with suppress(ValueError):
                    records[decision_id.decode()] = b64decode(text, validate=True)
        return records


def _bound(event: Mapping[str, Any]) -> bytes:
    return orjson.dumps([event.get(name) for name in BOUND])


def plain_answer(decision: Decision) -> bytes:
    """Return a decision in canonical form, as an engine's answer that names neither request nor bundle."""
    whole = decision.as_json()
    for reason in whole["reasons"]:
        reason.pop("explanation", None)  # The enforcement point added it.
    return canonical({name: whole[name] for name in ("verdict", "reasons", "obligations")} | {"bundle": None})
