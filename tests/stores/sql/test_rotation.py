"""Rotation of the stream in a database: no event is lost, and a crash at any point leaves a stream that verifies."""

import gzip
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from pdp.audit.chain import AuditEvent, chain_hash
from pdp.audit.verify import Chain
from pdp.errors import AuditError
from pdp.stores.sql import audit as audit_module
from pdp.stores.sql.audit import SqlAudit
from pdp.stores.sql.database import Database
from pdp.stores.sql.events import Wanted
from pdp.stores.sql.tables import audit
from tests.support import at_once

KEY = b"k" * 32


def new_event(number: int, **fields: Any) -> AuditEvent:
    return {"time": f"2026-07-01T{number:06}", "type": "tool.x.dispatch", "tool_name": f"t{number}", **fields}  # type: ignore[typeddict-item]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(audit_module, "_PART", 40)
    monkeypatch.setattr(audit_module, "_DELETED", 7)
    made = tmp_path / "archive"
    made.mkdir()
    return made


@pytest.fixture
def log(database: Database) -> Iterator[SqlAudit]:
    with closing(SqlAudit(database, KEY)) as opened:
        for number in range(100):
            opened.append(new_event(number))
        yield opened


def verified(log: SqlAudit, folder: Path | None = None) -> Chain:
    """Check the files in a folder, if any, and then the database."""
    chain = Chain(chain_hash(KEY))
    for path in sorted(folder.iterdir()) if folder else ():
        chain.begin()
        for line in gzip.decompress(path.read_bytes()).splitlines():
            chain.check(line)
    chain.begin()
    list(log.stored(chain.check, {}))
    chain.finish()
    return chain


def numbers(log: SqlAudit) -> list[int]:
    return [row.seq for row in log.lines(-1, 1000)]


def test_rotation_moves_all_events_but_the_last_to_files(log: SqlAudit, folder: Path) -> None:
    parts = [*log.rotate(folder)]

    assert [part[:2] for part in parts] == [(0, 39), (40, 79), (80, 98)]
    assert sorted(path.name for path in folder.iterdir()) == [part.file for part in parts]
    assert numbers(log) == [99, 100, 101, 102]
    whole, rest = verified(log, folder), verified(log)
    assert (whole.first["seq"], whole.last["seq"], whole.anchor) == (0, 102, None)
    assert (rest.first["seq"], rest.last, rest.anchor) == (99, whole.last, 102)
    assert [log.link_fault(seq) for seq in (99, 100)] == [None, None]
    assert log.page(Wanted(every=True), -1, 2)[0][0].seq == 99
    assert log.search(Wanted(tool="nothing"), 5).older is None

    log.append(new_event(103))
    assert [part[:2] for part in log.rotate(folder)] == [(99, 102)]
    assert verified(log, folder).first["seq"] == 0
    assert [*log.rotate(folder, "2026-07-01T000103")] == []


def test_rotation_keeps_events_from_a_time_and_from_the_first_recorded_request(log: SqlAudit, folder: Path) -> None:
    assert [part[:2] for part in log.rotate(folder, "2026-07-01T000010")] == [(0, 9)]
    with log._database.write() as connection:
        add = text("INSERT INTO pdp_requests (seq, expires_at, sealed) VALUES (:seq, :expires, :sealed)")
        for seq, expires in ((12, 1.0), (20, 1e11)):
            connection.execute(add, {"seq": seq, "expires": expires, "sealed": b"x"})

    assert [part[:2] for part in log.rotate(folder)] == [(10, 19)]
    assert verified(log, folder).last["seq"] == 101


class _CrashError(Exception):
    pass


