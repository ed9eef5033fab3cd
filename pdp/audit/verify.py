"""Verify a stream of audit events: each line by itself (`checked_event`), and the whole chain."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pdp.audit.chain import GENESIS, ROTATED, chain_hash, hashed_line
from pdp.errors import AuditError
from pdp.json import canonical, parse_json


def checked_event(line: bytes, hashing: Callable[[bytes], str]) -> dict[str, Any]:
    """Return the event of one line, without its line break, its hash and its very bytes checked.

    AuditError: it was changed, or is not an event, or is keyed where `hashing` is not, or the other way round.
    """
    try:
        # Strictly: of two keys of one name, another reader could take the other one.
        event: dict[str, Any] = parse_json(line)
        content = canonical({name: value for name, value in event.items() if name != "hash"})
        known, computed = event["hash"], hashing(content)
        keyed, key_given = known.startswith("hmac-"), computed.startswith("hmac-")
        intact = line == hashed_line(content, known) and known == computed
        _ = event["seq"] + 0, event["prev_hash"], event["type"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AuditError("not an event") from error
    if not intact:
        if keyed == key_given:
            raise AuditError("the hash does not match" + (": another key wrote it, or it was changed" if keyed else ""))
        raise AuditError("it is keyed, and no key was given" if keyed else "it is not keyed, and a key was given")
    return event


def chained_events(lines: Iterable[bytes], key: bytes | None = None) -> Iterator[dict[str, Any]]:
    """Check the events of a stream one after the other, and return each.

    The lines begin with its first event, or with the first one of a file that goes on from a rotated one. AuditError:
    an event was changed, left out, put in or moved; the message names the last one before it.
    """
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
            raise AuditError(f"{where}: events before it were left out, put in or moved")
        after = event["seq"], event["hash"]
        yield event


def verify_chain(lines: Iterable[bytes], key: bytes | None = None) -> int:
    """Check a stream and return the number of events. Arguments and errors are those of `chained_events`."""
    return sum(1 for _ in chained_events(lines, key))
