"""Run one scenario step by step, and compare the result of each step with its expectation."""

from collections.abc import Callable, Container, Mapping
from copy import deepcopy
from dataclasses import replace
from itertools import count
from typing import Any, Final

from pdp.approvals.approvals import Approvals
from pdp.approvals.people import ApprovalRefusedError
from pdp.audit.chain import MemoryAudit
from pdp.contract.request import call_digest
from pdp.decision import Verdict, denied
from pdp.engine.protocol import REQUEST_INVALID
from pdp.errors import UsageError
from pdp.json import JsonValueError, canonical, check_json
from pdp.ledger.ledger import MemoryLedger
from pdp.manifest.effective import EffectiveManifest
from pdp.pep import Pep
from pdp.request import Entity, Request, RequestedAction, bounded
from pdp.session import Session
from pdp.stores.approvals import Approval, ApprovalState
from pdp.stores.budgets import MemoryBudgets
from pdp.stores.memory import MemoryActions, MemoryIdempotency
from pdp.workbench.scenarios.files.scenario import Step, proposed_tool
from pdp.workbench.scenarios.results import Mismatch, StepResult
from pdp.workbench.scenarios.running.engines import RecordingEngine
from pdp.workbench.scenarios.running.expectation import Happened, actual, expected, mismatches
from pdp.workbench.scenarios.running.world import RecordedWorld

_FAILING: Final = ("engine.", "bundle.")
_FAILURES: Final = frozenset(("pep.internal_error", "store.unavailable", "audit.write_failed"))
_NO_APPROVAL: Final = "no STEP_UP in this scenario has opened an approval"


class ScenarioRun:
    """A running scenario with its own idempotency keys, staged actions, approvals, ledger and audit events."""

    def __init__(
        self,
        pep: Pep,
        engine: RecordingEngine,
        functions: Mapping[str, Callable[..., Any]],
        world: RecordedWorld | None = None,
    ) -> None:
        # Ids are predictable, so that every run sends the same requests.
        self._approvals = Approvals(ids=map("approval-{}".format, count(1)).__next__)
        self._pep = pep.with_changes(
            tools=functions,
            audit=MemoryAudit(),
            approvals=self._approvals,
            keys=MemoryIdempotency(),
            # The id is predictable, because a scenario could not expect a random one.
            actions=MemoryActions(ids="action-{}".format),
            budgets=MemoryBudgets(),
            ledger=MemoryLedger(),
        )
        self._world = world
        self._engine = engine
        self._manifest = pep.manifest
        self._open: Approval | None = None
        engine.take()

    def step(self, step: Step, session: Session | None, place: Any) -> StepResult:
        """Run a step, and compare its result with its expectation."""
        happened = self._happened(step, session)
        several = isinstance(step.expect, tuple)
        stated = [expected(expect) for expect in step.expectations]
        actual_sides = [actual(expect, outcome) for expect, outcome in zip(step.expectations, happened, strict=True)]
        differing: list[Mismatch] = []
        for at, outcome in enumerate(happened):
            differing += outcome.excess
            differing += mismatches(stated[at], actual_sides[at], f"plan[{at}]." if several else "")
            differing += _failed_decision(outcome, stated[at])
        answers, plans = self._engine.take()
        return StepResult(
            action=step.action,
            place=place,
            expected=stated if several else stated[0],
            actual=actual_sides if several else actual_sides[0],
            mismatches=tuple(differing),
            evaluations=tuple(outcome.evaluation for outcome in happened if outcome.evaluation is not None),
            answers=answers,
            tool=_tool(step),
            plans=plans,
            given=_given(step, session),
        )

    def _happened(self, step: Step, session: Any) -> tuple[Happened, ...]:
        if step.action == "propose":
            return (self._proposed(step.propose, session, step, step.returns),)
        if step.action == "plan":
            return self._planned(step, session)
        if step.action == "request":
            return (self._requested(step.request),)
        return (self._decided(self._approvals.grant if step.action == "approve" else self._approvals.deny, session),)

    def _planned(self, step: Step, session: Session) -> tuple[Happened, ...]:
        """Check a plan as a whole and, if the policy allows it, call the steps that the check has not removed."""
        proposals = step.plan or ()
        planned = self._pep.plan(list(proposals), session)
        happened = []
        for number, checked in enumerate(planned.checked.steps, start=1):
            returns = step.returns[number - 1] if step.returns is not None else None
            own = session.with_changes(request_id=f"{session.request_id}.{number}", plan=planned.plan)
            if checked.rejection is not None:
                # The step is proposed as a call, which returns the enforcement point's rejection even if the policy
                # denies the plan.
                happened.append(self._proposed(proposals[number - 1], own, step, returns))
            elif checked.proposal is None or planned.decision.verdict is not Verdict.ALLOW:
                happened.append(Happened(decision=None if checked.pruned else planned.decision, planned=checked))
            else:
                called = self._proposed(checked.proposal.as_json(), own, step, returns)
                happened.append(replace(called, planned=checked))
        return tuple(happened)

    def _proposed(self, proposal: Any, session: Session, step: Step, returns: Any) -> Happened:
        pep = self._pep
        if "returns" in step.model_fields_set:
            pep = pep.with_changes(tools=dict.fromkeys(self._manifest.tools, returning(returns)))
        evaluation = pep.call(proposal, session)
        opened = evaluation.approval
        approval = None if opened is None else self._approvals.get(opened.id)
        if approval is not None and approval.state is ApprovalState.PENDING:
            self._open = approval
        happened = Happened(evaluation, evaluation.decision, approval)
        if self._world is None or "returns" in step.model_fields_set:
            return happened
        touched, excess = self._world.take(evaluation, self._manifest)
        return replace(happened, touched=touched, excess=excess)

    def _requested(self, raw: Any) -> Happened:
        request = _filled_in(raw, self._manifest)
        try:
            check_json(request)
            decision = self._engine.decide_body(bounded(canonical(request)))
        except JsonValueError as error:
            decision = denied(REQUEST_INVALID, str(error))
        return Happened(decision=decision)

    def _decided(self, decide: Callable[..., Approval], approver: Session) -> Happened:
        if self._open is None:
            raise UsageError(_NO_APPROVAL, hint="add an earlier step that proposes the call")
        try:
            decide(self._open.id, approver.claims, approver.time)
        except ApprovalRefusedError as error:
            return Happened(approval=self._approvals.get(self._open.id), refused=error.reason)
        return Happened(approval=self._approvals.get(self._open.id))


