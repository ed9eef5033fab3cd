"""What an audit event holds: who asked for what, what was decided, and what came of it. Payloads are not in it.

Arguments and results stand as keyed digests (HMAC-SHA-256 with a key of the stream, as small payloads can be guessed).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Required, TypedDict

from pdp.json import digest

if TYPE_CHECKING:
    from collections.abc import Sequence

ROTATED: Final = "audit.rotated"
"""The type of the first event of a file that goes on from one that was rotated."""

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


EMPTY: Final[dict[str, Any]] = {
    name: () if name == "codes" else None for name in sorted((*AuditEvent.__annotations__, "prev_hash", "seq"))
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
