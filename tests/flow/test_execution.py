"""Execution of allowed calls, with stores in memory and in SQLite: the tool runs once for each idempotency key."""

import asyncio
import logging
import multiprocessing
import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from pdp import Approvals, Evaluation, MemoryAudit, Pep, Verdict
from pdp.audit.chain import AuditEvent
from pdp.errors import StoreError
from pdp.execution.events import ToolEvent
from pdp.execution.failures import ToolArgumentError
from pdp.json import digest
from pdp.manifest.load import load_effective
from pdp.proposal import Execution, Proposal
from pdp.stores.actions import Action, ActionState
from pdp.stores.approvals import ApprovalState
from pdp.stores.keys import Begun, IdempotencyKey, Unknown
from pdp.stores.memory import MemoryActions, MemoryIdempotency
from pdp.stores.sql.database import Database
from pdp.stores.sql.keys import SqlIdempotency
from pdp.stores.sql.records import SqlActions, SqlApprovals
from tests.support import PATIENCE, be_patient, desk
from tests.support.desk import (
    CHIEF,
    SOON,
    Call,
    Desk,
    asked,
    asynchronously,
    both_ways,
    events,
    failure,
    granted,
    in_database,
    propose,
    recorded,
    rules,
    session,
    waiting,
)


def own(pep: Pep, works: Desk, **options: Any) -> Pep:
    return pep.with_changes(audit=MemoryAudit(), tools=works.tools(), **{"actions": MemoryActions(), **options})


def details(evaluation: Evaluation) -> tuple[str, str, dict[str, Any]]:
    failed = failure(evaluation)
    return failed.code, failed.message, failed.details


def key_of(proposal: dict[str, Any], key: str = "key-1") -> tuple[IdempotencyKey, str]:
    """Return the key of Ann's call, and the digest of its arguments."""
    return IdempotencyKey("", "ann", proposal["tool"], "1", key), digest(Proposal.read(proposal).text)


@both_ways
def test_repeated_call_with_the_same_key_returns_the_stored_result(pep: Pep, works: Desk, call: Call) -> None:
    first, again = (call(pep, propose("book_entry"), session()) for _ in range(2))

    assert [(each.verdict, each.executed, each.result) for each in (first, again)] == [
        (Verdict.ALLOW, True, {"number": 1, "account": "cash"}),
        (Verdict.ALLOW, False, {"number": 1, "account": "cash"}),
    ]
    assert works.runs == [("book_entry", 5)]
    assert recorded(pep) == [
        ("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.result", "succeeded"),
        ("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.result", "succeeded"),
    ]  # fmt: skip


@both_ways
def test_call_with_a_used_key_and_other_arguments_is_denied(pep: Pep, works: Desk, call: Call) -> None:
    call(pep, propose("book_entry"), session())
    other = call(pep, propose("book_entry", amount=6), session())

    assert (other.verdict, other.codes, other.executed) == (Verdict.DENY, ("idempotency.conflict",), False)
    assert other.outcome.rejection is not None
    assert other.outcome.rejection.reason == (
        "DENY: idempotency.conflict: the idempotency key was used for a call with other arguments"
    )
    assert works.runs == [("book_entry", 5)]
    assert recorded(pep)[2:] == [("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.dispatch", "DENY")]


@pytest.mark.parametrize(
    "changes",
    [
        {"claims": {**session().claims, "sub": "ben"}},
        {"claims": {**session().claims, "iss": "https://id"}},
        {"idempotency_key": "key-2"},
    ],
)
def test_equal_keys_of_different_callers_are_separate(pep: Pep, works: Desk, changes: dict[str, Any]) -> None:
    ran = [pep.call(propose("book_entry"), each).executed for each in (session(), session(**changes))]

    assert (ran, len(works.runs)) == ([True, True], 2)


@both_ways
def test_call_interrupted_by_a_crash_is_unknown_and_never_runs_again(pep: Pep, works: Desk, call: Call) -> None:
    key, arguments = key_of(propose("book_entry"))
    pep._parts.stores.keys.begin(key, arguments, ttl=None, now=0.0, lasting=1.0)
    evaluation = call(pep, propose("book_entry"), session())

    assert (evaluation.verdict, evaluation.executed, evaluation.result, works.runs) == (Verdict.ALLOW, False, None, [])
    message = "a call with the same idempotency key was started before and its outcome is unknown"
    assert details(evaluation) == (
        "TOOL_EXECUTION_FAILED",
        f"{message}, so this call does not run",
        {"effect": "unknown"},
    )
    assert recorded(pep)[1:] == [("tool.book_entry.result", "unknown")]

    pep._parts.stores.keys.settle(key, Execution(result={"number": 7}), now=2.0)
    assert call(pep, propose("book_entry"), session()).result == {"number": 7}


