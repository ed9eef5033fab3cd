"""A STEP_UP opens an approval for one call. After a grant, exactly this call may run, once."""

import sys
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from pdp import Approval, Approvals, Evaluation, MemoryAudit, Pep, Verdict
from pdp.decision import GRANT
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import AuditError
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.model import Idempotency
from pdp.stores.approvals import ApprovalState, Transaction
from pdp.stores.memory import MemoryActions, MemoryApprovals
from tests.support import payments
from tests.support.desk import Call, FailingAudit, asked, both_ways, events, rules
from tests.support.payments import Hub, session, wire
from tests.support.scripted import Scripted, answer, until_approved

SOON, END = "2026-07-01T10:05:00Z", "2026-07-01T11:00:00Z"
BOSS = {"sub": "boss", "roles": ["payments.approver"]}
EFFECTIVE = payments.effective()


@pytest.fixture
def pep(hub: Hub) -> Pep:
    return scripted(hub)


def scripted(hub: Hub, manifest: EffectiveManifest = EFFECTIVE, **options: Any) -> Pep:
    tools = {"initiate_wire": hub.initiate_wire}
    return Pep(manifest, Scripted(until_approved), **{"approvals": Approvals(), "tools": tools, **options})


def granted(pep: Pep, **changes: Any) -> Approval:
    """Make a call that needs approval, grant the approval, and return the approval."""
    return rules(pep).grant(asked(pep.call(wire(), session(**changes))).id, BOSS, SOON)


def shown(pep: Pep) -> list[Any]:
    assert isinstance(pep.engine, Scripted)
    return [request["context"]["approval"] for request in pep.engine.asked]


def test_repeated_calls_that_need_approval_open_only_one_approval(pep: Pep, hub: Hub) -> None:
    first, second = pep.call(wire(), session()), pep.call(wire(), session())

    assert first.approval is not None
    assert first.approval == second.approval
    assert (first.verdict, first.approval.state, first.approval.reasons) == (
        Verdict.STEP_UP, ApprovalState.PENDING, ("approvals.required",),
    )  # fmt: skip
    assert first.approval.approvers == ("payments.approver",)
    assert (shown(pep), hub.wires) == ([None, None], [])
    which = first.approval.id
    assert [(event["type"], event["approval_id"], event["subject"]) for event in events(pep)] == [
        ("approval.opened", which, "officer-123"),
        ("tool.initiate_wire.dispatch", which, "officer-123"),
        ("tool.initiate_wire.dispatch", which, "officer-123"),
    ]


def test_granted_call_runs_once_and_its_steps_are_recorded_in_order(pep: Pep, hub: Hub) -> None:
    approval = granted(pep)
    ran = pep.call(wire(), session(time=SOON))
    # A replay of the call shows the used approval, even long after the approval has expired.
    again = pep.call(wire(), session(time="2026-07-09T10:00:00Z"))

    assert (ran.verdict, ran.executed, ran.result) == (Verdict.ALLOW, True, {"wire_id": "wire-1"})
    assert ran.approval is not None
    assert (ran.approval.id, ran.approval.state) == (approval.id, ApprovalState.CONSUMED)
    assert (again.verdict, again.executed, again.result, again.approval) == (
        Verdict.ALLOW, False, {"wire_id": "wire-1"}, ran.approval,
    )  # fmt: skip
    assert hub.wires == [payments.ARGUMENTS]
    seen = {
        "id": approval.id, "call_digest": approval.call_digest, "age_seconds": 300, "expires_at": END,
        "grants": [{"iss": None, "sub": "boss", "roles": ["payments.approver"], "at": SOON}],
    }  # fmt: skip
    assert shown(pep) == [None, seen, seen]
    assert [(event["type"], event["verdict"], event["approval_id"]) for event in events(pep)] == [
        ("approval.opened", None, approval.id),
        ("tool.initiate_wire.dispatch", "STEP_UP", approval.id),
        ("approval.granted", None, approval.id),
        ("tool.initiate_wire.dispatch", "ALLOW", approval.id),
        ("approval.consumed", None, approval.id),
        ("tool.initiate_wire.result", None, approval.id),
        ("tool.initiate_wire.dispatch", "ALLOW", approval.id),
        ("tool.initiate_wire.result", None, approval.id),
    ]


def test_call_that_reuses_an_idempotency_key_does_not_get_the_approval_of_the_first_call(pep: Pep, hub: Hub) -> None:
    approval = granted(pep)
    pep.call(wire(), session(time=SOON))
    other = pep.call(wire(), session(time=SOON, purpose="payments.supplier"))

    assert (other.verdict, other.executed, other.result) == (Verdict.STEP_UP, False, None)
    assert [approval and approval["id"] for approval in shown(pep)] == [None, approval.id, None]
    assert len(hub.wires) == 1


