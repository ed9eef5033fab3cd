"""Tools run through the enforcement point: once for each key, whatever happens, in memory and in SQLite."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from pdp import Approvals, Evaluation, MemoryAudit, Pep, Verdict
from pdp.audit.event import AuditEvent
from pdp.errors import StoreError
from pdp.execution.failures import ToolArgumentError
from pdp.json import digest
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.load import load_effective
from pdp.proposal import Execution, Proposal
from pdp.stores.actions import Action, ActionState
from pdp.stores.approvals import ApprovalState
from pdp.stores.keys import Begun, IdempotencyKey, IdempotencyStore, Unknown
from pdp.stores.memory import MemoryIdempotency
from pdp.stores.sql.database import Database
from pdp.stores.sql.keys import SqlIdempotency
from pdp.stores.sql.records import SqlActions, SqlApprovals
from tests.support import desk
from tests.support.desk import CHIEF, SOON, Desk, propose, session, told

Way = Callable[..., Evaluation]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> EffectiveManifest:
    return desk.effective(tmp_path_factory.mktemp("desk"))


@pytest.fixture(scope="module")
def pep(manifest: EffectiveManifest) -> Iterator[Pep]:
    """An enforcement point to be changed by each test, so that the engine is made once."""
    with desk.engine(manifest) as engine:
        yield Pep(manifest, engine)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path}/pdp.db", upgrade=True) as opened:
        yield opened


@pytest.fixture(params=["memory", "sqlite"])
def keys(request: pytest.FixtureRequest) -> IdempotencyStore:
    if request.param == "memory":
        return MemoryIdempotency()
    return SqlIdempotency(request.getfixturevalue("store"))


def waiting(pep: Pep, proposal: Any, session: Any) -> Evaluation:
    return pep.call(proposal, session)


def asynchronously(pep: Pep, proposal: Any, session: Any) -> Evaluation:
    return asyncio.run(pep.acall(proposal, session))


both_ways = pytest.mark.parametrize("call", [waiting, asynchronously])


def own(pep: Pep, works: Desk, **options: Any) -> Pep:
    return pep.with_changes(audit=MemoryAudit(), tools=works.tools(), **options)


def failure(evaluation: Evaluation) -> tuple[str, str, dict[str, Any]]:
    found = evaluation.outcome.failure
    assert found is not None
    return found.code, found.message, found.details


def key_of(proposal: dict[str, Any], key: str = "key-1") -> tuple[IdempotencyKey, str]:
    """The key of a call of Ann's, and the digest of its arguments."""
    return IdempotencyKey("", "ann", proposal["tool"], "1", key), digest(Proposal.read(proposal).text)


@both_ways
def test_the_same_call_with_the_same_key_gives_the_result_of_then(pep: Pep, keys: IdempotencyStore, call: Way) -> None:
    works = Desk()
    used = own(pep, works, keys=keys)
    first, again = (call(used, propose("book_entry"), session()) for _ in range(2))

    assert [(each.verdict, each.executed, each.result) for each in (first, again)] == [
        (Verdict.ALLOW, True, {"number": 1, "account": "cash"}),
        (Verdict.ALLOW, False, {"number": 1, "account": "cash"}),
    ]
    assert works.runs == [("book_entry", 5)]
    assert told(used) == [
        ("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.result", "succeeded"),
        ("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.result", "succeeded"),
    ]  # fmt: skip


@both_ways
def test_the_same_key_for_other_arguments_is_a_deny(pep: Pep, keys: IdempotencyStore, call: Way) -> None:
    works = Desk()
    used = own(pep, works, keys=keys)
    call(used, propose("book_entry"), session())
    other = call(used, propose("book_entry", amount=6), session())

    assert (other.verdict, other.codes, other.executed) == (Verdict.DENY, ("idempotency.conflict",), False)
    assert other.outcome.rejection is not None
    assert other.outcome.rejection.reason == (
        "DENY: idempotency.conflict: the idempotency key stands for a call with other arguments"
    )
    assert works.runs == [("book_entry", 5)]
    assert told(used)[2:] == [("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.dispatch", "DENY")]