@both_ways
def test_call_stops_waiting_for_a_running_call_with_the_same_key(
    pep: Pep, works: Desk, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setattr("pdp.flow.reserve.PATIENCE", 0.01)
    key, arguments = key_of(propose("book_entry"))
    pep._parts.stores.keys.begin(key, arguments, ttl=None, now=time.time())
    evaluation = call(pep, propose("book_entry"), session())

    message = "a call with the same idempotency key is still running"
    assert (evaluation.executed, works.runs) == (False, [])
    assert details(evaluation) == ("TOOL_EXECUTION_FAILED", message, {"effect": "unknown"})


@both_ways
def test_call_waits_for_a_running_call_in_another_thread(pep: Pep, call: Call) -> None:
    keys = pep._parts.stores.keys
    runs, entered, may_end = [], threading.Event(), threading.Event()

    def book_entry(account: str, amount: float) -> str:
        runs.append(account)
        entered.set()
        assert may_end.wait(PATIENCE)
        return "booked"

    class Watched:
        """A key store that lets the first call end when the second call has seen that the first call is running."""

        blocking = keys.blocking

        def begin(self, *given: Any, **named: Any) -> Begun:
            begun = keys.begin(*given, **named)
            if runs:
                may_end.set()
            return begun

        def __getattr__(self, name: str) -> Any:
            return getattr(keys, name)

    watched: Any = Watched()
    used = pep.with_changes(tools={"book_entry": book_entry}, keys=watched)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(used.call, propose("book_entry"), session())
        assert entered.wait(PATIENCE)
        second = call(used, propose("book_entry"), session())

    assert [(each.executed, each.result) for each in (first.result(), second)] == [(True, "booked"), (False, "booked")]
    assert runs == ["cash"]


class Empty:
    """A store whose `len` is 0, so that it counts as false in a condition."""

    def __len__(self) -> int:
        return 0


class EmptyKeys(Empty, MemoryIdempotency): ...


class EmptyActions(Empty, MemoryActions): ...


def test_empty_store_that_counts_as_false_is_used_and_not_replaced(base: Pep, works: Desk) -> None:
    keys, actions = EmptyKeys(), EmptyActions()
    first = base.with_changes(audit=MemoryAudit(), tools=works.tools(), keys=keys, actions=actions)
    ran = first.call(propose("book_entry"), session())
    again = first.with_changes(audit=MemoryAudit()).call(propose("book_entry"), session())

    assert (ran.executed, again.executed) == (True, False)
    assert keys.look(*key_of(propose("book_entry")), 0.0) is not None
    assert [action.kind for action in actions.list()] == ["book_entry"]


class Broken(MemoryIdempotency):
    """A key store that fails in the step with the given name."""

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
def test_call_is_denied_if_its_key_cannot_be_reserved(base: Pep, works: Desk, call: Call) -> None:
    used = own(base, works, keys=Broken("begin"))
    evaluation = call(used, propose("book_entry"), session())

    assert (evaluation.verdict, evaluation.codes, evaluation.executed, works.runs) == (
        Verdict.DENY,
        ("store.unavailable",),
        False,
        [],
    )
    assert recorded(used) == [("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.dispatch", "DENY")]
    assert call(used, propose("post_note"), session()).executed


@both_ways
def test_key_stays_reserved_and_an_error_is_logged_if_its_outcome_cannot_be_stored(
    base: Pep, works: Desk, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Broken("finish")
    used = own(base, works, keys=kept)
    evaluation = call(used, propose("book_entry"), session())

    assert (evaluation.executed, evaluation.result) == (True, {"number": 1, "account": "cash"})
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.CRITICAL, "a tool ran, but its idempotency key could not be finished, so the key stays reserved"),
    ]
    kept.step = ""
    key, arguments = key_of(propose("book_entry"))
    assert isinstance(kept.look(key, arguments, 4e9), Unknown)


