"""Actions, which stand for the effects of calls: they are staged, approved, committed and compensated."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pdp import Approvals, Evaluation, MemoryAudit, Pep, Verdict
from pdp.errors import StoreError, UsageError
from pdp.execution.events import ToolEvent
from pdp.manifest.load import load_effective
from pdp.stores.actions import Action, ActionState
from pdp.stores.approvals import ApprovalState
from pdp.stores.memory import MemoryActions, MemoryIdempotency
from tests.support import PATIENCE, desk
from tests.support.desk import (
    CHIEF,
    SOON,
    Call,
    Desk,
    asked,
    both_ways,
    failure,
    granted,
    propose,
    recorded,
    rules,
    session,
    staging,
)
from tests.support.scripted import Scripted, answer

STAGED, APPROVED, COMMITTED = ActionState.STAGED, ActionState.APPROVED, ActionState.COMMITTED
DENIED, FAILED, COMPENSATED = ActionState.DENIED, ActionState.FAILED, ActionState.COMPENSATED


def acted(evaluation: Evaluation) -> Action:
    assert evaluation.action is not None
    return evaluation.action


def states(pep: Pep) -> list[tuple[str, ActionState]]:
    return [(action.kind, action.state) for action in pep.actions.list()]


@both_ways
def test_action_is_staged_by_step_up_approved_by_grant_and_committed_by_run(pep: Pep, call: Call) -> None:
    first, second = (call(pep, propose("send_letter"), session()) for _ in range(2))
    approval, action = asked(first), acted(first)

    assert (asked(second), acted(second)) == (approval, action)
    assert approval.action_id == action.id
    assert action == Action(
        id=action.id, kind="send_letter", target="tool/send_letter", payload_digest=action.payload_digest,
        state=STAGED, decision_id=first.decision.decision_id if first.decision else "",
        idempotency_key=approval.call_digest, approval_id=None, created_at=action.created_at,
    )  # fmt: skip

    rules(pep).grant(approval.id, CHIEF, SOON)
    granted = pep.actions.get(action.id)
    assert granted is not None
    assert (granted.state, granted.approval_id) == (APPROVED, approval.id)

    ran = call(pep, propose("send_letter"), session(time=SOON))
    assert (ran.executed, acted(ran).id, acted(ran).state, acted(ran).approval_id) == (
        True, action.id, COMMITTED, approval.id,
    )  # fmt: skip
    assert states(pep) == [("send_letter", COMMITTED)]


@pytest.mark.parametrize(
    ("error", "state"),
    [
        pytest.param(RuntimeError("no"), FAILED, id="a failure"),
        pytest.param(KeyboardInterrupt(), APPROVED, id="outcome unknown"),
    ],
)
def test_outcome_of_the_commit_tool_sets_the_state_of_its_action(
    pep: Pep, works: Desk, error: BaseException, state: ActionState
) -> None:
    works.fails = error
    granted(pep, propose("send_letter"))
    if isinstance(error, Exception):
        assert acted(pep.call(propose("send_letter"), session(time=SOON))).state is state
    else:
        with pytest.raises(KeyboardInterrupt):
            pep.call(propose("send_letter"), session(time=SOON))

    assert states(pep) == [("send_letter", state)]


@pytest.mark.parametrize("end", ["deny", "withdraw"])
def test_denied_or_withdrawn_action_is_never_committed_and_next_call_stages_a_new_one(
    pep: Pep, works: Desk, end: str
) -> None:
    first = asked(pep.call(propose("send_letter"), session()))
    if end == "deny":
        rules(pep).deny(first.id, CHIEF, SOON)
    else:
        rules(pep).grant(first.id, CHIEF, SOON)
        rules(pep).withdraw(first.id, {"sub": "ann"}, SOON)
    again = [pep.call(propose("send_letter"), session(time=SOON)) for _ in range(3)]

    assert states(pep) == [("send_letter", DENIED), ("send_letter", STAGED)]
    assert {asked(each).id for each in again} == {asked(again[0]).id} != {first.id}
    assert {acted(each).id for each in again} == {asked(again[0]).action_id}

    rules(pep).grant(asked(again[0]).id, CHIEF, SOON)
    assert pep.call(propose("send_letter"), session(time=SOON)).executed
    assert states(pep) == [("send_letter", DENIED), ("send_letter", COMMITTED)]
    assert works.runs == [("send_letter", 5)]


def test_call_after_its_approval_has_expired_stages_a_new_action(pep: Pep) -> None:
    first = granted(pep, propose("send_letter"))
    late = pep.call(propose("send_letter"), session(time="2026-07-02T10:00:00Z"))

    assert asked(late).action_id != first.action_id
    assert states(pep) == [("send_letter", APPROVED), ("send_letter", STAGED)]


def test_repeated_call_without_key_stages_a_new_action(pep: Pep, works: Desk) -> None:
    for _ in range(2):
        granted(pep, propose("recall_letter"), idempotency_key=None)
        assert pep.call(propose("recall_letter"), session(idempotency_key=None, time=SOON)).executed

    assert states(pep) == [("recall_letter", COMMITTED)] * 2
    assert len(works.runs) == 2


@both_ways
def test_commit_allowed_by_policy_runs_without_an_approval(pep: Pep, works: Desk, call: Call) -> None:
    ran = [acted(call(pep, propose("post_note"), session())) for _ in range(2)]

    assert [(action.state, action.approval_id) for action in ran] == [(COMMITTED, None)] * 2
    assert states(pep) == [("post_note", COMMITTED)] * 2
    assert len(works.runs) == 2


def test_concurrent_commits_with_the_same_arguments_get_separate_actions(pep: Pep) -> None:
    together = threading.Barrier(4)
    # Each tool waits until all four tools run, so all four actions are approved at the same time.
    tools = {"post_note": lambda account, amount: together.wait(PATIENCE)}
    pep = pep.with_changes(tools=tools)
    with ThreadPoolExecutor(4) as threads:
        evaluations = list(threads.map(lambda _: pep.call(propose("post_note"), session()), range(4)))

    assert {acted(each).id for each in evaluations} == {action.id for action in pep.actions.list()}
    assert states(pep) == [("post_note", COMMITTED)] * 4


def test_call_of_a_read_or_draft_tool_creates_no_action(pep: Pep) -> None:
    evaluations = [pep.call(propose(tool), session()) for tool in ("read_entry", "keep_draft")]

    assert [(each.executed, each.action) for each in evaluations] == [(True, None), (True, None)]
    assert states(pep) == []


@both_ways
def test_commit_call_uses_the_action_that_an_earlier_call_staged(pep: Pep, works: Desk, call: Call) -> None:
    staged = call(pep, staging("send_letter"), session(idempotency_key="intent-1"))
    approval = asked(call(pep, propose("send_letter"), session()))
    rules(pep).grant(approval.id, CHIEF, SOON)
    ran = call(pep, propose("send_letter"), session(time=SOON))
    replayed = call(pep, staging("send_letter"), session(idempotency_key="intent-1"))

    assert (approval.action_id, acted(ran).id) == (staged.result["id"], staged.result["id"])
    assert states(pep) == [("send_letter", COMMITTED)]
    assert (staged.result["state"], replayed.result) == ("staged", {**staged.result, "state": "committed"})
    assert works.runs == [("send_letter", 5)]


@both_ways
@pytest.mark.parametrize("run_id", ["run-1", None])
def test_staging_opens_an_approval_that_covers_only_its_commit(
    pep: Pep, works: Desk, call: Call, run_id: str | None
) -> None:
    mine, later = session(run_id=run_id), session(run_id=run_id, time=SOON)
    staged, again = (call(pep, staging("send_letter"), mine) for _ in range(2))
    assert (staged.verdict, [staged.approval] * 2) == (Verdict.ALLOW, [*rules(pep).list(), again.approval])
    assert staged.approval is not None
    assert (staged.approval.action_id, staged.approval.reasons) == (staged.result["id"], ("approvals.required",))

    rules(pep).grant(staged.approval.id, CHIEF, SOON)
    other = call(pep, propose("send_letter", amount=6), later)
    ran, twice = (call(pep, propose("send_letter"), later) for _ in range(2))

    assert (asked(other).call_digest == staged.approval.call_digest, asked(other).action_id == staged.result["id"]) == (
        False, False,
    )  # fmt: skip
    assert (acted(ran).id, acted(ran).state, acted(ran).approval_id) == (
        staged.result["id"], COMMITTED, staged.approval.id,
    )  # fmt: skip
    assert (twice.executed, works.runs) == (False, [("send_letter", 5)])


@pytest.mark.parametrize("end", ["deny", "withdraw"])
def test_action_denied_after_staging_is_never_committed(pep: Pep, works: Desk, end: str) -> None:
    approval = pep.call(staging("send_letter"), session()).approval
    assert approval is not None
    if end == "deny":
        rules(pep).deny(approval.id, CHIEF, SOON)
    else:
        rules(pep).withdraw(approval.id, {"sub": "ann"}, SOON)
    later = pep.call(propose("send_letter"), session(time=SOON))

    assert (asked(later).id == approval.id, works.runs) == (False, [])
    assert states(pep) == [("send_letter", DENIED), ("send_letter", STAGED)]


def test_commit_uses_the_key_that_a_staging_call_without_key_generated(pep: Pep) -> None:
    staged = pep.call(staging("send_letter"), session(idempotency_key=None))
    assert staged.approval is not None
    rules(pep).grant(staged.approval.id, CHIEF, SOON)

    ran = pep.call(propose("send_letter"), session(idempotency_key=staged.result["idempotencyKey"], time=SOON))
    assert (ran.executed, acted(ran).id) == (True, staged.result["id"])


@pytest.mark.parametrize(
    ("kind", "changes", "opened"),
    [
        pytest.param("pay_small", {}, False, id="a commit that the policy allows"),
        pytest.param("pay_small", {"amount": 101}, True, id="a commit that needs approval"),
        pytest.param("pay_small", {"amount": -1}, False, id="a commit that the policy denies"),
    ],
)
def test_staging_opens_approval_only_if_policy_requires_it(
    pep: Pep, kind: str, changes: dict[str, Any], opened: bool
) -> None:
    staged = pep.call(staging(kind, **changes), session())

    assert (staged.result["state"], staged.approval is not None) == ("staged", opened)
    assert [kind for kind, _ in recorded(pep)][-2 - opened :] == [
        "tool.stage_effect.result", *["approval.opened"] * opened, f"tool.{kind}.dispatch",
    ]  # fmt: skip


def test_staging_is_recorded_as_succeeded_if_its_caller_is_interrupted_later(base: Pep, works: Desk) -> None:
    def decides(request: dict[str, Any]) -> dict[str, Any]:
        if request["action"]["properties"]["tool"] == "send_letter":
            raise KeyboardInterrupt
        return answer()

    events: list[ToolEvent] = []
    pep = Pep(base.manifest, Scripted(decides), tools=works.tools(), approvals=Approvals(), observers=[events.append])
    with pytest.raises(KeyboardInterrupt):
        pep.call(staging("send_letter"), session())

    assert [(event.action, event.error) for event in events] == [("execute_end", None)]
    assert ("tool.stage_effect.result", "succeeded") in recorded(pep)


@both_ways
def test_commit_without_approval_runs_once_per_staged_action(pep: Pep, works: Desk, call: Call) -> None:
    before = call(pep, propose("pay_small"), session())
    staged = call(pep, staging("pay_small"), session(idempotency_key="intent-1"))
    ran, again, other = (call(pep, propose("pay_small", **more), session()) for more in ({}, {}, {"amount": 6}))

    assert [each.executed for each in (before, ran, again, other)] == [False, True, False, False]
    assert acted(ran).id == staged.result["id"]
    assert (again.verdict, again.codes) == (Verdict.DENY, ("actions.state",))
    assert again.outcome.rejection is not None
    assert again.outcome.rejection.reason == (
        "DENY: actions.state: the action staged for pay_small was committed or denied, or belongs to another call"
    )
    for each in (before, other):
        assert failure(each).details["rule"] == "commit.unstaged"
    assert (works.runs, states(pep)) == ([("pay_small", 5)], [("pay_small", COMMITTED)])


def test_only_one_of_concurrent_commits_gets_the_staged_action(pep: Pep, works: Desk) -> None:
    pep.call(staging("pay_small"), session())
    with ThreadPoolExecutor(8) as threads:
        evaluations = list(threads.map(lambda _: pep.call(propose("pay_small"), session()), range(8)))

    assert sorted((each.verdict or "", each.executed) for each in evaluations) == [
        (Verdict.ALLOW, True), *[(Verdict.DENY, False)] * 7,
    ]  # fmt: skip
    assert works.runs == [("pay_small", 5)]


@both_ways
def test_two_approvals_for_calls_with_the_same_arguments_have_separate_actions(pep: Pep, call: Call) -> None:
    staged = call(pep, staging("send_letter"), session(idempotency_key="intent-1"))
    first, second = (call(pep, propose("send_letter"), session(idempotency_key=key)) for key in ("key-1", "key-2"))
    again = call(pep, propose("send_letter"), session())
    for each in (first, second):
        rules(pep).grant(asked(each).id, CHIEF, SOON)
    ran = [call(pep, propose("send_letter"), session(idempotency_key=key, time=SOON)) for key in ("key-1", "key-2")]

    assert (acted(first).id, acted(again).id) == (staged.result["id"],) * 2
    assert [(acted(each).id, acted(each).state, acted(each).approval_id) for each in ran] == [
        (acted(each).id, COMMITTED, asked(each).id) for each in (first, second)
    ]
    assert acted(first).id != acted(second).id


def test_approved_call_is_denied_if_another_approval_approved_its_action(pep: Pep, works: Desk) -> None:
    # The copy shares the stores but not the runs in memory, so the copy acts like an enforcement point in another
    # process.
    other = pep.with_changes(actions=pep.actions)
    approvals = []
    for each, key in ((pep, "key-1"), (other, "key-2")):
        each.call(staging("send_letter"), session(idempotency_key="intent-1"))
        approvals.append(asked(each.call(propose("send_letter"), session(idempotency_key=key))))
    for approval in approvals:
        rules(pep).grant(approval.id, CHIEF, SOON)
    denied = other.call(propose("send_letter"), session(idempotency_key="key-2", time=SOON))
    ran = pep.call(propose("send_letter"), session(time=SOON))

    assert approvals[0].action_id == approvals[1].action_id
    assert (denied.verdict, denied.codes, denied.executed) == (Verdict.DENY, ("actions.state",), False)
    assert (ran.executed, acted(ran).approval_id, works.runs) == (True, approvals[0].id, [("send_letter", 5)])


def test_call_does_not_use_an_action_staged_by_another_caller(pep: Pep, works: Desk) -> None:
    other = session(claims={**session().claims, "iss": "https://other.example"})
    for kind in ("send_letter", "pay_small"):
        pep.call(staging(kind), session(idempotency_key=f"intent-{kind}"))
    unstaged = pep.call(propose("pay_small"), other)
    mine, theirs = (pep.call(propose("send_letter"), who) for who in (session(), other))
    rules(pep).grant(asked(mine).id, CHIEF, SOON)
    rules(pep).withdraw(asked(theirs).id, other.claims, SOON)

    assert (unstaged.executed, failure(unstaged).details["rule"]) == (False, "commit.unstaged")
    assert acted(mine).id != acted(theirs).id
    assert pep.call(propose("send_letter"), session(time=SOON)).executed
    assert pep.call(propose("pay_small"), session()).executed
    assert works.runs == [("send_letter", 5), ("pay_small", 5)]


class Failing(MemoryActions):
    """An action store that fails in the step with the given name."""

    def __init__(self, step: str, error: BaseException | None = None) -> None:
        super().__init__()
        self.step = step
        self.error = error or StoreError("database x: gone")

    def stage(self, action: Action, owner: str) -> Action:
        self._fail("stage")
        staged = super().stage(action, owner)
        self._fail("staged")
        return staged

    def move(self, action: Action, state: ActionState, *, approval_id: str | None = None) -> Action:
        self._fail(state)
        return super().move(action, state, approval_id=approval_id)

    def _fail(self, step: str) -> None:
        if step == self.step:
            raise self.error


def test_interrupted_staging_is_recorded_as_unknown(base: Pep) -> None:
    pep = base.with_changes(audit=MemoryAudit(), actions=Failing("staged", KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        pep.call(staging("send_letter"), session())

    assert states(pep) == [("send_letter", STAGED)]
    assert recorded(pep) == [("tool.stage_effect.dispatch", "ALLOW"), ("tool.stage_effect.result", "unknown")]


def test_approved_call_does_not_run_if_its_action_was_denied(pep: Pep, works: Desk) -> None:
    approval = granted(pep, propose("send_letter"))
    action = pep.actions.get(str(approval.action_id))
    assert action is not None
    pep.actions.move(action, DENIED)
    denied = pep.call(propose("send_letter"), session(time=SOON))

    assert (denied.verdict, denied.codes, denied.executed, works.runs) == (
        Verdict.DENY, ("actions.state",), False, [],
    )  # fmt: skip
    assert [kind for kind, _ in recorded(pep)][-3:] == [
        "tool.send_letter.dispatch", "approval.consumed", "tool.send_letter.dispatch",
    ]  # fmt: skip
    assert rules(pep).get(approval.id).state is ApprovalState.CONSUMED


@pytest.mark.parametrize("step", ["stage", "approved"])
@both_ways
def test_commit_does_not_run_if_its_action_cannot_be_stored(base: Pep, works: Desk, step: str, call: Call) -> None:
    pep = base.with_changes(audit=MemoryAudit(), tools=works.tools(), keys=MemoryIdempotency(), actions=Failing(step))
    denied = call(pep, propose("book_entry"), session())

    assert (denied.verdict, denied.codes, denied.executed, works.runs) == (
        Verdict.DENY, ("store.unavailable",), False, [],
    )  # fmt: skip
    assert recorded(pep) == [("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.dispatch", "DENY")]
    assert isinstance(pep.actions, Failing)
    pep.actions.step = ""
    assert call(pep, propose("book_entry"), session()).executed


@pytest.mark.parametrize("error", [StoreError("database x: gone"), ConnectionError("the store's own error")])
def test_result_is_returned_and_an_error_logged_if_its_action_cannot_be_stored(
    base: Pep, works: Desk, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    pep = base.with_changes(
        audit=MemoryAudit(), tools=works.tools(), keys=MemoryIdempotency(), actions=Failing("committed", error)
    )
    ran, again = (pep.call(propose("book_entry"), session()) for _ in range(2))

    assert (ran.result, acted(ran).state) == ({"number": 1, "account": "cash"}, APPROVED)
    assert (again.executed, again.result) == (False, ran.result)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("CRITICAL", f"action {acted(ran).id} has run, but its state could not be changed to committed"),
    ]


def test_step_up_opens_no_approval_if_its_action_cannot_be_staged(base: Pep) -> None:
    pep = base.with_changes(audit=MemoryAudit(), approvals=Approvals(), actions=Failing("stage"))
    denied = pep.call(propose("send_letter"), session())

    assert (denied.verdict, denied.codes, denied.approval) == (Verdict.DENY, ("store.unavailable",), None)
    assert list(rules(pep).list()) == []


@pytest.mark.parametrize("compensated", [Pep.compensate, lambda *given: asyncio.run(Pep.acompensate(*given))])
def test_compensation_is_decided_like_any_call_and_runs_once(pep: Pep, works: Desk, compensated: Call) -> None:
    posted = acted(pep.call(propose("post_note"), session()))
    undone = compensated(pep, posted.id, desk.ENTRY, session())
    after = pep.actions.get(posted.id)

    assert (undone.executed, undone.trace.tool_name, undone.trace.idempotency_key) == (
        True, "drop_note", f"compensation:{posted.id}",
    )  # fmt: skip
    assert after is not None
    assert after.state is COMPENSATED
    assert works.runs == [("post_note", 5), ("drop_note", 5)]
    assert states(pep) == [("post_note", COMPENSATED), ("drop_note", COMMITTED)]
    with pytest.raises(UsageError) as caught:
        compensated(pep, posted.id, desk.ENTRY, session())
    assert str(caught.value) == (
        f"action `{posted.id}` is compensated (only committed or failed actions can be compensated)"
    )


def test_policy_can_require_approval_for_a_compensation(pep: Pep) -> None:
    booked = acted(pep.call(propose("book_entry"), session()))
    approval = asked(pep.compensate(booked.id, desk.ENTRY, session()))
    unchanged = pep.actions.get(booked.id)
    rules(pep).grant(approval.id, CHIEF, SOON)
    undone = pep.compensate(booked.id, desk.ENTRY, session(time=SOON))

    assert unchanged == booked
    assert undone.executed
    assert states(pep) == [("book_entry", COMPENSATED), ("unbook_entry", COMMITTED)]


def test_failed_or_rejected_compensation_leaves_the_action_unchanged(pep: Pep, works: Desk) -> None:
    posted = acted(pep.call(propose("post_note"), session()))
    rejected = pep.compensate(posted.id, {"account": 1}, session())
    denied = pep.compensate(posted.id, desk.ENTRY, session(claims={"sub": "ben"}))
    works.fails = RuntimeError("no")
    failed = pep.compensate(posted.id, desk.ENTRY, session())
    works.fails = None
    again = pep.compensate(posted.id, desk.ENTRY, session())

    assert (rejected.verdict, denied.codes, failed.executed) == (None, ("scopes.missing",), True)
    # The outcome of the first attempt to compensate is unknown, so the compensation does not run a second time.
    assert (again.executed, again.outcome.failure and again.outcome.failure.details["exception"]) == (
        False, "RuntimeError",
    )  # fmt: skip
    assert pep.actions.get(posted.id) == posted
    assert works.runs == [("post_note", 5), ("drop_note", 5)]


CLERKS = ("ann", "ben", "cem")


def clerk(number: int) -> Any:
    """Return the session of one of three people, who have different issuers."""
    name = CLERKS[number % 3]
    return session(claims={"sub": name, "iss": f"https://{name}.example", "emts": {"desk": True}})


def test_only_one_of_concurrent_compensations_runs(pep: Pep, works: Desk, caplog: pytest.LogCaptureFixture) -> None:
    posted = acted(pep.call(propose("post_note"), session()))
    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(lambda number: attempt(pep, posted.id, clerk(number)), range(8)))

    assert outcomes.count("executed") == 1
    assert caplog.messages == []
    assert works.runs == [("post_note", 5), ("drop_note", 5)]


def test_compensation_with_unknown_outcome_is_not_repeated_by_another_caller(pep: Pep, works: Desk) -> None:
    posted = acted(pep.call(propose("post_note"), session()))
    works.fails = RuntimeError("no")
    evaluations = [pep.compensate(posted.id, desk.ENTRY, clerk(number)) for number in range(3)]
    with_others = pep.compensate(posted.id, {**desk.ENTRY, "amount": 6}, session())

    assert [each.executed for each in evaluations] == [True, False, False]
    assert (with_others.verdict, with_others.codes) == (Verdict.DENY, ("idempotency.conflict",))
    assert works.runs == [("post_note", 5), ("drop_note", 5)]


def attempt(pep: Pep, action_id: str, who: Any) -> str:
    try:
        return "executed" if pep.compensate(action_id, desk.ENTRY, who).executed else "not executed"
    except UsageError:
        return "refused"


def test_action_that_cannot_be_compensated_is_an_error(pep: Pep, tmp_path: Path) -> None:
    waits = acted(pep.call(propose("send_letter"), session()))
    posted = acted(pep.call(propose("post_note"), session()))
    file = tmp_path / "other.yaml"
    file.write_text("""