@pytest.mark.parametrize(
    "changes",
    [
        {"claims": {**session().claims, "sub": "ben"}},
        {"claims": {**session().claims, "iss": "https://id"}},
        {"idempotency_key": "key-2"},
    ],
)
def test_the_key_of_somebody_else_is_another_key(pep: Pep, keys: IdempotencyStore, changes: dict[str, Any]) -> None:
    works = Desk()
    used = own(pep, works, keys=keys)
    ran = [used.call(propose("book_entry"), each).executed for each in (session(), session(**changes))]

    assert (ran, len(works.runs)) == ([True, True], 2)


@both_ways
def test_a_run_that_a_crash_has_left_is_unknown_and_never_runs_again(
    pep: Pep, keys: IdempotencyStore, call: Way
) -> None:
    works = Desk()
    used = own(pep, works, keys=keys)
    key, arguments = key_of(propose("book_entry"))
    keys.begin(key, arguments, ttl=None, now=0.0, lasting=1.0)
    came = call(used, propose("book_entry"), session())

    assert (came.verdict, came.executed, came.result, works.runs) == (Verdict.ALLOW, False, None, [])
    told_of = "a call with the same idempotency key was started before, and nobody knows what came of it"
    assert failure(came) == ("TOOL_EXECUTION_FAILED", f"{told_of}; it is not run again", {"effect": "unknown"})
    assert told(used)[1:] == [("tool.book_entry.result", "unknown")]

    keys.settle(key, Execution(result={"number": 7}), now=2.0)
    assert call(used, propose("book_entry"), session()).result == {"number": 7}


@both_ways
def test_a_live_run_of_another_thread_is_waited_for(pep: Pep, keys: IdempotencyStore, call: Way) -> None:
    runs, entered, may_end = [], threading.Event(), threading.Event()

    def book_entry(account: str, amount: float) -> str:
        runs.append(account)
        entered.set()
        assert may_end.wait(30)
        return "booked"

    class Asked:
        """Lets the first run end as soon as the second call has found it running."""

        blocking = keys.blocking

        def begin(self, *given: Any, **named: Any) -> Begun:
            begun = keys.begin(*given, **named)
            if runs:
                may_end.set()
            return begun

        def __getattr__(self, name: str) -> Any:
            return getattr(keys, name)

    asked: Any = Asked()
    used = pep.with_changes(audit=MemoryAudit(), tools={"book_entry": book_entry}, keys=asked)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(used.call, propose("book_entry"), session())
        assert entered.wait(30)
        second = call(used, propose("book_entry"), session())

    assert [(each.executed, each.result) for each in (first.result(), second)] == [(True, "booked"), (False, "booked")]
    assert runs == ["cash"]


class Broken(MemoryIdempotency):
    """Fails in one of its steps."""

    def __init__(self, step: str) -> None:
        super().__init__()
        self.step = step

    def begin(self, *given: Any, **named: Any) -> Begun:
        self._fail("begin")
        return super().begin(*given, **named)

    def finish(self, *given: Any, **named: Any) -> None:
        self._fail("finish")
        super().finish(*given, **named)

    def _fail(self, step: str) -> None:
        if self.step == step:
            raise StoreError("database x: gone")


@both_ways
def test_a_key_that_cannot_be_taken_is_a_deny(pep: Pep, call: Way) -> None:
    works = Desk()
    used = own(pep, works, keys=Broken("begin"))
    came = call(used, propose("book_entry"), session())

    assert (came.verdict, came.codes, came.executed, works.runs) == (Verdict.DENY, ("store.unavailable",), False, [])
    assert told(used) == [("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.dispatch", "DENY")]
    assert call(used, propose("post_note"), session()).executed


@both_ways
def test_a_key_that_cannot_be_finished_stays_taken_and_is_an_alarm(
    pep: Pep, call: Way, caplog: pytest.LogCaptureFixture
) -> None:
    works = Desk()
    kept = Broken("finish")
    used = own(pep, works, keys=kept)
    came = call(used, propose("book_entry"), session())

    assert (came.executed, came.result) == (True, {"number": 1, "account": "cash"})
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.CRITICAL, "a tool ran and its idempotency key could not be finished: it stays taken"),
    ]
    kept.step = ""
    key, arguments = key_of(propose("book_entry"))
    assert isinstance(kept.look(key, arguments, 4e9), Unknown)