def _failed_decision(happened: Happened, expected_keys: Container[str]) -> tuple[Mismatch, ...]:
    """Return a mismatch if a DENY only reports that the policy failed, unless the step expects codes."""
    codes = happened.decision.codes if happened.decision is not None else ()
    failed = [code for code in codes if code in _FAILURES or code.startswith(_FAILING)]
    if not failed or "codes" in expected_keys:
        return ()
    return (Mismatch("decided by", "the policy", f"failed: {', '.join(failed)}"),)


def returning(value: Any) -> Callable[..., Any]:
    """Return a function that accepts any arguments and returns a copy of `value`."""

    def stand_in(**_: Any) -> Any:
        return deepcopy(value)

    return stand_in


def _given(step: Step, session: Session | None) -> dict[str, Any]:
    """Return the input and the session of a step, without the ids that the harness sets."""
    given = {} if step.action in ("approve", "deny") else {step.action: getattr(step, step.action)}
    if session is not None and step.action != "request":
        given["session"] = session.model_dump(mode="json", exclude_defaults=True, exclude={"run_id", "request_id"})
    return given


def _tool(step: Step) -> str | None:
    if isinstance(step.request, dict) and isinstance(step.request.get("action"), dict):
        return proposed_tool(step.request["action"].get("properties"))
    return proposed_tool(step.plan[0] if step.plan else step.propose)


def _filled_in(request: Any, manifest: EffectiveManifest) -> Any:
    """Return a raw request with the values of `$manifest_digest`, `$manifest_version` and `$call_digest` filled in.

    Digests change with every edit of the manifest, so scenarios cannot name them. `$MANIFEST_DIGEST` in capitals, and
    the name after a space, give a digest that is almost right. `$call_digest` is kept if the request is malformed.
    """
    digest = manifest.digest
    near = {"$MANIFEST_DIGEST": digest.upper(), " $manifest_digest": f" {digest}"}
    filled = replaced_texts(request, near | {"$manifest_digest": digest, "$manifest_version": manifest.version})
    try:
        subject, resource = Entity(**filled["subject"]), Entity(**filled["resource"])
        whole = Request(subject, RequestedAction(**filled["action"]), resource, dict(filled["context"]))
        return replaced_texts(filled, {"$call_digest": call_digest(whole)})
    except (KeyError, TypeError, ValueError):
        return filled


def replaced_texts(value: Any, known: Mapping[str, str]) -> Any:
    """Return a JSON value in which each string that is a key of `known` is replaced by the key's value."""
    if isinstance(value, dict):
        return {key: replaced_texts(member, known) for key, member in value.items()}
    if isinstance(value, list):
        return [replaced_texts(member, known) for member in value]
    return known.get(value, value) if isinstance(value, str) else value