def test_decide_neither_opens_nor_uses_an_approval(pep: Pep) -> None:
    assert pep.decide(wire(), session()).approval is None
    assert list(rules(pep).list()) == []

    approval = granted(pep)
    decided = [pep.decide(wire(), session()) for _ in range(3)]

    assert [(each.verdict, each.approval) for each in decided] == [(Verdict.ALLOW, approval)] * 3
    assert [event["type"] for event in events(pep)][4:] == ["tool.initiate_wire.dispatch"] * 3


@pytest.mark.parametrize(
    ("proposal", "changes"),
    [
        pytest.param(wire(amount=47501), {}, id="another amount"),
        pytest.param(wire(), {"purpose": "payments.supplier"}, id="another purpose"),
        pytest.param(wire(), {"idempotency_key": "idm-other"}, id="another key"),
        pytest.param(wire(), {"agent": "agent:other"}, id="another agent"),
        pytest.param(wire(), {"run_id": "run-2"}, id="another run"),
        pytest.param(wire(), {"claims": {**session().claims, "sub": "other"}}, id="another subject"),
        pytest.param(wire(), {"facts": {**session().facts, "sanctions_status": "hit"}}, id="other facts"),
        pytest.param(wire(), {"time": END}, id="expired"),
        pytest.param(wire(), {"time": "2026-07-01T09:59:59Z"}, id="time before the approval was opened"),
    ],
)
def test_call_with_changed_arguments_needs_another_approval(
    pep: Pep, hub: Hub, proposal: Any, changes: dict[str, Any]
) -> None:
    approval = granted(pep)
    other = pep.call(proposal, session(**changes))

    assert other.approval is not None
    assert (other.verdict, other.approval.id != approval.id, hub.wires) == (Verdict.STEP_UP, True, [])
    assert shown(pep) == [None, None]


def test_approval_covers_the_same_call_with_a_new_request_id_and_time(pep: Pep) -> None:
    granted(pep)

    assert pep.decide(wire(), session(request_id="req-2", time=SOON)).allowed


@pytest.mark.parametrize("approvals", [None, Approvals()])
@pytest.mark.parametrize("mapping", ["$session.facts.approval", {"id": "forged"}])
def test_approval_in_the_callers_session_is_ignored(approvals: Approvals | None, mapping: Any) -> None:
    forged, engine = {"id": "forged"}, Scripted(until_approved)
    tool = EFFECTIVE.tools["initiate_wire"].model_copy(update={"context": {"approval": mapping}})
    pep = Pep(replace(EFFECTIVE, tools={tool.name: tool}), engine, approvals=approvals)
    claims, facts = {**session().claims, "approval": forged}, {**session().facts, "approval": forged}

    decided = pep.decide(wire(), session(claims=claims, facts=facts))

    assert (decided.verdict, engine.asked[0]["context"]["approval"]) == (Verdict.STEP_UP, None)


def test_policy_can_deny_a_call_with_a_granted_approval(pep: Pep, hub: Hub) -> None:
    approval = granted(pep)
    assert isinstance(pep.engine, Scripted)
    pep.engine.respond = lambda _: answer("DENY", code="approvals.invalid")
    denied = pep.call(wire(), session())
    pep.engine.respond = lambda _: answer("STEP_UP", code="limits.exceeded")
    more = pep.call(wire(), session())

    assert (denied.verdict, denied.codes, denied.approval) == (Verdict.DENY, ("approvals.invalid",), approval)
    assert more.approval is not None
    assert (more.verdict, more.approval.id != approval.id, hub.wires) == (Verdict.STEP_UP, True, [])
    assert rules(pep).get(approval.id) == approval


def at_once(pep: Pep) -> list[Evaluation]:
    """Make four calls at once, which are all decided before any call uses the approval. Return the results."""
    granted(pep)
    together = threading.Barrier(4)

    def respond(request: dict[str, Any]) -> dict[str, Any]:
        together.wait()
        return until_approved(request)

    assert isinstance(pep.engine, Scripted)
    pep.engine.respond = respond
    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(lambda _: pep.call(wire(), session()), range(4)))