FAILURES = [
    pytest.param(
        RuntimeError("no"), ("TOOL_EXECUTION_FAILED", "RuntimeError", {"exception": "RuntimeError"}), "unknown",
        id="an exception with unknown effect",
    ),
    pytest.param(
        ToolArgumentError("account", "is closed"),
        (
            "TOOL_EXECUTION_FAILED", "argument account: is closed",
            {"exception": "ToolArgumentError", "argument": "account", "effect": "none"},
        ),
        "free", id="no effect",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("error", "expected", "then"), FAILURES)
@both_ways
def test_key_of_a_failed_call_is_released_only_if_the_tool_had_no_effect(
    pep: Pep, works: Desk, call: Call, error: Exception, expected: Any, then: str
) -> None:
    works.fails = error
    first = call(pep, propose("book_entry"), session())
    works.fails = None
    again = call(pep, propose("book_entry"), session())

    assert details(first) == expected
    result = events(pep)[1]
    assert (result["outcome"], result["error_code"], result["result_digest"]) == ("failed", expected[0], None)
    assert again.executed is (then == "free")
    if then == "unknown":
        assert details(again) == expected
        assert len(works.runs) == 1


def test_failed_call_of_a_read_tool_can_be_repeated(pep: Pep, works: Desk) -> None:
    works.fails = RuntimeError("no")
    ran = [pep.call(propose("read_entry"), session()).executed for _ in range(2)]

    assert ran == [True, True]


async def test_key_stays_reserved_if_its_call_is_cancelled(pep: Pep) -> None:
    begun = asyncio.Event()

    async def book_entry(account: str, amount: float) -> None:
        begun.set()
        await asyncio.sleep(60)

    used = pep.with_changes(tools={"book_entry": book_entry})
    task = asyncio.create_task(used.acall(propose("book_entry"), session()))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    again = await used.acall(propose("book_entry"), session())

    message = "the caller was cancelled or interrupted while the tool ran"
    assert (again.executed, details(again)) == (False, ("TOOL_EXECUTION_FAILED", message, {"effect": "unknown"}))
    assert recorded(used) == [
        ("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.result", "unknown"),
        ("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.result", "unknown"),
    ]  # fmt: skip


class Slow:
    """A store that blocks in the step with the given name until the test continues."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, step: str, *, after: bool = False) -> None:
        self.entered, self.may_end = threading.Event(), threading.Event()
        whole = getattr(owner, step)

        def stopped(store: Any, *given: Any, **named: Any) -> Any:
            done = whole(store, *given, **named) if after else None
            self.entered.set()
            assert self.may_end.wait(PATIENCE)
            return done if after else whole(store, *given, **named)

        monkeypatch.setattr(owner, step, stopped)

    async def cancelled_in(self, pep: Pep) -> None:
        """Cancel a call while the store blocks its step."""
        task = asyncio.create_task(pep.acall(propose("book_entry"), session()))
        assert await asyncio.to_thread(self.entered.wait, PATIENCE)
        task.cancel()
        await asyncio.sleep(0)
        self.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize(
    ("owner", "step", "after", "actions"),
    [
        pytest.param(SqlIdempotency, "begin", True, [], id="its key is reserved"),
        pytest.param(SqlActions, "move", False, ["failed"], id="its action is approved"),
    ],
)
async def test_call_cancelled_before_its_tool_starts_releases_its_key(
    base: Pep, store: Database, works: Desk, monkeypatch: pytest.MonkeyPatch, owner: type, step: str, after: bool,
    actions: Any,
) -> None:  # fmt: skip
    seen: list[ToolEvent] = []
    pep = Pep(
        base.manifest, base.engine, tools=works.tools(), keys=SqlIdempotency(store), actions=SqlActions(store),
        observers=[seen.append],
    )  # fmt: skip
    await Slow(monkeypatch, owner, step, after=after).cancelled_in(pep)

    assert works.runs == []
    assert [(event.action, event.duration) for event in seen] == [("execute_cancelled", None)]
    assert recorded(pep) == [("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.result", "failed")]
    assert [action.state for action in pep.actions.list()] == actions
    assert (await pep.acall(propose("book_entry"), session())).executed


async def test_result_is_stored_although_the_call_is_cancelled_after_the_run(
    in_sqlite: Pep, works: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Slow(monkeypatch, SqlIdempotency, "finish").cancelled_in(in_sqlite)
    again = await in_sqlite.acall(propose("book_entry"), session())

    assert recorded(in_sqlite)[:2] == [("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.result", "succeeded")]
    assert (again.executed, again.result, len(works.runs)) == (False, {"number": 1, "account": "cash"}, 1)


async def test_key_stays_reserved_if_its_coroutine_is_closed(base: Pep) -> None:
    """A closed coroutine cannot wait for its tool, so the key gets an unknown outcome."""
    entered, may_end = threading.Event(), threading.Event()

    def book_entry(account: str, amount: float) -> None:
        entered.set()
        may_end.wait(PATIENCE)

    used = base.with_changes(audit=MemoryAudit(), tools={"book_entry": book_entry}, keys=MemoryIdempotency())
    call = used.acall(propose("book_entry"), session())
    call.send(None)  # The stores are in memory, so the call does not pause before it waits for its tool.
    assert await asyncio.to_thread(entered.wait, PATIENCE)
    call.close()
    again = await used.acall(propose("book_entry"), session())
    may_end.set()

    message = "the caller was cancelled or interrupted while the tool ran"
    assert details(again) == ("TOOL_EXECUTION_FAILED", message, {"effect": "unknown"})
    assert recorded(used)[:2] == [("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.result", "unknown")]


class InterruptedActions(MemoryActions):
    """An action store that is interrupted when it commits an action."""

    def move(self, action: Action, state: ActionState, **named: Any) -> Action:
        if state is ActionState.COMMITTED:
            raise KeyboardInterrupt
        return super().move(action, state, **named)


class InterruptedKeys(MemoryIdempotency):
    """A key store that is interrupted when it finishes a key."""

    def finish(self, *given: Any, **named: Any) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("stores", [{"actions": InterruptedActions()}, {"keys": InterruptedKeys()}])
def test_outcome_of_a_call_interrupted_after_its_tool_ran_is_recorded_as_unknown(
    base: Pep, works: Desk, stores: Any
) -> None:
    used = own(base, works, **{"keys": MemoryIdempotency(), **stores})
    with pytest.raises(KeyboardInterrupt):
        used.call(propose("book_entry"), session())

    assert works.runs == [("book_entry", 5)]
    assert recorded(used) == [("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.result", "unknown")]


def test_interrupt_while_settling_the_action_keeps_the_key_reserved(base: Pep, works: Desk) -> None:
    used = own(base, works, keys=MemoryIdempotency(), actions=InterruptedActions())
    with pytest.raises(KeyboardInterrupt):
        used.call(propose("book_entry"), session())

    assert details(used.call(propose("book_entry"), session()))[2] == {"effect": "unknown"}
    assert len(works.runs) == 1


async def test_call_has_an_unknown_outcome_if_no_thread_can_be_started_to_store_it(
    in_sqlite: Pep, works: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second call waits for the key, although the first call never finishes the key. So the wait must be short.
    monkeypatch.setattr("pdp.flow.reserve.PATIENCE", 0.1)
    threads = ThreadPoolExecutor(2)
    asyncio.get_running_loop().set_default_executor(threads)

    async def book_entry(account: str, amount: float) -> None:
        threads.shutdown(wait=False)

    used = in_sqlite.with_changes(tools={"book_entry": book_entry})
    ran = await used.acall(propose("book_entry"), session())
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    again = await used.acall(propose("book_entry"), session())

    assert (ran.executed, details(ran)[2]) == (True, {"effect": "unknown"})
    assert recorded(used)[:2] == [("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.result", "unknown")]
    assert (again.executed, details(again)[2]) == (False, {"effect": "unknown"})


def test_key_stays_reserved_if_its_tool_is_interrupted(pep: Pep, works: Desk) -> None:
    works.fails = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        pep.call(propose("book_entry"), session())
    works.fails = None
    [_, result] = events(pep)
    assert (result["type"], result["outcome"], result["error_code"]) == (
        "tool.book_entry.result", "unknown", "TOOL_EXECUTION_FAILED",
    )  # fmt: skip

    assert details(pep.call(propose("book_entry"), session()))[2] == {"effect": "unknown"}
    assert len(works.runs) == 1


@both_ways
def test_approved_call_updates_approval_action_and_key_in_one_database(in_sqlite: Pep, call: Call) -> None:
    approval_id = granted(in_sqlite, propose("send_letter")).id
    ran, again = (call(in_sqlite, propose("send_letter"), session(time=SOON)) for _ in range(2))

    assert [(each.verdict, each.executed, each.result) for each in (ran, again)] == [
        (Verdict.ALLOW, True, {"number": 1, "account": "cash"}),
        (Verdict.ALLOW, False, {"number": 1, "account": "cash"}),
    ]
    assert rules(in_sqlite).get(approval_id).state is ApprovalState.CONSUMED
    assert [(action.kind, action.state, action.approval_id) for action in in_sqlite.actions.list()] == [
        ("send_letter", "committed", approval_id)
    ]
    assert [kind for kind, _ in recorded(in_sqlite)] == [
        "approval.opened", "tool.send_letter.dispatch", "approval.granted", "tool.send_letter.dispatch",
        "approval.consumed", "tool.send_letter.result", "tool.send_letter.dispatch", "tool.send_letter.result",
    ]  # fmt: skip


def test_two_enforcement_points_on_one_database_file_run_each_call_once(
    base: Pep, works: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The time-out for SQLite's lock is short. If the same call opened a second transaction, the call would fail.
    monkeypatch.setattr("pdp.stores.sql.database.BUSY_SECONDS", 0.05)
    url = f"sqlite:///{tmp_path}/app.db"
    with ExitStack() as opened:

        def store() -> Database:
            return opened.enter_context(Database.open(url, upgrade=True))

        points = [
            base.with_changes(
                audit=MemoryAudit(), tools=works.tools(), keys=SqlIdempotency(store()),
                approvals=Approvals(SqlApprovals(store())), actions=SqlActions(store()),
            )
            for _ in range(2)
        ]  # fmt: skip
        # The key and the approval are used in one transaction, although their stores have separate `Database` objects.
        granted(points[0], propose("send_letter"))
        ran = [point.call(propose("send_letter"), session(time=SOON)) for point in reversed(points)]
        with ThreadPoolExecutor(16) as threads:
            calls = [
                threads.submit(points[at % 2].call, propose("book_entry"), session(idempotency_key=f"k{at // 4}"))
                for at in range(80)
            ]
            booked = Counter(call.result(PATIENCE).executed for call in calls)

    assert [(each.verdict, each.executed) for each in ran] == [(Verdict.ALLOW, True), (Verdict.ALLOW, False)]
    assert booked == {True: 20, False: 60}
    assert len(works.runs) == 21


class Armed(MemoryAudit):
    """An audit log that sets `armed` when it records the use of an approval."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = False

    def append(self, event: AuditEvent) -> None:
        self.armed = event["type"] == "approval.consumed"
        super().append(event)


@both_ways
def test_failed_transaction_uses_neither_approval_nor_key(base: Pep, works: Desk, store: Database, call: Call) -> None:
    log = Armed()
    used = in_database(base, works, store, log)
    approval_id = granted(used, propose("send_letter")).id

    def refuse(_: Any) -> None:
        if log.armed:
            raise OperationalError("COMMIT", {}, sqlite3.OperationalError("disk I/O error"))

    event.listen(store._engine, "commit", refuse)
    denied = call(used, propose("send_letter"), session(time=SOON))
    event.remove(store._engine, "commit", refuse)

    key, arguments = key_of(propose("send_letter"))
    assert (denied.verdict, denied.codes, works.runs) == (Verdict.DENY, ("store.unavailable",), [])
    assert denied.approval == rules(used).get(approval_id)
    assert denied.approval.state is ApprovalState.GRANTED
    assert SqlIdempotency(store).look(key, arguments, 0.0) is None
    assert [(event["type"], event["verdict"] or event["outcome"]) for event in log.events[3:]] == [
        ("tool.send_letter.dispatch", "ALLOW"), ("approval.consumed", None), ("approval.consumed", "unknown"),
        ("tool.send_letter.dispatch", "DENY"),
    ]  # fmt: skip
    assert call(used, propose("send_letter"), session(time=SOON)).executed


def test_key_is_released_if_its_approval_is_withdrawn_before_use(in_sqlite: Pep, works: Desk, store: Database) -> None:
    approval_id = granted(in_sqlite, propose("send_letter")).id
    approvals = rules(in_sqlite)

    class Withdrawing(MemoryAudit):
        """An audit log that withdraws the approval when the decision is recorded, before the call uses the approval."""

        def append(self, event: AuditEvent) -> None:
            super().append(event)
            if event["type"] == "tool.send_letter.dispatch" and approvals.get(approval_id).state == "granted":
                approvals.withdraw(approval_id, {"sub": "ann"}, SOON)

    denied = in_sqlite.with_changes(audit=Withdrawing()).call(propose("send_letter"), session(time=SOON))
    key, arguments = key_of(propose("send_letter"))

    assert (denied.verdict, denied.codes, works.runs) == (Verdict.DENY, ("approvals.invalid",), [])
    assert SqlIdempotency(store).look(key, arguments, 0.0) is None
    assert [action.state for action in in_sqlite.actions.list()] == ["denied"]


def of_threads(pep: Pep, calls: list[tuple[Any, Any]]) -> list[Evaluation]:
    with ThreadPoolExecutor(32) as threads:
        return list(threads.map(lambda call: pep.call(*call), calls))


def of_tasks(pep: Pep, calls: list[tuple[Any, Any]]) -> list[Evaluation]:
    async def gathered() -> list[Evaluation]:
        return list(await asyncio.gather(*(pep.acall(*call) for call in calls)))

    return asyncio.run(gathered())


@pytest.mark.parametrize("make", [of_threads, of_tasks])
def test_tool_runs_20_times_in_200_concurrent_calls_with_20_keys(
    pep: Pep, works: Desk, make: Callable[..., list[Evaluation]]
) -> None:
    numbers = [number % 20 for number in range(200)]
    evaluations = make(
        pep, [(propose("book_entry", amount=number), session(idempotency_key=f"key-{number}")) for number in numbers]
    )

    assert Counter(amount for _, amount in works.runs) == dict.fromkeys(range(20), 1)
    assert Counter(evaluation.executed for evaluation in evaluations) == {True: 20, False: 180}
    results = {(number, evaluation.result["number"]) for number, evaluation in zip(numbers, evaluations, strict=True)}
    assert len(results) == 20


def test_using_and_granting_approvals_concurrently_does_not_deadlock(in_sqlite: Pep, works: Desk) -> None:
    """Every step locks the approvals before the database, so no two steps can wait for each other."""

    def whole(number: int) -> bool:
        proposal, who = propose("send_letter", amount=number), session(idempotency_key=f"letter-{number}", time=SOON)
        rules(in_sqlite).grant(asked(in_sqlite.call(proposal, who)).id, CHIEF, SOON)
        return in_sqlite.call(proposal, who).executed

    with ThreadPoolExecutor(8) as threads:
        ran = list(threads.map(whole, range(12)))

    assert ran == [True] * 12
    assert Counter(amount for _, amount in works.runs) == dict.fromkeys(range(12), 1)
    assert {action.state for action in in_sqlite.actions.list()} == {"committed"}


_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.flow.test_execution"])


def _killed(url: str, folder: str) -> None:
    be_patient()
    manifest = desk.effective(Path(folder))
    log = Armed()
    with Database.open(url) as store, desk.engine(manifest) as engine:
        used = in_database(Pep(manifest, engine), Desk(), store, log)
        event.listen(store._engine, "commit", lambda _: os.kill(os.getpid(), signal.SIGKILL) if log.armed else None)
        used.call(propose("send_letter"), session(time=SOON))


@pytest.mark.process
def test_process_killed_during_the_reservation_uses_neither_approval_nor_key(
    in_sqlite: Pep, store: Database, tmp_path: Path
) -> None:
    approval_id = granted(in_sqlite, propose("send_letter")).id
    process = _context.Process(target=_killed, args=(f"sqlite:///{tmp_path}/pdp.db", str(tmp_path)))
    process.start()
    process.join(PATIENCE)
    key, arguments = key_of(propose("send_letter"))

    assert process.exitcode == -signal.SIGKILL
    assert rules(in_sqlite).get(approval_id).state is ApprovalState.GRANTED
    assert SqlIdempotency(store).look(key, arguments, 0.0) is None
    assert in_sqlite.call(propose("send_letter"), session(time=SOON)).executed


async def test_database_access_of_a_call_does_not_block_the_event_loop(in_sqlite: Pep, store: Database) -> None:
    on_loop: list[str] = []
    loop_thread = threading.get_ident()

    def watch(*_: Any) -> None:
        if threading.get_ident() == loop_thread:
            on_loop.append("begun")

    event.listen(store._engine, "begin", watch)
    approval = asked(await in_sqlite.acall(propose("send_letter"), session()))
    await asyncio.to_thread(rules(in_sqlite).grant, approval.id, CHIEF, SOON)
    ran = await in_sqlite.acall(propose("send_letter"), session(time=SOON))
    staged = await in_sqlite.acall(desk.staging("pay_small"), session(time=SOON))
    paid = await in_sqlite.acall(propose("pay_small"), session(time=SOON))

    assert (ran.executed, staged.executed, paid.executed, on_loop) == (True, True, True, [])


def test_call_of_a_program_returns_its_output_or_its_failure(base: Pep, tmp_path: Path) -> None:
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
            assert details(failed)[1:] == (
                "sh ended with exit code 3: broken", {"exception": "ToolExitError", "exit_code": 3},
            )  # fmt: skip
            assert failed.action is not None
            assert failed.action.state == "failed"
