"""The hash chain of an audit stream begins with the first event, and verification detects every change."""

import hashlib
import hmac
from typing import Any

import pytest

from pdp.audit.chain import GENESIS, AuditEvent, AuditLog, MemoryAudit, recordable
from pdp.audit.verify import verify_chain
from pdp.errors import AuditError

KEY = bytes(range(32))


class Keyed(MemoryAudit):
    def __init__(self) -> None:
        super().__init__()
        AuditLog.__init__(self, KEY)


def event(number: int = 0, **fields: Any) -> AuditEvent:
    event: AuditEvent = {
        "time": "2026-07-01T10:00:00.000Z",
        "type": "tool.initiate_wire.dispatch",
        "tool_name": str(number),
    }
    return {**event, **fields}  # type: ignore[typeddict-item]


def test_event_has_every_field_of_the_schema() -> None:
    log = MemoryAudit()
    log.append(event(codes=("limits.exceeded",)))

    assert set(log.events[0]) == {
        "seq", "time", "type", "request_id", "tool_call_id", "run_id", "subject", "agent", "tool_name",
        "manifest_version",
        "manifest_digest", "arguments_digest", "status", "in_manifest", "schema_valid", "idempotency_missing",
        "risk_tier", "pdp_action", "step_name", "rejection", "reason", "replayed", "verdict", "codes", "decision_id",
        "bundle_revision", "approval_id", "grant_id", "idempotency_key", "outcome", "result_digest",
        "retrieval_snapshot",
        "sources", "spent", "flow", "error_code", "duration_ms", "prev_hash", "hash",
    }  # fmt: skip
    assert log.events[0]["codes"] == ["limits.exceeded"]


def test_audit_events_are_hash_chained_from_the_first_event() -> None:
    log = MemoryAudit()
    for number in range(3):
        log.append(event(number))

    first, second, third = log.events
    assert [each["seq"] for each in log.events] == [0, 1, 2]
    assert (first["prev_hash"], second["prev_hash"], third["prev_hash"]) == (GENESIS, first["hash"], second["hash"])
    assert verify_chain(list(log._lines)) == 3
    assert verify_chain(line + b"\n" for line in log._lines) == 3


def derived(use: bytes) -> bytes:
    return hashlib.sha256(b"tool-pdp audit " + use + b"\0" + hashlib.sha256(KEY).digest()).digest()


def test_hashes_and_payload_digests_use_separate_derived_keys() -> None:
    log, again = Keyed(), Keyed()
    log.append(event())
    again.append(event())
    [line] = log._lines
    content, _, known = line.rpartition(b',"hash":')

    assert log.events == again.events
    assert known == b'"hmac-sha256:%s"}' % hmac.digest(derived(b"chain"), content + b"}", "sha256").hex().encode()
    assert log.digest(b"47500") == "hmac-sha256:" + hmac.digest(derived(b"payload"), b"47500", "sha256").hex()
    assert verify_chain([line], KEY) == 1


@pytest.mark.parametrize(
    ("written", "key", "message"),
    [
        (Keyed, None, "the event was written with a key, but no key was given"),
        (Keyed, b"x" * 32, "the hash does not match: the event was changed, or written with another key"),
        (MemoryAudit, KEY, "the event was written without a key, but a key was given"),
    ],
)
def test_audit_hash_chain_can_be_verified_only_with_its_own_key(
    written: type[MemoryAudit], key: bytes | None, message: str
) -> None:
    log = written()
    log.append(event())

    with pytest.raises(AuditError) as caught:
        verify_chain(log._lines, key)

    assert caught.value.message == f"the first line: {message}"


def test_payload_digests_of_streams_without_a_key_differ() -> None:
    assert MemoryAudit().digest(b"47500") != MemoryAudit().digest(b"47500")


LONG = "x" * 300


def test_recordable_shortens_different_texts_to_different_texts() -> None:
    texts = [
        "ann", "x" * 255, "x" * 256, LONG, LONG + "y", "é" * 255, "é" * 256, "a\ud800", "a\\ud800", "a\ud801",
        "\ud800" * 200, "😀" * 300,
    ]  # fmt: skip
    texts += [str(recordable(text)) for text in texts if recordable(text) != text]
    forms = [str(recordable(text)) for text in texts]

    assert len(set(forms)) == len(set(texts))
    assert all(len(form) <= 256 and form.encode() for form in forms)
    assert forms[:2] == texts[:2]
    assert recordable(LONG) == "x" * 184 + "~sha256:" + hashlib.sha256(LONG.encode()).hexdigest()
    assert (recordable(None), recordable(5)) == (None, "5")


HASH, ORDER = "the hash does not match", "earlier events were removed, inserted or moved"
NONE = "not an event"


def lines_of(count: int) -> list[bytes]:
    log = MemoryAudit()
    for number in range(count):
        log.append(event(number))
    return list(log._lines)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            lambda a, b, c: [a, b.replace(b'"tool_name":"1"', b'"tool_name":"9"'), c],
            f"the line after event 0: {HASH}",
            id="changed",
        ),
        pytest.param(
            lambda a, b, c: [a, b.replace(b'":', b'": ', 1), c], f"the line after event 0: {HASH}", id="another blank"
        ),
        pytest.param(lambda a, b, c: [a, c], f"the line after event 0: {ORDER}", id="left out"),
        pytest.param(lambda a, b, c: [b, a, c], f"the line after event 1: {ORDER}", id="moved"),
        pytest.param(lambda a, b, c: [a, b, c, c], f"the line after event 2: {ORDER}", id="repeated"),
        pytest.param(lambda a, b, c: [b, c], f"the first line: {ORDER}; no event anchors them", id="head cut off"),
        pytest.param(
            lambda a, b, c: [a, b'{"verdict":"ALLOW",' + b[1:], c], f"the line after event 0: {NONE}", id="a key twice"
        ),
        pytest.param(lambda a, b, c: [a, b"{"], f"the line after event 0: {NONE}", id="not JSON"),
        pytest.param(lambda a, b, c: [a, b"[]"], f"the line after event 0: {NONE}", id="not an object"),
        pytest.param(lambda a, b, c: [a, b"{}"], f"the line after event 0: {NONE}", id="no hash"),
    ],
)
def test_verification_detects_changed_removed_and_moved_events(change: Any, message: str) -> None:
    with pytest.raises(AuditError) as caught:
        verify_chain(change(*lines_of(3)))

    assert str(caught.value) == message


def test_audit_event_that_is_not_json_is_rejected_and_the_hash_chain_remains_valid() -> None:
    log = MemoryAudit()
    with pytest.raises(AuditError, match="audit event cannot be written"):
        log.append(event(request_id="\ud800"))
    log.append(event())

    assert isinstance(log, AuditLog)
    assert verify_chain(list(log._lines)) == 1
