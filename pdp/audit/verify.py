"""Checks of an audit stream: of a single line (`checked_event`) and of the whole chain."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pdp.audit.chain import GENESIS, ROTATED, chain_hash, hashed_line
from pdp.errors import AuditError
from pdp.json import canonical, parse_json


def checked_event(line: bytes, hashing: Callable[[bytes], str]) -> dict[str, Any]:
    """Return the event in a line. Raise `AuditError` if the event's hash is wrong or its JSON not canonical."""
    try:
        # Parsing is strict, because readers could interpret a duplicate key differently.
        event: dict[str, Any] = parse_json(line)
        content = canonical({name: value for name, value in event.items() if name != "hash"})
        recorded, computed = event["hash"], hashing(content)
        keyed, key_given = recorded.startswith("hmac-"), computed.startswith("hmac-")
        intact = line == hashed_line(content, recorded) and recorded == computed
        _ = event["seq"] + 0, event["prev_hash"], event["type"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AuditError("not an event") from error
    if not intact:
        if keyed == key_given:
            raise AuditError(
                "the hash does not match" + (": the event was changed, or written with another key" if keyed else "")
            )
        raise AuditError(
            "the event was written with a key, but no key was given"
            if keyed
            else "the event was written without a key, but a key was given"
        )
    return event


def chained_events(lines: Iterable[bytes], key: bytes | None = None) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream. After tampering, raise an `AuditError` that names the last valid event."""
    hashing = chain_hash(key)
    after = None
    for line in lines:
        where = "the first line" if after is None else f"the line after event {after[0]}"
        try:
            event = checked_event(line.removesuffix(b"\n"), hashing)
        except AuditError as error:
            raise AuditError(f"{where}: {error.message}") from error
        if after is None:
            after = (event["seq"] - 1, event["prev_hash"]) if event["type"] == ROTATED else (-1, GENESIS)
        if (event["seq"] - 1, event["prev_hash"]) != after:
            raise AuditError(f"{where}: earlier events were removed, inserted or moved")
        after = event["seq"], event["hash"]
        yield event


def verify_chain(lines: Iterable[bytes], key: bytes | None = None) -> int:
    """Check all events of a stream and return how many there are.

    Args:
        lines: the lines of a file of the stream, from the file's first event.
        key: the key of the stream; None for a stream without a key.

    Raises:
        AuditError: an event was changed, removed, inserted or moved. The message names the last valid event.

    Examples:
        >>> from pathlib import Path
        >>> from pdp import FileAudit
        >>> key = b"32 bytes or more of random data."
        >>> audit = FileAudit(Path("verified.jsonl"), key=key)
        >>> audit.append({"time": "2026-07-01T10:00:00.000Z", "type": "note"})
        >>> audit.close()
        >>> verify_chain(Path("verified.jsonl").read_bytes().splitlines(), key)
        1
    """
    return sum(1 for _ in chained_events(lines, key))