@pytest.mark.parametrize("point", ["write_part", "append", "check_part", "sleep"])
def test_rotation_that_crashed_is_finished_by_the_next_one(
    log: SqlAudit, folder: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def crash(*_: Any) -> Any:
        raise _CrashError

    with monkeypatch.context() as patched:
        if point == "append":
            patched.setattr(log, "append", crash)
        else:
            patched.setattr(time if point == "sleep" else audit_module, point, crash)
        with pytest.raises(_CrashError):
            list(log.rotate(folder))
    first = numbers(log)[0]
    assert first == (7 if point == "sleep" else 0)
    assert log.link_fault(first) is None
    assert verified(log, folder).first["seq"] == 0
    assert verified(log).first["seq"] == first

    log.append(new_event(101))
    assert next(log.rotate(folder)).first == 0
    assert verified(log, folder).last["seq"] >= 101


def test_rotation_deletes_no_event_that_its_file_does_not_have(
    log: SqlAudit, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: Any) -> Any:
        raise _CrashError

    with monkeypatch.context() as patched, suppress(_CrashError):
        patched.setattr(time, "sleep", crash)
        list(log.rotate(folder))
    (path,) = folder.iterdir()
    content = path.read_bytes()
    for damaged in (None, content + b"x"):
        path.unlink(missing_ok=True)
        if damaged is not None:
            path.write_bytes(damaged)
        with pytest.raises(AuditError, match="events 0 to 39 stay in the database"):
            list(log.rotate(folder))
        assert numbers(log)[0] == 7
    path.write_bytes(content)
    assert len([*log.rotate(folder)]) == 3


def test_rotation_does_not_replace_a_file_with_other_content(log: SqlAudit, folder: Path) -> None:
    name = folder / "audit-000000000000-000000000039.jsonl.gz"
    name.write_bytes(b"of another stream")

    with pytest.raises(AuditError, match="is another file"):
        list(log.rotate(folder))
    assert (name.read_bytes(), numbers(log)[0], [*folder.iterdir()]) == (b"of another stream", 0, [name])


@pytest.mark.parametrize(
    "forged",
    [{"file": "../audit"}, {"file": "/dev/zero"}, {"file": "a\0"}, {"last": 500}, {"first": 0.5}, {"last": "9"}],
)
def test_forged_anchor_cannot_name_another_file(log: SqlAudit, folder: Path, forged: dict[str, Any]) -> None:
    named = {"first": 0, "last": 9, "hash": "x", "file": "audit-000000000000-000000000009.jsonl.gz", "digest": "x"}
    anchor = new_event(100, archive={**named, **forged}) | {"type": "audit.archived"}
    log.append(anchor)

    assert [part[:2] for part in log.rotate(folder)] == [(0, 39), (40, 79), (80, 99)]
    assert verified(log, folder).first["seq"] == 0


def test_event_is_not_longer_than_a_line_of_a_file(log: SqlAudit) -> None:
    with pytest.raises(AuditError, match="exceeds the limit of 131071 bytes"):
        log.append(new_event(100, reason="x" * 131_072))


def test_changed_stream_is_not_rotated(log: SqlAudit, folder: Path) -> None:
    rows = [row._asdict() for row in log.lines(-1, 1000)]
    fifth = audit.c.seq == 5
    for change in (
        audit.update().where(fifth).values(line=audit.c.line + " "), audit.update().where(fifth).values(tool="other"),
        audit.delete().where(fifth), audit.delete().where(audit.c.seq == 0),
    ):  # fmt: skip
        with log._database.write() as connection:
            connection.execute(change)
        with pytest.raises(AuditError):
            list(log.rotate(folder))
        with log._database.write() as connection:
            connection.execute(audit.delete())
            connection.execute(audit.insert(), rows)
        assert [*folder.iterdir()] == []
    assert len([*log.rotate(folder)]) == 3


def test_events_removed_by_hand_are_noticed_after_a_rotation(log: SqlAudit, folder: Path) -> None:
    next(iter(log.rotate(folder)))
    with log._database.write() as connection:
        connection.execute(audit.delete().where(audit.c.seq <= 40))

    assert log.link_fault(41) == "earlier events were removed, inserted or moved"
    for checked in (None, folder):
        with pytest.raises(AuditError, match="earlier events were removed"):
            verified(log, checked)
    with pytest.raises(AuditError, match="the first line: earlier events were removed"):
        list(log.rotate(folder))


def test_rotations_at_once_lose_no_event_of_running_writers(log: SqlAudit, folder: Path) -> None:
    moved: list[int] = []

    def append() -> None:
        for number in range(100, 300):
            log.append(new_event(number))

    def rotate() -> None:
        for _ in range(4):
            with closing(SqlAudit(log._database, KEY)) as other:
                try:
                    moved.extend(part.last for part in other.rotate(folder))
                except AuditError as error:
                    assert "is being rotated by another process" in error.message  # noqa: PT017

    at_once([append, rotate, rotate])
    list(log.rotate(folder))

    chain = verified(log, folder)
    assert (chain.first["seq"], len(moved) > 2, verified(log).anchor is not None) == (0, True, True)
    kept = {line for path in folder.iterdir() for line in gzip.decompress(path.read_bytes()).splitlines()}
    kept |= {row.line.encode() for row in log.lines(-1, 1000)}
    assert sum(b'"type":"tool.x.dispatch"' in line for line in kept) == 300