FAILURES = [
    pytest.param(
        RuntimeError("no"), ("TOOL_EXECUTION_FAILED", "RuntimeError", {"exception": "RuntimeError"}), "unknown",
        id="an exception: the effect may have happened",
    ),
    pytest.param(
        ToolArgumentError("account", "is closed"),
        (
            "TOOL_EXECUTION_FAILED", "argument account: is closed",
            {"exception": "ToolArgumentError", "argument": "account", "effect": "none"},
        ),
        "free", id="nothing was done",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("error", "expected", "then"), FAILURES)
@both_ways
def test_what_a_failure_leaves_of_its_key(
    pep: Pep, keys: IdempotencyStore, call: Way, error: Exception, expected: Any, then: str
) -> None:
    works = Desk(fails=error)
    used = own(pep, works, keys=keys)
    first = call(used, propose("book_entry"), session())
    works.fails = None
    again = call(used, propose("book_entry"), session())

    assert failure(first) == expected
    assert again.executed is (then == "free")
    if then == "unknown":
        assert failure(again) == expected
        assert len(works.runs) == 1


def test_a_read_that_fails_may_be_read_again(pep: Pep, keys: IdempotencyStore) -> None:
    works = Desk(fails=RuntimeError("no"))
    used = own(pep, works, keys=keys)
    ran = [used.call(propose("read_entry"), session()).executed for _ in range(2)]

    assert ran == [True, True]


async def started(pep: Pep, proposal: Any, begun: asyncio.Event) -> asyncio.Task[Evaluation]:
    task = asyncio.create_task(pep.acall(proposal, session()))
    await asyncio.wait_for(begun.wait(), 30)
    return task


async def test_a_cancelled_call_leaves_its_key_taken(pep: Pep, keys: IdempotencyStore) -> None:
    begun = asyncio.Event()

    async def book_entry(account: str, amount: float) -> None:
        begun.set()
        await asyncio.sleep(60)

    used = pep.with_changes(audit=MemoryAudit(), tools={"book_entry": book_entry}, keys=keys)
    task = await started(used, propose("book_entry"), begun)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    again = await used.acall(propose("book_entry"), session())

    told_of = "the caller was cancelled or interrupted while the tool ran"
    assert (again.executed, failure(again)) == (False, ("TOOL_EXECUTION_FAILED", told_of, {"effect": "unknown"}))
    assert told(used) == [
        ("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.result", "unknown"),
        ("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.result", "unknown"),
    ]  # fmt: skip


class Slow(SqlIdempotency):
    """Stops in a step until it is let go."""

    def __init__(self, store: Database, step: str) -> None:
        super().__init__(store)
        self.step = step
        self.entered, self.may_end = threading.Event(), threading.Event()

    def begin(self, *given: Any, **named: Any) -> Begun:
        begun = super().begin(*given, **named)
        self._stop("begin")
        return begun

    def finish(self, *given: Any, **named: Any) -> None:
        self._stop("finish")
        super().finish(*given, **named)

    def _stop(self, step: str) -> None:
        if step == self.step:
            self.entered.set()
            assert self.may_end.wait(30)


class SlowActions(SqlActions):
    """Likewise, before an action is approved."""

    def __init__(self, store: Database) -> None:
        super().__init__(store)
        self.entered, self.may_end = threading.Event(), threading.Event()

    def move(self, action: Action, state: ActionState, *, approval_id: str | None = None) -> Action:
        if state is ActionState.APPROVED:
            self.entered.set()
            assert self.may_end.wait(30)
        return super().move(action, state, approval_id=approval_id)


async def cancelled_in(slow: Slow | SlowActions, used: Pep) -> None:
    """Cancel a call while a step of its store is under way."""
    task = asyncio.create_task(used.acall(propose("book_entry"), session()))
    assert await asyncio.to_thread(slow.entered.wait, 30)
    task.cancel()
    await asyncio.sleep(0)
    slow.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_call_cancelled_while_its_action_is_approved_runs_nothing_and_fails_it(
    pep: Pep, store: Database, keys: IdempotencyStore
) -> None:
    works, slow = Desk(), SlowActions(store)
    used = own(pep, works, keys=keys, actions=slow)
    await cancelled_in(slow, used)

    assert works.runs == []
    assert told(used) == [("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.result", "failed")]
    assert [action.state for action in slow.list()] == ["failed"]
    assert (await used.acall(propose("book_entry"), session())).executed


async def test_a_call_cancelled_while_it_takes_its_key_runs_nothing_and_frees_it(pep: Pep, store: Database) -> None:
    works, slow = Desk(), Slow(store, "begin")
    used = own(pep, works, keys=slow)
    await cancelled_in(slow, used)

    assert works.runs == []
    assert told(used) == [("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.result", "failed")]
    assert (await used.acall(propose("book_entry"), session())).executed


async def test_a_call_cancelled_after_its_tool_ended_is_kept_as_what_it_came_to(pep: Pep, store: Database) -> None:
    works, slow = Desk(), Slow(store, "finish")
    used = own(pep, works, keys=slow)
    await cancelled_in(slow, used)
    again = await used.acall(propose("book_entry"), session())

    assert told(used)[:2] == [("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.result", "succeeded")]
    assert (again.executed, again.result, len(works.runs)) == (False, {"number": 1, "account": "cash"}, 1)


async def test_a_call_that_nobody_awaits_any_more_keeps_its_key(pep: Pep) -> None:
    """A coroutine that is closed cannot wait: what it has to keep is kept all the same."""
    entered, may_end = threading.Event(), threading.Event()

    def book_entry(account: str, amount: float) -> None:
        entered.set()
        may_end.wait(30)

    used = pep.with_changes(audit=MemoryAudit(), tools={"book_entry": book_entry}, keys=MemoryIdempotency())
    call = used.acall(propose("book_entry"), session())
    call.send(None)  # with everything in memory, the first that it waits for is the tool
    assert await asyncio.to_thread(entered.wait, 30)
    call.close()
    again = await used.acall(propose("book_entry"), session())
    may_end.set()

    told_of = "the caller was cancelled or interrupted while the tool ran"
    assert failure(again) == ("TOOL_EXECUTION_FAILED", told_of, {"effect": "unknown"})
    assert told(used)[:2] == [("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.result", "unknown")]


def test_an_interrupted_tool_leaves_its_key_taken(pep: Pep, keys: IdempotencyStore) -> None:
    works = Desk(fails=KeyboardInterrupt())
    used = own(pep, works, keys=keys)
    with pytest.raises(KeyboardInterrupt):
        used.call(propose("book_entry"), session())
    works.fails = None

    assert failure(used.call(propose("book_entry"), session()))[2] == {"effect": "unknown"}
    assert len(works.runs) == 1


def in_a_database(pep: Pep, works: Desk, store: Database, log: MemoryAudit | None = None) -> Pep:
    return pep.with_changes(
        audit=MemoryAudit() if log is None else log,
        tools=works.tools(),
        keys=SqlIdempotency(store),
        approvals=Approvals(SqlApprovals(store)),
        actions=SqlActions(store),
    )


def granted(used: Pep, proposal: dict[str, Any]) -> str:
    asked = used.call(proposal, session()).approval
    assert asked is not None
    assert used.approvals is not None
    return used.approvals.grant(asked.id, CHIEF, SOON).id


@both_ways
def test_approval_action_and_key_in_one_database(pep: Pep, store: Database, call: Way) -> None:
    works = Desk()
    used = in_a_database(pep, works, store)
    approval_id = granted(used, propose("send_letter"))
    ran, again = (call(used, propose("send_letter"), session(time=SOON)) for _ in range(2))

    assert used.approvals is not None
    assert [(each.verdict, each.executed, each.result) for each in (ran, again)] == [
        (Verdict.ALLOW, True, {"number": 1, "account": "cash"}),
        (Verdict.ALLOW, False, {"number": 1, "account": "cash"}),
    ]
    assert used.approvals.get(approval_id).state is ApprovalState.CONSUMED
    assert [(action.kind, action.state, action.approval_id) for action in used.actions.list()] == [
        ("send_letter", "committed", approval_id)
    ]
    assert [kind for kind, _ in told(used)] == [
        "approval.opened", "tool.send_letter.dispatch", "approval.granted", "tool.send_letter.dispatch",
        "approval.consumed", "tool.send_letter.result", "tool.send_letter.dispatch", "tool.send_letter.result",
    ]  # fmt: skip


def test_two_enforcement_points_that_open_one_file_several_times_are_as_good_as_one(
    pep: Pep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So short that nobody who waited for SQLite itself would get through.
    monkeypatch.setattr("pdp.stores.sql.database.BUSY_SECONDS", 0.05)
    works, url = Desk(), f"sqlite:///{tmp_path}/app.db"
    with ExitStack() as opened:

        def store() -> Database:
            return opened.enter_context(Database.open(url, upgrade=True))

        points = [
            pep.with_changes(
                audit=MemoryAudit(), tools=works.tools(), keys=SqlIdempotency(store()),
                approvals=Approvals(SqlApprovals(store())), actions=SqlActions(store()),
            )
            for _ in range(2)
        ]  # fmt: skip
        # Key and approval are used in one transaction, although each has a store of its own.
        granted(points[0], propose("send_letter"))
        ran = [point.call(propose("send_letter"), session(time=SOON)) for point in reversed(points)]
        with ThreadPoolExecutor(16) as threads:
            calls = [
                threads.submit(points[at % 2].call, propose("book_entry"), session(idempotency_key=f"k{at // 4}"))
                for at in range(80)
            ]
            booked = Counter(call.result(60).executed for call in calls)

    assert [(each.verdict, each.executed) for each in ran] == [(Verdict.ALLOW, True), (Verdict.ALLOW, False)]
    assert booked == {True: 20, False: 60}
    assert len(works.runs) == 21


class Armed(MemoryAudit):
    """Says when an approval is about to be used."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = False

    def append(self, event: AuditEvent) -> None:
        self.armed = event["type"] == "approval.consumed"
        super().append(event)


@both_ways
def test_a_transaction_that_fails_uses_neither_approval_nor_key(pep: Pep, store: Database, call: Way) -> None:
    works, log = Desk(), Armed()
    used = in_a_database(pep, works, store, log)
    approval_id = granted(used, propose("send_letter"))

    def refuse(_: Any) -> None:
        if log.armed:
            raise OperationalError("COMMIT", {}, sqlite3.OperationalError("disk I/O error"))

    event.listen(store._engine, "commit", refuse)
    denied = call(used, propose("send_letter"), session(time=SOON))
    event.remove(store._engine, "commit", refuse)

    key, arguments = key_of(propose("send_letter"))
    assert used.approvals is not None
    assert (denied.verdict, denied.codes, works.runs) == (Verdict.DENY, ("store.unavailable",), [])
    assert denied.approval == used.approvals.get(approval_id)
    assert denied.approval.state is ApprovalState.GRANTED
    assert SqlIdempotency(store).look(key, arguments, 0.0) is None
    assert [(one["type"], one["verdict"] or one["outcome"]) for one in log.events[3:]] == [
        ("tool.send_letter.dispatch", "ALLOW"), ("approval.consumed", None), ("approval.consumed", "unknown"),
        ("tool.send_letter.dispatch", "DENY"),
    ]  # fmt: skip
    assert call(used, propose("send_letter"), session(time=SOON)).executed


def test_an_approval_that_is_gone_leaves_the_key_free(pep: Pep, store: Database) -> None:
    works = Desk()
    used = in_a_database(pep, works, store)
    approval_id = granted(used, propose("send_letter"))
    assert used.approvals is not None
    approvals: Approvals = used.approvals

    class Withdrawing(MemoryAudit):
        """Between decision and use, the requester takes it back."""

        def append(self, event: AuditEvent) -> None:
            super().append(event)
            if event["type"] == "tool.send_letter.dispatch" and approvals.get(approval_id).state == "granted":
                approvals.withdraw(approval_id, {"sub": "ann"}, SOON)

    denied = used.with_changes(audit=Withdrawing()).call(propose("send_letter"), session(time=SOON))
    key, arguments = key_of(propose("send_letter"))

    assert (denied.verdict, denied.codes, works.runs) == (Verdict.DENY, ("approvals.invalid",), [])
    assert SqlIdempotency(store).look(key, arguments, 0.0) is None
    assert [action.state for action in used.actions.list()] == ["denied"]


CALLS, KEYS = 1000, 100


def calls_of(number: int) -> tuple[dict[str, Any], Any]:
    return propose("book_entry", amount=number % KEYS), session(idempotency_key=f"key-{number % KEYS}")


def once_each(works: Desk, came: list[Evaluation]) -> None:
    assert Counter(amount for _, amount in works.runs) == dict.fromkeys(range(KEYS), 1)
    assert (len(came), [each.executed for each in came].count(True)) == (CALLS, KEYS)
    results: dict[Any, set[int]] = {}
    for each in came:
        assert each.outcome.proposal is not None
        results.setdefault(each.outcome.proposal.arguments["amount"], set()).add(each.result["number"])
    assert {len(numbers) for numbers in results.values()} == {1}


def test_a_thousand_calls_of_threads_with_a_hundred_keys_run_a_hundred_times(pep: Pep, keys: IdempotencyStore) -> None:
    works = Desk()
    used = own(pep, works, keys=keys)
    with ThreadPoolExecutor(32) as threads:
        came = list(threads.map(lambda number: used.call(*calls_of(number)), range(CALLS)))

    once_each(works, came)


async def test_a_thousand_calls_of_tasks_with_a_hundred_keys_run_a_hundred_times(
    pep: Pep, keys: IdempotencyStore
) -> None:
    works = Desk()
    used = own(pep, works, keys=keys)

    once_each(works, list(await asyncio.gather(*(used.acall(*calls_of(number)) for number in range(CALLS)))))


def test_threads_that_use_an_approval_and_others_that_grant_do_not_lock_each_other(pep: Pep, store: Database) -> None:
    """Whoever takes a step has the approvals first and the database second, whichever of the two it begins with."""
    works = Desk()
    used = in_a_database(pep, works, store)

    def whole(number: int) -> bool:
        proposal, who = propose("send_letter", amount=number), session(idempotency_key=f"letter-{number}", time=SOON)
        asked = used.call(proposal, who).approval
        assert asked is not None
        assert used.approvals is not None
        used.approvals.grant(asked.id, CHIEF, SOON)
        return used.call(proposal, who).executed

    with ThreadPoolExecutor(8) as threads:
        ran = list(threads.map(whole, range(12)))

    assert ran == [True] * 12
    assert Counter(amount for _, amount in works.runs) == dict.fromkeys(range(12), 1)
    assert {action.state for action in used.actions.list()} == {"committed"}


_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.flow.test_execution"])


def _process(url: str, folder: str, effects: str, start: Any, found: Any) -> None:
    manifest = desk.effective(Path(folder))

    def book_entry(account: str, amount: float) -> str:
        with Path(effects).open("ab", buffering=0) as file:
            file.write(f"{amount}\n".encode())
        return "booked"

    with Database.open(url) as store, desk.engine(manifest) as engine:
        used = Pep(manifest, engine, tools={"book_entry": book_entry}, keys=SqlIdempotency(store))
        start.wait(60)
        for number in range(20):
            who = session(idempotency_key=f"key-{number}")
            found.put(used.call(propose("book_entry", amount=number), who).result)


def test_two_processes_run_each_key_once(store: Database, tmp_path: Path) -> None:
    effects, start, found = tmp_path / "effects", _context.Barrier(2), _context.Queue()
    processes = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        given = (f"sqlite:///{tmp_path}/pdp.db", str(folder), str(effects), start, found)
        processes.append(_context.Process(target=_process, args=given))
    for process in processes:
        process.start()
    results = [found.get(timeout=60) for _ in range(40)]
    for process in processes:
        process.join(60)

    assert [process.exitcode for process in processes] == [0, 0]
    assert results == ["booked"] * 40
    assert Counter(effects.read_text().split()) == {str(number): 1 for number in range(20)}


def _killed(url: str, folder: str) -> None:
    manifest = desk.effective(Path(folder))
    log = Armed()
    with Database.open(url) as store, desk.engine(manifest) as engine:
        used = in_a_database(Pep(manifest, engine), Desk(), store, log)
        event.listen(store._engine, "commit", lambda _: os.kill(os.getpid(), signal.SIGKILL) if log.armed else None)
        used.call(propose("send_letter"), session(time=SOON))


def test_a_process_killed_while_it_takes_them_has_used_neither_approval_nor_key(
    pep: Pep, store: Database, tmp_path: Path
) -> None:
    works = Desk()
    used = in_a_database(pep, works, store)
    approval_id = granted(used, propose("send_letter"))
    folder = tmp_path / "other"
    folder.mkdir()
    process = _context.Process(target=_killed, args=(f"sqlite:///{tmp_path}/pdp.db", str(folder)))
    process.start()
    process.join(60)
    key, arguments = key_of(propose("send_letter"))

    assert used.approvals is not None
    assert process.exitcode == -signal.SIGKILL
    assert used.approvals.get(approval_id).state is ApprovalState.GRANTED
    assert SqlIdempotency(store).look(key, arguments, 0.0) is None
    assert used.call(propose("send_letter"), session(time=SOON)).executed


async def test_steps_of_a_database_do_not_run_on_the_event_loop(pep: Pep, store: Database) -> None:
    works = Desk()
    used = in_a_database(pep, works, store)
    on_loop: list[str] = []
    loop_thread = threading.get_ident()

    def watch(*_: Any) -> None:
        if threading.get_ident() == loop_thread:
            on_loop.append("begun")

    event.listen(store._engine, "begin", watch)
    asked = (await used.acall(propose("send_letter"), session())).approval
    assert asked is not None
    assert used.approvals is not None
    await asyncio.to_thread(used.approvals.grant, asked.id, CHIEF, SOON)
    ran = await used.acall(propose("send_letter"), session(time=SOON))
    staged = await used.acall(desk.staging("pay_small"), session(time=SOON))
    paid = await used.acall(propose("pay_small"), session(time=SOON))

    assert (ran.executed, staged.executed, paid.executed, on_loop) == (True, True, True, [])


def test_a_program_is_run_as_any_other_tool(pep: Pep, tmp_path: Path) -> None:
    (tmp_path / "manifest.yaml").write_text("""
manifest_version: 2026.1.0
tools:
  - name: print_text
    type: cli
    effect_class: read-internal
    risk_tier: low
    scopes: [desk]
    schema: {type: object, required: [text], properties: {text: {type: string, maxLength: 40}}}
    cli: {argv: [printf, --, "%s|", "{text}"]}
  - name: fail_always
    type: cli
    effect_class: commit-low
    risk_tier: low
    scopes: [desk]
    compensation: print_text
    schema: {type: object, properties: {number: {type: integer}}}
    cli: {argv: [sh, -c, "echo broken >&2; exit 3", --, "{number}"]}
""")
    (tmp_path / "governance.yaml").write_text("""
actions: {}
programs:
  printf: {operands: true}
  sh: {subcommands: ["echo broken >&2; exit 3"], operands: true}
""")
    manifest = load_effective(tmp_path / "manifest.yaml", tmp_path / "governance.yaml")
    with desk.engine(manifest) as engine:
        used = Pep(manifest, engine)
        for call in (waiting, asynchronously):
            printed = call(used, {"tool": "print_text", "arguments": {"text": "a; rm -rf $HOME"}}, session())
            failed = call(used, {"tool": "fail_always", "arguments": {}}, session())

            assert (printed.executed, printed.result) == (True, "a; rm -rf $HOME|")
            assert failure(failed)[1:] == (
                "sh ended with exit code 3: broken", {"exception": "ToolExitError", "exit_code": 3},
            )  # fmt: skip
            assert failed.action is not None
            assert failed.action.state == "failed"
