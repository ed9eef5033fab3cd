"""Approvals in a database. One transaction uses an approval and an idempotency key."""

from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from pdp import Approval, ApprovalRefusedError, Approvals, Pep
from pdp.approvals import approvals as approvals_module
from pdp.approvals.people import Refusal
from pdp.errors import StoreError
from pdp.json import canonical
from pdp.manifest.model import EffectiveApproval
from pdp.session import Person
from pdp.stores.approvals import ApprovalState, ApprovalStore, Grant, Transaction
from pdp.stores.keys import ApprovalUse, Begun, Fresh, IdempotencyKey, Running
from pdp.stores.sql.audit import SqlAudit
from pdp.stores.sql.database import Database
from pdp.stores.sql.keys import SqlIdempotency
from pdp.stores.sql.records import SqlApprovals
from pdp.stores.sql.tables import searchable
from tests.support import at_once, payments
from tests.support.payments import session, wire
from tests.support.scripted import Scripted, until_approved

NOW, SOON = "2026-07-01T10:00:00Z", "2026-07-01T10:05:00Z"
BOSS = {"sub": "boss", "iss": "https://id", "roles": ["payments.approver"]}
EFFECTIVE = payments.effective()
KEY = IdempotencyKey("", "officer-123", "initiate_wire", "2", "idm-4a2b")


def approval(**changes: Any) -> Approval:
    asked = Pep(EFFECTIVE, Scripted(until_approved)).decide(wire(), session(**changes)).request
    entry = EFFECTIVE.tools["initiate_wire"].model_copy(
        update={"approval": EffectiveApproval(approvers=("payments.approver",), quorum=1, expires="PT1H")}
    )
    return Approval.asked(canonical(asked), entry, ["limits.exceeded"])


def granted(approvals: Approvals) -> Approval:
    new = approvals.store.add(approval())
    return approvals.grant(new.id, BOSS, SOON)


def test_approval_is_read_as_it_was_stored(approvals: ApprovalStore) -> None:
    pending = approval()
    whole = replace(
        pending,
        id="another",
        call_digest="sha256:another",
        state=ApprovalState.DENIED,
        agent="agent:payments",
        requesters=(Person("https://id", "officer-123"), Person(None, "agent: \x00 é")),
        grants=(Grant(None, "vice", ("a", "b"), NOW), Grant("https://id", "boss", (), SOON)),
        closed_at=SOON,
        closed_by=Person(None, "boss"),
        why="too much \x00",
    )
    second = replace(pending, id="another", call_digest="sha256:another")
    for each in (pending, second):
        assert approvals.add(each) == each
    assert approvals.replace(second, whole)

    assert [approvals.get(pending.id), approvals.get("another")] == [pending, whole]
    for other in ("none", "", pending.id + "\x00", "\ud800"):
        assert approvals.get(other) is None
    assert approvals.list() == [pending, whole]
    assert approvals.list(call_digest=whole.call_digest, state=ApprovalState.DENIED) == [whole]
    assert approvals.list(call_digest="sha256:none") == []
    assert approvals.list(state=ApprovalState.GRANTED) == []


def test_call_has_at_most_one_pending_approval(approvals: ApprovalStore) -> None:
    first = approvals.add(approval())

    assert approvals.add(replace(first, id="another")) == first
    assert approvals.replace(first, replace(first, state=ApprovalState.EXPIRED))
    assert approvals.add(replace(first, id="another")).id == "another"
    assert [(each.id, each.state) for each in approvals.list()] == [(first.id, "expired"), ("another", "pending")]


def test_processes_that_share_a_store_stay_within_the_limit_of_a_run(
    approvals: ApprovalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals_module, "MOST_OF_A_RUN", 3)
    entry = EFFECTIVE.tools["initiate_wire"]
    bodies = [approval(purpose=str(number)).body for number in range(8)]

    # Each object has its own lock, like the objects of several processes.
    at_once([partial(Approvals(approvals).open, body, entry, ["limits.exceeded"]) for body in bodies])

    last = Approvals(approvals).open(approval(purpose="last").body, entry, ["limits.exceeded"])
    states = Counter(each.state for each in approvals.list())
    assert states.keys() == {"pending", "withdrawn"}
    assert (states.total(), states[ApprovalState.PENDING]) == (9, 3)
    assert approvals.list(state=ApprovalState.PENDING)[-1] == last


