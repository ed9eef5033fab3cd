"""Checks of an audit stream: of a single line (`checked_event`) and of the whole chain."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from pdp.audit.chain import GENESIS, ROTATED, chain_hash, hashed_line
from pdp.errors import AuditError
from pdp.json import canonical, parse_json


def checked_event(line: bytes, hashing: Callable[[bytes], str]) -> dict[str, Any]:
    """Return the event in a line. Raise `AuditError` if the event's hash is wrong or its JSON not canonical."""
    try:
        # Parsing is strict, because readers could interpret a duplicate key differently.
        event: dict[str, Any] = parse_json(line)
        recorded = event.pop("hash")
        content = canonical(event)
        event["hash"], computed = recorded, hashing(content)
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
        if keyed:
            hint = "set PDP_AUDIT_KEY, or `audit_key_file` of the service, to the key of this stream"
            raise AuditError("the event was written with a key, but no key was given", hint=hint)
        raise AuditError("the event was written without a key, but a key was given", hint="unset PDP_AUDIT_KEY")
    return event


ARCHIVED: Final = "audit.archived"
"""The type of the event that anchors a file with older events of a database: it names the file, and has its digest."""


class ArchivedPart(NamedTuple):
    """A file with the events `first` to `last`. `hash` is that of the last event, and `digest` that of the file."""

    first: int
    last: int
    hash: str
    file: str
    digest: str

    def precedes(self, event: Mapping[str, Any]) -> bool:
        """Return whether the file has all events before this one. After a crash, it may also have this one."""
        return self.last >= event["seq"] or (self.last, self.hash) == (event["seq"] - 1, event["prev_hash"])


def part_name(first: int, last: int) -> str:
    """Return the name of the file with these events."""
    return f"audit-{first:012d}-{last:012d}.jsonl.gz"


def anchored_part(event: Mapping[str, Any]) -> ArchivedPart | None:
    """Return the file that an event anchors; None if the event anchors no file."""
    try:
        part = ArchivedPart(**event["archive"]) if event["type"] == ARCHIVED else None
        # A forged anchor must not name another file, such as one outside the folder.
        is_own = part is not None and part.file == part_name(part.first, part.last) and part.hash + part.digest
    except (KeyError, TypeError, ValueError):
        return None
    return part if is_own else None


class Chain:
    """Checks that lines are one chain of events: those of a stream's files, in order, and of its database.

    A file may repeat the last events of the file before. The stream may begin with a file that `FileAudit` rotated, or
    later than with event 0 if an event anchors the earlier ones, which then has the number `anchor`. `first` and `last`
    are the first and the last event that were checked. `after` is an event, if any, that precedes the first one.
    """

    def __init__(self, hashing: Callable[[bytes], str], after: tuple[int, str] | None = None) -> None:
        self.first: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.anchor: int | None = None
        self._hashing = hashing
        self._after = after
        self._is_late = False  # Whether events before the first one are missing, and no anchor is found.
        self._is_new = False
        self._repeated: tuple[int, str] | None = None  # The last event of the file before, while a file repeats events.

    def begin(self) -> None:
        """Begin the next file, or the database."""
        if self._repeated is not None:
            raise AuditError(f"a file ends before event {self._repeated[0]} of an earlier file; give the oldest first")
        self._is_new = True

    def check(self, line: bytes) -> dict[str, Any]:
        """Return the event in the next line. If it is not the next event, raise an `AuditError` that says where."""
        where = f"the line after event {self.last['seq']}" if self.last else "the first line"
        try:
            event = checked_event(line.removesuffix(b"\n"), self._hashing)
        except AuditError as error:
            raise AuditError(f"{where}: {error.message}", hint=error.hint) from error
        now, before = (event["seq"], event["hash"]), (event["seq"] - 1, event["prev_hash"])
        if self._after is None:
            self._is_late = event["seq"] > 0 and event["type"] != ROTATED
            self._after = before if self._is_late or event["type"] == ROTATED else (-1, GENESIS)
        elif self._is_new and before[0] < self._after[0]:
            self._repeated, self._after = self._after, before
        is_other = self._repeated is not None and self._repeated[0] == now[0] and self._repeated != now
        if before != self._after or is_other:
            raise AuditError(f"{where}: earlier events were removed, inserted or moved")
        self._after, self._is_new = now, False
        self._repeated = None if self._repeated == now else self._repeated
        self.first, self.last = self.first or event, event
        if self._is_late and (part := anchored_part(event)) is not None and part.precedes(self.first):
            self._is_late, self.anchor = False, event["seq"]
        return event

    def finish(self) -> None:
        """Raise `AuditError` if the stream begins too late, or its last file ends too early."""
        self.begin()
        if self._is_late:
            raise AuditError("the first line: earlier events were removed, inserted or moved; no event anchors them")


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
    chain = Chain(chain_hash(key))
    count = sum(1 for _ in map(chain.check, lines))
    chain.finish()
    return count
