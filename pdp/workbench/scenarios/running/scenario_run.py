"""One run of one scenario: its steps, each held against what it expects."""

from collections.abc import Callable, Container, Mapping
from copy import deepcopy
from dataclasses import replace
from itertools import count
from typing import Any, Final

from pdp.approvals.approvals import ApprovalRefusedError, Approvals
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
_NO_APPROVAL: Final = "no STEP_UP of this scenario has opened an approval"


class ScenarioRun:
    """One scenario on its way: keys, actions, approvals, ledger and audit stream are this scenario's alone."""

    def __init__(
        self,
        pep: Pep,
        engine: RecordingEngine,
        functions: Mapping[str, Callable[..., Any]],
        world: RecordedWorld | None = None,
    ) -> None:
        # A scenario has to make the same requests, and to have the same results, each time.
        self._approvals = Approvals(ids=map("approval-{}".format, count(1)).__next__)
        self._pep = pep.with_changes(
            tools=functions,
            audit=MemoryAudit(),
            approvals=self._approvals,
            keys=MemoryIdempotency(),
            # An id that nobody can guess cannot stand in a scenario.
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
        """Do one step, and hold what happened against what the step expects."""
        happened = self._happened(step, session)
        several = isinstance(step.expect, tuple)
        stated = [expected(expect) for expect in step.expectations]
        reached = [actual(expect, outcome) for expect, outcome in zip(step.expectations, happened, strict=True)]
        differing: list[Mismatch] = []
        for at, outcome in enumerate(happened):
            differing += outcome.excess
            differing += mismatches(stated[at], reached[at], f"plan[{at}]." if several else "")
            differing += _undecided(outcome, stated[at])
        answers, plans = self._engine.take()
        return StepResult(
            action=step.action,
            place=place,
            expected=stated if several else stated[0],
            actual=reached if several else reached[0],
            mismatches=tuple(differing),
            evaluations=tuple(outcome.evaluation for outcome in happened if outcome.evaluation is not None),
            answers=answers,
            tool=_tool(step),
            plans=plans,
            given=_given(step, session),
        )

    def _happened(self, step: Step, session: Any) -> tuple[Happened, ...]:
        """Do what the step says, as whom the session says; for a plan one answer for each proposal."""
        if step.action == "propose":
            return (self._proposed(step.propose, session, step, step.returns),)
        if step.action == "plan":
            return self._planned(step, session)
        if step.action == "request":
            return (self._requested(step.request),)
        return (self._decided(self._approvals.grant if step.action == "approve" else self._approvals.deny, session),)

    def _planned(self, step: Step, session: Session) -> tuple[Happened, ...]:
        """Check the plan as a whole, and call what goes on if the policy accepts it."""
        proposals = step.plan or ()
        planned = self._pep.plan(list(proposals), session)
        happened = []
        for number, checked in enumerate(planned.checked.steps, start=1):
            returns = step.returns[number - 1] if step.returns is not None else None
            own = session.with_changes(request_id=f"{session.request_id}.{number}", plan=planned.plan)
            if checked.rejection is not None:
                # Rejected whatever the rest of the plan is: the enforcement point says how.
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
            raise UsageError(_NO_APPROVAL, hint="let a step before it propose the call, with the same arguments")
        try:
            decide(self._open.id, approver.claims, approver.time)
        except ApprovalRefusedError as error:
            return Happened(approval=self._approvals.get(self._open.id), refused=error.reason)
        return Happened(approval=self._approvals.get(self._open.id))


def _undecided(happened: Happened, expected_keys: Container[str]) -> tuple[Mismatch, ...]:
    """What is wrong where a DENY stands for a failure, unless its code is expected: it proves nothing of the policy."""
    codes = happened.decision.codes if happened.decision is not None else ()
    failed = [code for code in codes if code in _FAILURES or code.startswith(_FAILING)]
    if not failed or "codes" in expected_keys:
        return ()
    return (Mismatch("decided by", "the policy", f"nobody: {', '.join(failed)}"),)


def returning(value: Any) -> Callable[..., Any]:
    """Return a stand-in for a tool, which takes anything and gives a copy of `value`."""

    def stand_in(**_: Any) -> Any:
        return deepcopy(value)

    return stand_in


def _given(step: Step, session: Session | None) -> dict[str, Any]:
    """What a step does and as whom, without what the harness gives each scenario."""
    given = {} if step.action in ("approve", "deny") else {step.action: getattr(step, step.action)}
    if session is not None and step.action != "request":
        given["session"] = session.model_dump(mode="json", exclude_defaults=True, exclude={"run_id", "request_id"})
    return given


def _tool(step: Step) -> str | None:
    if isinstance(step.request, dict) and isinstance(step.request.get("action"), dict):
        return proposed_tool(step.request["action"].get("properties"))
    return proposed_tool(step.plan[0] if step.plan else step.propose)


def _filled_in(request: Any, manifest: EffectiveManifest) -> Any:
    """Return a request written by hand with `$manifest_digest`, `$manifest_version` and `$call_digest` replaced.

    Digests change with every edit of the manifest, so a scenario names them, each as the whole of a string. What is
    nearly the digest can be named as well: `$MANIFEST_DIGEST` in capitals, and with a blank before it. Where subject,
    action, resource and context are not whole there is no digest, and `$call_digest` stays.
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
    """Return JSON with each whole text that is a key of `known` replaced by its value."""
    if isinstance(value, dict):
        return {key: replaced_texts(member, known) for key, member in value.items()}
    if isinstance(value, list):
        return [replaced_texts(member, known) for member in value]
    return known.get(value, value) if isinstance(value, str) else value