def test_approvals_are_listed_page_by_page(database: Database) -> None:
    approvals = SqlApprovals(database)
    first = approval()
    odd = 'officer "1"%_'
    subjects = [odd, odd.upper(), odd, "another", odd]
    stored = [
        replace(first, id=f"a{number}", call_digest=str(number), subject=subject, run_id=f"run-{number % 2}")
        for number, subject in enumerate(subjects)
    ]
    for each in stored:
        approvals.add(each)

    assert approvals.list(after="a1", limit=2) == stored[2:4]
    assert approvals.list(subject=odd, limit=2) == [stored[0], stored[2]]
    assert approvals.list(subject=odd, after="a2", limit=2) == [stored[4]]
    assert approvals.list(subject=odd.upper(), limit=1) == [stored[1]]
    assert approvals.list(run_id="run-1", tool="initiate_wire", state=ApprovalState.PENDING) == [stored[1], stored[3]]
    assert approvals.list(run_id=None, tool="another") == []
    assert approvals.list(after="a4") == approvals.list(after="none") == []


ODD = ("run\x00", "run\ufffd", "run", "é" * 300, "é" * 299, "x" * 255, "x" * 256)


def test_approvals_are_shown_page_by_page_without_gaps(database: Database) -> None:
    store, first = SqlApprovals(database), approval()
    ends = ["2026-07-01T12:00:00Z", "2026-07-01T11:00:00Z", SOON, "2026-07-01T11:00:00Z", "2026-07-01T13:00:00Z"]
    for number, (end, run) in enumerate(zip(ends, ODD, strict=False)):
        new = replace(first, id=f"a{number}", call_digest=str(number), expires_at=end, run_id=run, subject=run)
        store.add(new)
        store.add(replace(new, id=f"b{number}", call_digest=f"b{number}"))
        closed = replace(new, id=f"b{number}", call_digest=f"b{number}", state=ApprovalState.DENIED)
        assert store.replace(store.get(f"b{number}"), closed)  # type: ignore[arg-type]

    def pages(**options: Any) -> list[str]:
        shown: list[str] = []
        while page := store.page(2, after=shown[-1] if shown else None, **options):
            shown += [each.id for each in page]
        return shown

    assert pages(waiting_at=SOON) == ["a1", "a3", "a0", "a4"]
    assert pages() == ["b4", "b3", "b2", "b1", "b0"]
    assert pages(state=ApprovalState.GRANTED) == []
    assert store.page(2, after="unknown") == []
    assert pages(opened_from=NOW, opened_before=SOON) == pages()
    assert pages(opened_before=NOW) == pages(opened_from=SOON, waiting_at=NOW) == []
    for number, run in enumerate(ODD[:5]):
        assert pages(run_id=run) == pages(subject=run, tool="initiate_wire") == [f"b{number}"]
        assert [each.id for each in store.list(run_id=run)] == [f"a{number}", f"b{number}"]
    assert store.list(subject="\ud800") == store.list(run_id=searchable(ODD[3])) == []


def test_replacing_an_approval_fails_if_the_stored_approval_has_changed(approvals: ApprovalStore) -> None:
    first = approvals.add(approval())
    once = replace(first, grants=(Grant(None, "boss", ("r",), NOW),))

    assert approvals.replace(first, once)
    assert not approvals.replace(first, replace(first, state=ApprovalState.GRANTED))
    assert not approvals.replace(replace(first, id="another"), once)
    assert approvals.list() == [once]


def test_concurrent_openings_for_one_call_create_one_approval(approvals: ApprovalStore) -> None:
    first = approval()
    added = at_once([partial(approvals.add, replace(first, id=str(number))) for number in range(20)])

    assert added == list(approvals.list()) * 20