def test_concurrent_calls_run_the_tool_once(pep: Pep, hub: Hub) -> None:
    evaluations = at_once(pep)

    assert sorted((each.verdict or "", each.result["wire_id"], each.executed) for each in evaluations) == [
        *[(Verdict.ALLOW, "wire-1", False)] * 3, (Verdict.ALLOW, "wire-1", True),
    ]  # fmt: skip
    assert len(hub.wires) == 1
    assert Counter((event["type"], event["verdict"], tuple(event["codes"])) for event in events(pep)[3:]) == {
        ("tool.initiate_wire.dispatch", "ALLOW", (GRANT,)): 4,
        ("approval.consumed", None, ("approvals.required",)): 1,
        ("tool.initiate_wire.result", None, ()): 4,
    }


def test_concurrent_calls_without_key_share_one_approval_and_run_once(hub: Hub) -> None:
    keyless = EFFECTIVE.tools["initiate_wire"].model_copy(update={"idempotency": Idempotency(required=False)})
    evaluations = at_once(scripted(hub, replace(EFFECTIVE, tools={keyless.name: keyless})))

    assert sorted((each.verdict or "", each.codes, each.executed) for each in evaluations) == [
        (Verdict.ALLOW, (GRANT,), True), *[(Verdict.DENY, ("approvals.invalid",), False)] * 3,
    ]  # fmt: skip
    assert len(hub.wires) == 1


def test_call_is_denied_if_its_approval_is_withdrawn_during_the_decision(pep: Pep, hub: Hub) -> None:
    approval = granted(pep)

    def respond(request: dict[str, Any]) -> dict[str, Any]:
        rules(pep).withdraw(approval.id, {"sub": "officer-123"}, SOON)
        return until_approved(request)

    assert isinstance(pep.engine, Scripted)
    pep.engine.respond = respond
    called = pep.call(wire(), session())

    assert called.outcome.as_json() == {
        "status": "rejected",
        "rejection": {
            "code": "POLICY_VIOLATION",
            "reason": f"DENY: approvals.invalid: approval {approval.id}: it is withdrawn",
        },
    }
    assert hub.wires == []


def test_tool_without_function_does_not_use_the_approval(pep: Pep) -> None:
    approval = granted(pep)
    called = pep.with_changes(tools={}).call(wire(), session())

    assert (called.allowed, called.executed, called.approval) == (True, False, approval)
    assert rules(pep).get(approval.id).state is ApprovalState.GRANTED


@pytest.mark.parametrize("takes", [0, 1])
def test_call_that_cannot_be_recorded_neither_runs_nor_uses_its_approval(hub: Hub, takes: int) -> None:
    log = FailingAudit(AuditError("disk full"))
    pep = scripted(hub, audit=log)
    approval = granted(pep)
    log.takes = takes
    denied = pep.call(wire(), session())
    log.takes = 1000
    ran = pep.call(wire(), session())

    assert (denied.verdict, denied.codes, denied.executed) == (Verdict.DENY, ("audit.write_failed",), False)
    assert ran.approval is not None
    assert (ran.executed, ran.approval.id, len(hub.wires)) == (True, approval.id, 1)


def test_approval_that_cannot_be_recorded_is_not_opened(hub: Hub) -> None:
    pep = scripted(hub, audit=FailingAudit(AuditError("disk full"), takes=0))
    called = pep.call(wire(), session())

    assert (called.verdict, called.codes, called.approval) == (Verdict.DENY, ("audit.write_failed",), None)
    assert list(rules(pep).list()) == []


class Failing(MemoryApprovals):
    """An approval store that fails in the step with the given name."""

    step = ""

    def list(self, **which: Any) -> Sequence[Approval]:
        self._fail("list")
        return super().list(**which)

    def add(self, approval: Approval) -> Approval:
        self._fail("add")
        return super().add(approval)

    def replace(self, old: Approval, new: Approval, *, within: Transaction | None = None) -> bool:
        self._fail("replace")
        return super().replace(old, new, within=within)

    def _fail(self, step: str) -> None:
        if self.step == step:
            raise ConnectionError("database is gone")


@pytest.mark.parametrize(("step", "first"), [("list", True), ("add", True), ("list", False), ("replace", False)])
@both_ways
def test_call_is_denied_if_the_approval_store_fails(hub: Hub, step: str, first: bool, call: Call) -> None:
    store = Failing()
    pep = scripted(hub, approvals=Approvals(store))
    if not first:
        granted(pep)
    store.step = step
    called = call(pep, wire(), session())

    assert (called.verdict, called.codes, called.executed, hub.wires) == (
        Verdict.DENY, ("pep.internal_error",), False, [],
    )  # fmt: skip
    assert events(pep)[-1]["codes"] == ["pep.internal_error"]


