"""Actions in the enforcement point: no commit without one, none of two commits, and what was done can be taken back."""

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
def test_a_step_up_stages_a_grant_approves_the_run_commits(pep: Pep, call: Call) -> None:
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
        pytest.param(KeyboardInterrupt(), APPROVED, id="nobody knows what came of it"),
    ],
)
def test_how_a_run_ends_is_how_its_action_ends(pep: Pep, works: Desk, error: BaseException, state: ActionState) -> None:
    works.fails = error
    granted(pep, propose("send_letter"))
    if isinstance(error, Exception):
        assert acted(pep.call(propose("send_letter"), session(time=SOON))).state is state
    else:
        with pytest.raises(KeyboardInterrupt):
            pep.call(propose("send_letter"), session(time=SOON))

    assert states(pep) == [("send_letter", state)]


@pytest.mark.parametrize("end", ["deny", "withdraw"])
def test_what_is_denied_or_withdrawn_is_never_committed_and_asking_again_stages_anew(
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


def test_an_approval_that_runs_out_leaves_its_action_behind(pep: Pep) -> None:
    first = granted(pep, propose("send_letter"))
    late = pep.call(propose("send_letter"), session(time="2026-07-02T10:00:00Z"))

    assert asked(late).action_id != first.action_id
    assert states(pep) == [("send_letter", APPROVED), ("send_letter", STAGED)]


def test_the_same_approved_call_without_a_key_is_a_new_action_each_time(pep: Pep, works: Desk) -> None:
    for _ in range(2):
        granted(pep, propose("recall_letter"), idempotency_key=None)
        assert pep.call(propose("recall_letter"), session(idempotency_key=None, time=SOON)).executed

    assert states(pep) == [("recall_letter", COMMITTED)] * 2
    assert len(works.runs) == 2


@both_ways
def test_a_commit_that_the_policy_allows_is_staged_and_approved_in_one_go(pep: Pep, works: Desk, call: Call) -> None:
    ran = [acted(call(pep, propose("post_note"), session())) for _ in range(2)]

    assert [(action.state, action.approval_id) for action in ran] == [(COMMITTED, None)] * 2
    assert states(pep) == [("post_note", COMMITTED)] * 2
    assert len(works.runs) == 2


def test_equal_commits_at_the_same_time_have_an_action_each(pep: Pep) -> None:
    together = threading.Barrier(4)
    # Each is still running when the others are approved.
    tools = {"post_note": lambda account, amount: together.wait(PATIENCE)}
    pep = pep.with_changes(tools=tools)
    with ThreadPoolExecutor(4) as threads:
        evaluations = list(threads.map(lambda _: pep.call(propose("post_note"), session()), range(4)))

    assert {acted(each).id for each in evaluations} == {action.id for action in pep.actions.list()}
    assert states(pep) == [("post_note", COMMITTED)] * 4


def test_what_only_reads_or_drafts_has_no_action(pep: Pep) -> None:
    evaluations = [pep.call(propose(tool), session()) for tool in ("read_entry", "keep_draft")]

    assert [(each.executed, each.action) for each in evaluations] == [(True, None), (True, None)]
    assert states(pep) == []


@both_ways
def test_the_action_that_was_staged_is_the_one_that_its_commit_uses(pep: Pep, works: Desk, call: Call) -> None:
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
def test_what_is_staged_waits_for_approval_at_once_and_the_grant_covers_that_commit_alone(
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
def test_what_is_denied_as_it_is_staged_is_never_committed(pep: Pep, works: Desk, end: str) -> None:
    approval = pep.call(staging("send_letter"), session()).approval
    assert approval is not None
    if end == "deny":
        rules(pep).deny(approval.id, CHIEF, SOON)
    else:
        rules(pep).withdraw(approval.id, {"sub": "ann"}, SOON)
    later = pep.call(propose("send_letter"), session(time=SOON))

    assert (asked(later).id == approval.id, works.runs) == (False, [])
    assert states(pep) == [("send_letter", DENIED), ("send_letter", STAGED)]


def test_a_session_without_a_key_commits_under_the_key_that_staging_gave(pep: Pep) -> None:
    staged = pep.call(staging("send_letter"), session(idempotency_key=None))
    assert staged.approval is not None
    rules(pep).grant(staged.approval.id, CHIEF, SOON)

    ran = pep.call(propose("send_letter"), session(idempotency_key=staged.result["idempotencyKey"], time=SOON))
    assert (ran.executed, acted(ran).id) == (True, staged.result["id"])


@pytest.mark.parametrize(
    ("kind", "changes", "opened"),
    [
        pytest.param("pay_small", {}, False, id="a commit that the policy allows"),
        pytest.param("pay_small", {"amount": 101}, True, id="one that it asks a person about"),
        pytest.param("pay_small", {"amount": -1}, False, id="one that it denies"),
    ],
)
def test_a_person_is_asked_about_what_is_staged_where_the_policy_wants_one(
    pep: Pep, kind: str, changes: dict[str, Any], opened: bool
) -> None:
    staged = pep.call(staging(kind, **changes), session())

    assert (staged.result["state"], staged.approval is not None) == ("staged", opened)
    assert [kind for kind, _ in recorded(pep)][-2 - opened :] == [
        "tool.stage_effect.result", *["approval.opened"] * opened, f"tool.{kind}.dispatch",
    ]  # fmt: skip


def test_who_is_interrupted_after_a_staging_has_staged_and_observers_are_told_so(base: Pep, works: Desk) -> None:
    def decides(request: dict[str, Any]) -> dict[str, Any]:
        if request["action"]["properties"]["tool"] == "send_letter":
            raise KeyboardInterrupt
        return answer()

    told: list[ToolEvent] = []
    pep = Pep(base.manifest, Scripted(decides), tools=works.tools(), approvals=Approvals(), observers=[told.append])
    with pytest.raises(KeyboardInterrupt):
        pep.call(staging("send_letter"), session())

    assert [(event.action, event.error) for event in told] == [("execute_end", None)]
    assert ("tool.stage_effect.result", "succeeded") in recorded(pep)


@both_ways
def test_a_commit_excused_from_approval_runs_once_for_what_was_staged(pep: Pep, works: Desk, call: Call) -> None:
    before = call(pep, propose("pay_small"), session())
    staged = call(pep, staging("pay_small"), session(idempotency_key="intent-1"))
    ran, again, other = (call(pep, propose("pay_small", **more), session()) for more in ({}, {}, {"amount": 6}))

    assert [each.executed for each in (before, ran, again, other)] == [False, True, False, False]
    assert acted(ran).id == staged.result["id"]
    assert (again.verdict, again.codes) == (Verdict.DENY, ("actions.state",))
    assert again.outcome.rejection is not None
    assert again.outcome.rejection.reason == (
        "DENY: actions.state: the action staged for pay_small was committed or denied, or is another call's"
    )
    for each in (before, other):
        assert failure(each).details["rule"] == "commit.unstaged"
    assert (works.runs, states(pep)) == ([("pay_small", 5)], [("pay_small", COMMITTED)])


def test_of_commits_at_once_one_has_the_staged_action(pep: Pep, works: Desk) -> None:
    pep.call(staging("pay_small"), session())
    with ThreadPoolExecutor(8) as threads:
        evaluations = list(threads.map(lambda _: pep.call(propose("pay_small"), session()), range(8)))

    assert sorted((each.verdict or "", each.executed) for each in evaluations) == [
        (Verdict.ALLOW, True), *[(Verdict.DENY, False)] * 7,
    ]  # fmt: skip
    assert works.runs == [("pay_small", 5)]


@both_ways
def test_two_approvals_have_an_action_each(pep: Pep, call: Call) -> None:
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


def test_an_action_that_another_approval_has_approved_does_not_run(pep: Pep, works: Desk) -> None:
    # It has the same stores, and does not know what the first one is doing: another process.
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


def test_what_another_caller_has_staged_in_a_run_of_that_name_is_not_used(pep: Pep, works: Desk) -> None:
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
    """A store that fails in one of its steps."""

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


def test_a_staging_that_is_interrupted_is_recorded_as_unknown(base: Pep) -> None:
    pep = base.with_changes(audit=MemoryAudit(), actions=Failing("staged", KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        pep.call(staging("send_letter"), session())

    assert states(pep) == [("send_letter", STAGED)]
    assert recorded(pep) == [("tool.stage_effect.dispatch", "ALLOW"), ("tool.stage_effect.result", "unknown")]


def test_an_action_that_was_denied_by_itself_keeps_its_approved_call_from_running(pep: Pep, works: Desk) -> None:
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
def test_a_commit_whose_action_cannot_be_kept_does_not_run(base: Pep, works: Desk, step: str, call: Call) -> None:
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
def test_an_action_that_cannot_be_settled_is_an_alarm_and_the_result_stands(
    base: Pep, works: Desk, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    pep = base.with_changes(
        audit=MemoryAudit(), tools=works.tools(), keys=MemoryIdempotency(), actions=Failing("committed", error)
    )
    ran, again = (pep.call(propose("book_entry"), session()) for _ in range(2))

    assert (ran.result, acted(ran).state) == ({"number": 1, "account": "cash"}, APPROVED)
    assert (again.executed, again.result) == (False, ran.result)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("CRITICAL", f"what action {acted(ran).id} stands for has run, and it could not be moved to committed"),
    ]


def test_a_step_up_whose_action_cannot_be_staged_opens_no_approval(base: Pep) -> None:
    pep = base.with_changes(audit=MemoryAudit(), approvals=Approvals(), actions=Failing("stage"))
    denied = pep.call(propose("send_letter"), session())

    assert (denied.verdict, denied.codes, denied.approval) == (Verdict.DENY, ("store.unavailable",), None)
    assert list(rules(pep).list()) == []


@pytest.mark.parametrize("compensated", [Pep.compensate, lambda *given: asyncio.run(Pep.acompensate(*given))])
def test_a_compensation_is_a_call_like_any_other_and_compensates_once(pep: Pep, works: Desk, compensated: Call) -> None:
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
        f"action `{posted.id}` is compensated (only what was committed, or has failed, is compensated)"
    )


def test_a_compensation_that_a_person_has_to_approve(pep: Pep) -> None:
    booked = acted(pep.call(propose("book_entry"), session()))
    approval = asked(pep.compensate(booked.id, desk.ENTRY, session()))
    unchanged = pep.actions.get(booked.id)
    rules(pep).grant(approval.id, CHIEF, SOON)
    undone = pep.compensate(booked.id, desk.ENTRY, session(time=SOON))

    assert unchanged == booked
    assert undone.executed
    assert states(pep) == [("book_entry", COMPENSATED), ("unbook_entry", COMMITTED)]


def test_a_compensation_that_fails_or_is_rejected_leaves_the_action_as_it_was(pep: Pep, works: Desk) -> None:
    posted = acted(pep.call(propose("post_note"), session()))
    rejected = pep.compensate(posted.id, {"account": 1}, session())
    denied = pep.compensate(posted.id, desk.ENTRY, session(claims={"sub": "ben"}))
    works.fails = RuntimeError("no")
    failed = pep.compensate(posted.id, desk.ENTRY, session())
    works.fails = None
    again = pep.compensate(posted.id, desk.ENTRY, session())

    assert (rejected.verdict, denied.codes, failed.executed) == (None, ("scopes.missing",), True)
    # What came of the first try nobody knows, so it is not made again by itself.
    assert (again.executed, again.outcome.failure and again.outcome.failure.details["exception"]) == (
        False, "RuntimeError",
    )  # fmt: skip
    assert pep.actions.get(posted.id) == posted
    assert works.runs == [("post_note", 5), ("drop_note", 5)]


CLERKS = ("ann", "ben", "cem")


def clerk(number: int) -> Any:
    """The session of one of three people, of issuers of their own."""
    name = CLERKS[number % 3]
    return session(claims={"sub": name, "iss": f"https://{name}.example", "emts": {"desk": True}})


def test_of_compensations_at_once_one_runs_whoever_makes_them(
    pep: Pep, works: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    posted = acted(pep.call(propose("post_note"), session()))
    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(lambda number: attempt(pep, posted.id, clerk(number)), range(8)))

    assert outcomes.count("executed") == 1
    assert caplog.messages == []
    assert works.runs == [("post_note", 5), ("drop_note", 5)]


def test_a_compensation_whose_outcome_nobody_knows_is_not_made_by_somebody_else(pep: Pep, works: Desk) -> None:
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


def test_what_cannot_be_compensated_is_said(pep: Pep, tmp_path: Path) -> None:
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

    hint = "(compensate it with the manifest that it was committed with)"
    assert faults == [
        "action `unknown` is not there (take the id from `Evaluation.action`)",
        f"action `{waits.id}` is staged (only what was committed, or has failed, is compensated)",
        f"action `{posted.id}`: its kind `post_note` is not a tool of manifest 2026.2.0 {hint}",
        f"action `{posted.id}`: tool post_note declares no compensation (add `compensation: TOOL`)",
        "no session is given (open one with `with pep.using(session)`, or pass it)",
    ]