def test_approvals_survive_a_restart(database: Database) -> None:
    first = granted(Approvals(SqlApprovals(database)))
    database.close()

    approvals = Approvals(SqlApprovals(database))
    assert approvals.usable(first.call_digest, SOON) == first
    used = approvals.consume(first, SOON)
    assert used == replace(first, state=ApprovalState.CONSUMED, closed_at=SOON)
    with pytest.raises(ApprovalRefusedError):
        approvals.consume(first, SOON)


def begin(database: Database, approvals: SqlApprovals, old: Approval, key: str = "idm-4a2b") -> Begun | None:
    """Begin a key that uses an approval. Return None if the approval was already used."""
    new = replace(old, state=ApprovalState.CONSUMED, closed_at=SOON)

    def consume(transaction: Transaction | None) -> None:
        if not approvals.replace(old, new, within=transaction):
            raise LookupError

    with suppress(LookupError):
        use = ApprovalUse(old.id, consume)
        return SqlIdempotency(database).begin(KEY._replace(key=key), "sha256:a", ttl=None, now=0.0, approval=use)
    return None


def test_approval_and_key_are_used_in_one_transaction(database: Database) -> None:
    approvals = SqlApprovals(database)
    first = granted(Approvals(approvals))

    assert isinstance(begin(database, approvals, first), Fresh)
    assert approvals.list() == [replace(first, state=ApprovalState.CONSUMED, closed_at=SOON)]
    # The used approval cannot be used with the second key, and the first key is still running.
    assert begin(database, approvals, first, "idm-2") is None
    assert begin(database, approvals, first) == Running(first.id)
    assert SqlIdempotency(database).look(KEY._replace(key="idm-2"), "sha256:a", 0.0) is None


def test_use_of_an_expired_approval_records_its_expiry_and_takes_no_key(database: Database) -> None:
    with closing(SqlAudit(database)) as audit:
        approvals = Approvals(SqlApprovals(database), audit)
        first = approvals.store.add(approval())
        granted, keys = approvals.grant(first.id, BOSS, SOON), SqlIdempotency(database)

        def step(consume: Callable[[Transaction | None], object]) -> Begun:
            return keys.begin(KEY, "sha256:a", ttl=None, now=0.0, approval=ApprovalUse(granted.id, consume))

        with pytest.raises(ApprovalRefusedError) as caught:
            approvals.consume_with(granted, granted.expires_at, step)

        assert caught.value.reason is Refusal.EXPIRED
        assert approvals.get(granted.id) == replace(granted, state=ApprovalState.EXPIRED)
        assert [row.type for row in audit.lines(-1, 9)] == ["approval.granted", "approval.expired"]
        assert keys.look(KEY, "sha256:a", 0.0) is None


def test_only_one_of_concurrent_calls_with_different_keys_uses_the_approval(database: Database) -> None:
    approvals = SqlApprovals(database)
    first = granted(Approvals(approvals))
    begun = at_once([partial(begin, database, approvals, first, str(number)) for number in range(10)])

    assert Counter(type(answer).__name__ for answer in begun) == {"Fresh": 1, "NoneType": 9}


def test_approval_store_ignores_a_transaction_of_another_database(database: Database, tmp_path: Path) -> None:
    approvals = SqlApprovals(database)
    first = granted(Approvals(approvals))

    with Database.open(f"sqlite:///{tmp_path / 'other.db'}", upgrade=True) as other:
        assert isinstance(begin(other, approvals, first), Fresh)
    assert [each.state for each in approvals.list()] == ["consumed"]


@pytest.mark.parametrize("record", ["nonsense", "{}"])
def test_damaged_approval_record_raises_an_error(database: Database, record: str) -> None:
    approvals = SqlApprovals(database)
    first = granted(Approvals(approvals))
    with database.write() as connection:
        connection.execute(text("UPDATE pdp_approvals SET record = :record"), {"record": record})

    for step in (
        lambda: approvals.get(first.id),
        approvals.list,
        lambda: approvals.replace(first, first),
        lambda: begin(database, approvals, first),
    ):
        with pytest.raises(StoreError) as caught:
            step()
        assert str(caught.value) == (
            "a record of pdp_approvals cannot be read (another program changed it, or a newer release wrote it)"
        )