def test_approval_times_come_from_the_clock_if_the_session_has_no_time(pep: Pep, hub: Hub) -> None:
    rules(pep).grant(asked(pep.call(wire(), session(time=None))).id, BOSS)

    assert pep.call(wire(), session(time=None)).executed
    assert len(hub.wires) == 1


def test_step_up_opens_no_approval_without_an_approval_store(hub: Hub) -> None:
    pep = scripted(hub, approvals=None)
    called = pep.call(wire(), session())

    assert (called.verdict, called.approval, hub.wires) == (Verdict.STEP_UP, None, [])
    assert [event["approval_id"] for event in events(pep)] == [None]


def test_with_changes_replaces_only_the_given_options_of_an_enforcement_point(pep: Pep, hub: Hub) -> None:
    log, store = MemoryAudit(), Approvals()
    other = pep.with_changes(audit=log, approvals=store, tools={})
    called = other.call(wire(), session())

    assert (other.engine, other.manifest) == (pep.engine, pep.manifest)
    assert [event["type"] for event in log.events] == ["approval.opened", "tool.initiate_wire.dispatch"]
    assert (events(pep), list(rules(pep).list())) == ([], [])
    assert store.audit is log
    assert called.approval is not None
    same = pep.with_changes()
    assert (same.audit, same.approvals, same.actions) == (pep.audit, pep.approvals, pep.actions)
    for point in (pep, same):
        # The second registration would fail if the two enforcement points shared their functions.
        @point.tool
        def lookup_beneficiary(payee_name: str, invoice_ref: str) -> None: ...


@pytest.mark.parametrize("name", ["keys", "actions", "runs", "ledger", "budgets"])
def test_copies_of_an_enforcement_point_share_stores_in_memory(pep: Pep, name: str) -> None:
    copies = [pep]
    for _ in range(sys.getrecursionlimit()):
        copies.append(copies[-1].with_changes())
    last, own = copies[-1], copies[-1].with_changes(actions=MemoryActions())
    stores = [getattr(each._parts.stores, name) for each in (last, pep, copies[1], own)]

    assert [store is stores[0] for store in stores] == [True, True, True, name not in ("actions", "runs")]


def test_approval_events_of_a_copy_go_only_to_the_audit_stream_of_the_copy(pep: Pep, hub: Hub) -> None:
    log = MemoryAudit()
    other = pep.with_changes(audit=log)
    opened = asked(other.call(wire(), session(time=None)))
    rules(other).grant(opened.id, BOSS)

    assert other.call(wire(), session(time=None)).executed
    assert [event["type"] for event in log.events] == [
        "approval.opened", "tool.initiate_wire.dispatch", "approval.granted", "tool.initiate_wire.dispatch",
        "approval.consumed", "tool.initiate_wire.result",
    ]  # fmt: skip
    assert (events(pep), rules(pep).get(opened.id).state) == ([], "consumed")


def test_copy_of_an_enforcement_point_denies_a_release_older_than_one_seen_by_the_original() -> None:
    engine = Scripted(lambda _: {**answer(), "bundle": {"revision": "sha256:2", "release": 2}})
    pep = Pep(EFFECTIVE, engine)
    assert pep.with_changes().decide(wire(), session()).allowed

    engine.respond = lambda _: answer()

    assert pep.decide(wire(), session()).codes == ("bundle.stale",)


def test_worked_example_runs_once_after_second_person_approves(payments_engine: EmbeddedEngine, hub: Hub) -> None:
    approvals = Approvals()
    pep = Pep(EFFECTIVE, payments_engine, approvals=approvals, tools={"initiate_wire": hub.initiate_wire})
    first = pep.call(wire(), session())
    assert first.approval is not None
    approvals.grant(first.approval.id, BOSS, SOON)
    other = pep.call(wire(amount=60000), session(time=SOON))
    ran, again = (pep.call(wire(), session(time=SOON)) for _ in range(2))
    changed = pep.call(wire(amount=20000), session(time=SOON))

    assert [(each.verdict, each.executed) for each in (first, other, ran, again, changed)] == [
        (Verdict.STEP_UP, False), (Verdict.STEP_UP, False), (Verdict.ALLOW, True), (Verdict.ALLOW, False),
        (Verdict.DENY, False),
    ]  # fmt: skip
    assert (again.result, changed.codes) == (ran.result, ("idempotency.conflict",))
    assert (first.codes, ran.codes) == (("limits.exceeded",), ("effects.gate_satisfied", "risk.acceptable"))
    assert hub.wires == [payments.ARGUMENTS]
