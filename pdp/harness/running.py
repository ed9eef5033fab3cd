"""Running the scenarios of a suite on an engine, through the enforcement point that applications use."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pdp.approvals.approvals import ApprovalRefusedError, Approvals
from pdp.audit import MemoryAudit
from pdp.canonical import JsonValueError, canonical, check_json
from pdp.decision import Decision, Findings, Verdict, denied
from pdp.engine.protocol import REQUEST_INVALID, Engine
from pdp.errors import UsageError
from pdp.execution.idempotency_memory import MemoryIdempotency
from pdp.harness.expectation import Happened, actual, expected, mismatches
from pdp.harness.numbered_actions import NumberedActions
from pdp.harness.raw_request import filled_in
from pdp.harness.results import Answer, Mismatch, ScenarioResult, StepResult
from pdp.harness.tools_file import ToolsFile
from pdp.pep import Pep
from pdp.request import bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pdp.approvals.approval import Approval
    from pdp.harness.scenario import Scenario, Step
    from pdp.harness.suite import Suite
    from pdp.manifest.effective import EffectiveManifest
    from pdp.proposal import Trace
    from pdp.session import Session

_LOG: Final = logging.getLogger("pdp.harness")
_FAILING: Final = ("engine.", "bundle.")
_FAILURES: Final = frozenset(("pep.internal_error", "store.unavailable", "audit.write_failed"))
_NO_APPROVAL: Final = "no STEP_UP of this scenario has opened an approval"


class Runner:
    """Runs the scenarios of one suite on one engine. The same policy, manifest and scenario make the same requests.

    Nothing is shared between scenarios: each has its own approvals, its own audit stream, and its tools file run anew.
    A tool without a function returns null, so that a scenario can say that it is executed; where there is a tools file,
    one of type `cli` runs its program. What the file's `deployment()` returns holds for the scenario's runs.

    Args:
        suite: the scenarios.
        engine: who decides; it has to know the manifest.
        manifest: instead of the suite's.

    Raises:
        UsageError: the tools file cannot be read.
        FileFaultsError: it is not Python.
    """

    def __init__(self, suite: Suite, engine: Engine, *, manifest: EffectiveManifest | None = None) -> None:
        self._suite = suite
        self._manifest = suite.manifest if manifest is None else manifest
        self._engine = _Recording(engine)
        self._pep = Pep(self._manifest, self._engine)
        self._tools = None if suite.tools is None else ToolsFile(suite.tools)
        self._stand_ins: dict[str, Callable[..., Any]] = dict.fromkeys(self._manifest.tools, _returning(None))

    def run(self, scenario_index: int) -> ScenarioResult:
        """Run one scenario; it counts from 0. After a step that failed, the rest of them are not run."""
        suite = self._suite
        scenario = suite.scenarios[scenario_index]
        steps: list[StepResult] = []
        with _captured_log() as log:
            error = self._done(scenario, scenario_index, steps)
        return ScenarioResult(
            file=str(suite.file),
            name=scenario.name,
            why=scenario.why,
            golden=scenario.golden,
            place=suite.place(scenario_index),
            engine=self._engine.name,
            manifest_version=self._manifest.version,
            manifest_digest=self._manifest.digest,
            steps=tuple(steps),
            error=error,
            log=tuple(log),
        )

    def run_all(self, progress: Callable[[ScenarioResult], None] | None = None) -> list[ScenarioResult]:
        """Run every scenario in the order of the file; `progress` is told of each."""
        results = []
        for index in range(len(self._suite.scenarios)):
            results.append(self.run(index))
            if progress is not None:
                progress(results[-1])
        return results

    def findings(self, body: bytes) -> Findings:
        """Return everything that fired for a request of these scenarios; see `Engine.findings`."""
        return self._engine.findings(body)

    def _with_tools(self) -> tuple[Pep, Mapping[str, Callable[..., Any]]]:
        """The enforcement point of one scenario, and its functions."""
        if self._tools is None:
            return self._pep, self._stand_ins
        found = self._tools.read(self._manifest.tools)
        absent = {
            name: _absent(name, self._suite.tools)
            for name, entry in self._manifest.tools.items()
            if name not in found.functions and entry.type != "cli"
        }
        told = found.deployment
        pep = self._pep if told is None else Pep(self._manifest, self._engine, deployment=told)
        return pep, {**absent, **found.functions}

    def _done(self, scenario: Scenario, index: int, done: list[StepResult]) -> str | None:
        """Do the steps, adding each to `done`, and return what kept them from being done."""
        try:
            pep, functions = self._with_tools()
            one = _Run(pep, self._engine, self._manifest, functions)
            for at, step in enumerate(scenario.steps):
                done.append(one.step(step, self._suite.sessions[index][at], self._suite.place(index, at)))
                if scenario.golden:
                    done[-1] = _held_to_contract(done[-1])
                if done[-1].mismatches:
                    break
        except UsageError as raised:
            return str(raised)
        except SystemExit as raised:
            return f"a tool would end the process: sys.exit({raised.code!r})"
        return None


class _Run:
    """One scenario on its way: its approvals, its tools, and the approval that was opened last."""

    def __init__(
        self,
        pep: Pep,
        engine: _Recording,
        manifest: EffectiveManifest,
        functions: Mapping[str, Callable[..., Any]],
    ) -> None:
        self._approvals = Approvals()
        self._pep = pep.with_changes(
            tools=functions,
            audit=MemoryAudit(),
            approvals=self._approvals,
            keys=MemoryIdempotency(),
            actions=NumberedActions(),
        )
        self._engine = engine
        self._manifest = manifest
        self._open: Approval | None = None
        engine.begin(self._approvals)

    def step(self, step: Step, session: Session | None, place: Any) -> StepResult:
        happened = self._happened(step, session)
        several = isinstance(step.expect, tuple)
        pairs = list(zip(step.expectations, happened, strict=True))
        wanted = [expected(expect) for expect, _ in pairs]
        found = [actual(expect, each) for expect, each in pairs]
        differing = tuple(
            mismatch
            for at in range(len(pairs))
            for mismatch in (
                *mismatches(wanted[at], found[at], f"plan[{at}]." if several else ""),
                *_undecided(pairs[at][1], wanted[at]),
            )
        )
        return StepResult(
            action=step.action,
            place=place,
            expected=wanted if several else wanted[0],
            actual=found if several else found[0],
            mismatches=differing,
            evaluations=tuple(each.evaluation for each in happened if each.evaluation is not None),
            answers=self._engine.take(),
            tool=_tool(step),
            plans=self._engine.take_plans(),
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
            each = session.with_changes(request_id=f"{session.request_id}.{number}", plan=planned.plan)
            if checked.rejection is not None:
                # Rejected whatever the rest of the plan is: the enforcement point says how.
                happened.append(self._proposed(proposals[number - 1], each, step, returns))
            elif checked.proposal is None or planned.decision.verdict is not Verdict.ALLOW:
                happened.append(Happened(decision=None if checked.pruned else planned.decision, planned=checked))
            else:
                one = self._proposed(checked.proposal.as_json(), each, step, returns)
                happened.append(replace(one, planned=checked))
        return tuple(happened)

    def _proposed(self, proposal: Any, session: Session, step: Step, returns: Any) -> Happened:
        pep = self._pep
        if "returns" in step.model_fields_set:
            pep = pep.with_changes(tools=dict.fromkeys(self._manifest.tools, _returning(returns)))
        evaluation = pep.call(proposal, session)
        opened = evaluation.approval
        approval = None if opened is None else self._approvals.get(opened.id)
        if approval is not None and evaluation.verdict is Verdict.STEP_UP:
            self._open = approval
        return Happened(evaluation, evaluation.decision, approval)

    def _requested(self, raw: Any) -> Happened:
        request = filled_in(raw, self._manifest)
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


class _Recording(Engine):
    """An engine that keeps what it was asked and what it answered."""

    def __init__(self, engine: Engine) -> None:
        self.name = engine.name
        self._engine = engine
        self._answers: list[Answer] = []
        self._plans: list[Answer] = []
        self._approvals: Approvals | None = None

    def begin(self, approvals: Approvals) -> None:
        self._approvals = approvals
        self._answers = []
        self._plans = []

    def decide_plan(self, body: bytes) -> Decision:
        decision = self._engine.decide_plan(body)
        self._plans.append(Answer(body, decision))
        return decision

    def evaluate_plan(self, body: bytes) -> bytes:
        return self._engine.evaluate_plan(body)

    def take_plans(self) -> tuple[Answer, ...]:
        taken, self._plans = tuple(self._plans), []
        return taken

    def take(self) -> tuple[Answer, ...]:
        taken, self._answers = tuple(self._answers), []
        return taken

    def evaluate(self, body: bytes) -> bytes:
        return self._engine.evaluate(body)

    async def aevaluate(self, body: bytes) -> bytes:
        return await self._engine.aevaluate(body)

    def evaluate_findings(self, body: bytes) -> bytes:
        return self._engine.evaluate_findings(body)

    def decide_body(self, body: bytes) -> Decision:
        body = self._repeatable(body)
        decision = self._engine.decide_body(body)
        self._answers.append(Answer(body, decision))
        return decision

    # An approval's id is unguessable, and a scenario has to make the same requests each time. No policy reads the id.
    def _repeatable(self, body: bytes) -> bytes:
        opened = self._approvals.list() if self._approvals is not None else ()
        for number, approval in enumerate(opened, start=1):
            body = body.replace(f'"{approval.id}"'.encode(), f'"approval-{number}"'.encode())
        return body


@contextmanager
def _captured_log() -> Iterator[list[str]]:
    """Keep what the enforcement point logs to the scenario: what fails there may be just what is expected."""
    log, handler = logging.getLogger("pdp"), _Lines(logging.WARNING)
    handlers, propagate = log.handlers, log.propagate
    log.handlers, log.propagate = [handler], False
    try:
        yield handler.lines
    finally:
        log.handlers, log.propagate = handlers, propagate


class _Lines(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self.lines.append(record.getMessage() + (f": {type(error).__name__}: {error}" if error else ""))


def _held_to_contract(step: StepResult) -> StepResult:
    """Fail a golden step that the contract refuses, whatever was expected of it."""
    wrong = [
        Mismatch("golden", "the tool is in the manifest, and its schema admits the arguments", shown)
        for evaluation in step.evaluations
        if (shown := _refused(evaluation.trace)) is not None
    ]
    return replace(step, mismatches=(*step.mismatches, *wrong))


def _refused(trace: Trace) -> str | None:
    if trace.in_manifest is not True:
        return f"{trace.tool_name} is not in the manifest"
    return None if trace.schema_valid is True else f"the schema of {trace.tool_name} refuses the arguments"


def _undecided(happened: Happened, wanted: dict[str, Any]) -> tuple[Mismatch, ...]:
    """What is wrong where nobody decided: a DENY that stands for a failure proves nothing of the policy.

    Whoever means the failure itself expects its code.
    """
    codes = happened.decision.codes if happened.decision is not None else ()
    failed = [code for code in codes if code in _FAILURES or code.startswith(_FAILING)]
    if not failed or "codes" in wanted:
        return ()
    return (Mismatch("decided by", "the policy", f"nobody: {', '.join(failed)}"),)


def _returning(value: Any) -> Callable[..., Any]:
    def stand_in(**_: Any) -> Any:
        return deepcopy(value)

    return stand_in


def _absent(name: str, file: Path | None) -> Callable[..., Any]:
    """A stand-in that says so, for whoever misspelt the name of a function."""

    def stand_in(**_: Any) -> Any:
        _LOG.warning("%s has no function %s: it returned null", file, name)

    return stand_in


def _tool(step: Step) -> str | None:
    """The tool of a step: the one proposed (of a plan, the first), or the one that a raw request names."""
    value = step.plan[0] if step.plan else step.propose
    if step.action == "request":
        action = step.request.get("action") if isinstance(step.request, dict) else None
        value = action.get("properties") if isinstance(action, dict) else None
    if isinstance(value, dict):
        named = value.get("tool", value.get("tool_name"))
        return named if isinstance(named, str) else None
    return None