manifest_version: 2026.2.0
tools:
  - {name: other_note, effect_class: pure, risk_tier: low, schema: {type: object}}
""")
    without = tmp_path / "without.yaml"
    without.write_text("""
manifest_version: 2026.3.0
tools:
  - {name: post_note, effect_class: pure, risk_tier: low, schema: {type: object}}
""")
    elsewhere = Pep(load_effective(file, None), pep.engine, actions=pep.actions)
    nothing = Pep(load_effective(without, None), pep.engine, actions=pep.actions)

    faults = []
    for each, action_id, who in (
        (pep, "unknown", session()), (pep, waits.id, session()), (elsewhere, posted.id, session()),
        (nothing, posted.id, session()), (pep, posted.id, None),
    ):  # fmt: skip
        with pytest.raises(UsageError) as caught:
            each.compensate(action_id, desk.ENTRY, who)
        faults.append(str(caught.value))

    hint = "(use the manifest with which the action was committed)"
    assert faults == [
        "action `unknown` does not exist (take the id from `Evaluation.action`)",
        f"action `{waits.id}` is staged (only committed or failed actions can be compensated)",
        f"action `{posted.id}`: its kind `post_note` is not a tool of manifest 2026.2.0 {hint}",
        f"action `{posted.id}`: tool post_note declares no compensation (add `compensation: TOOL`)",
        "the call has no session (open a session with `with pep.using(session)`, or pass one)",
    ]
