"""Run the scenarios of a suite on an engine, through the same enforcement point that applications use."""

import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, Final

import orjson

from pdp.decision import Decision
from pdp.engine.protocol import Engine, EngineName
from pdp.errors import EngineTimeoutError, UsageError
from pdp.pep import Pep
from pdp.proposal import Trace
from pdp.workbench.engines import LATE
from pdp.workbench.explain.explain import NO_DECISION
from pdp.workbench.scenarios.files.scenario import Scenario
from pdp.workbench.scenarios.files.suite import Suite
from pdp.workbench.scenarios.files.tools_file import ToolsFile
from pdp.workbench.scenarios.results import EngineAnswer, Mismatch, ScenarioResult, StepResult, SuiteResult
from pdp.workbench.scenarios.running.diagnosis import Diagnoses
from pdp.workbench.scenarios.running.engines import RecordingEngine, open_suite_engine
from pdp.workbench.scenarios.running.expectation import equal
from pdp.workbench.scenarios.running.scenario_run import ScenarioRun, returning
from pdp.workbench.scenarios.running.world import RecordedWorld

_LOG: Final = logging.getLogger("pdp.harness")
# Scenarios run one at a time, because each captures the global log and loads its tools file under one module name.
_LOCK: Final = threading.RLock()


class Runner:
    """Runs the scenarios of a suite on an engine that has the suite's manifest.

    Scenarios share nothing: each has its own approvals and audit events, and loads its tools file again. A tool without
    a function returns null, so that a scenario can expect that the call is executed. With a tools file, a `cli` tool
    runs its program. The file's `deployment()` applies to the scenario's runs. `explained` adds the diagnosis to a
    failed result; see `Diagnoses`.
    """

    def __init__(self, suite: Suite, engine: Engine) -> None:
        self._suite = suite
        self._manifest = suite.manifest
        self._engine = RecordingEngine(engine)
        self._pep = Pep(self._manifest, self._engine)
        self.explained = Diagnoses(suite, engine).explained
        self._tools = None if suite.tools is None else ToolsFile(suite.tools)
        self._stand_ins: dict[str, Callable[..., Any]] = dict.fromkeys(self._manifest.tools, returning(None))

    def run(self, scenario_index: int) -> ScenarioResult:
        """Run a scenario, by its index from 0, until a step fails."""
        suite = self._suite
        scenario = suite.scenarios[scenario_index]
        steps: list[StepResult] = []
        with _LOCK, _captured_log() as log:
            started = time.perf_counter()
            error = self._run_steps(scenario, scenario_index, steps)
            seconds = time.perf_counter() - started
        return ScenarioResult(
            name=scenario.name,
            why=scenario.why,
            golden=scenario.golden,
            place=suite.place(scenario_index),
            engine=self._engine.name,
            steps=tuple(steps),
            error=error,
            log=tuple(map(_logged, log)),
            seconds=seconds,
        )

    def run_all(self) -> list[ScenarioResult]:
        """Run all scenarios in the order of the file."""
        return [self.run(index) for index in range(len(self._suite.scenarios))]

    def _with_tools(self, world: RecordedWorld | None) -> tuple[Pep, Mapping[str, Callable[..., Any]]]:
        if self._tools is None:
            return self._pep, self._stand_ins
        entries = self._manifest.tools
        functions, deployment = self._tools.read(entries, world.systems if world else {})
        missing = {name: _unwritten(name, self._suite.tools) for name, entry in entries.items() if entry.type != "cli"}
        pep = self._pep
        if world is not None or deployment is not None:
            observers = (world.observe,) if world else ()
            pep = Pep(self._manifest, self._engine, deployment=deployment, observers=observers)
        return pep, missing | {name: function for name, function in functions.items() if name in entries}

    def _run_steps(self, scenario: Scenario, index: int, done: list[StepResult]) -> str | None:
        """Run the steps and append their results to `done`. Return the error that stopped the scenario, or None."""
        try:
            world = None if scenario.world is None else RecordedWorld(scenario.world, self._suite.file.parent)
            pep, functions = self._with_tools(world)
            run = ScenarioRun(pep, self._engine, functions, world)
            for at, step in enumerate(scenario.steps):
                done.append(run.step(step, self._suite.sessions[index][at], self._suite.place(index, at)))
                _check_in_time(scenario, done[-1])
                if scenario.golden:
                    done[-1] = _check_golden(done[-1])
                if done[-1].mismatches:
                    break
        except UsageError as raised:
            return str(raised)
        except SystemExit as raised:
            return f"a tool tried to end the process: sys.exit({raised.code!r})"
        except BaseException as raised:
            # Exceptions of a tool do not arrive here, because the enforcement point turns them into failures of the
            # tool.
            if self._tools is None or isinstance(raised, Exception | KeyboardInterrupt):
                raise
            return self._tools.message_of(raised)
        return None


def _check_in_time(scenario: Scenario, step: StepResult) -> None:
    for answer in (*step.answers, *step.plans):
        for reason in answer.decision.reasons:
            if reason.code == EngineTimeoutError.code:
                where = f"{step.place.file}:{step.place.line} {scenario.name}"
                raise EngineTimeoutError(f"{where}: no verdict: {reason.message}", hint=LATE)


def _check_golden(step: StepResult) -> StepResult:
    """Fail a golden step if the manifest lacks the tool or the schema rejects the call, whatever the step expects."""
    wrong = [
        Mismatch("golden", "the tool is in the manifest, and its schema accepts the arguments", shown)
        for evaluation in step.evaluations
        if (shown := _contract_fault(evaluation.trace)) is not None
    ]
    return replace(step, mismatches=(*step.mismatches, *wrong))


def _contract_fault(trace: Trace) -> str | None:
    if trace.in_manifest is not True:
        return f"{trace.tool_name} is not in the manifest"
    return None if trace.schema_valid is True else f"the schema of {trace.tool_name} rejects the arguments"


def _unwritten(name: str, file: Path | None) -> Callable[..., Any]:
    """Return a function for a tool that the tools file lacks. It logs a warning, because a name may be misspelled."""

    def stand_in(**_: Any) -> Any:
        _LOG.warning("%s has no function %s; the call returned null", file, name)

    return stand_in


def run_suite(
    suite: Suite,
    engines: Sequence[EngineName],
    *,
    selected: Callable[[str], bool] | None = None,
    progress: Callable[[ScenarioResult], None] | None = None,
) -> Iterator[SuiteResult]:
    """Run the selected scenarios on each engine in turn. A scenario fails if the engines decide differently."""
    chosen = [at for at, scenario in enumerate(suite.scenarios) if selected is None or selected(scenario.name)]
    if not chosen:
        return
    first: list[ScenarioResult] | None = None
    for name in engines:
        started = time.perf_counter()
        with open_suite_engine(suite, name) as engine:
            runner = Runner(suite, engine)
            results = []
            for position, at in enumerate(chosen):
                result = runner.run(at)
                if first is not None:
                    result = agreed(first[position], result)
                result = runner.explained(result)
                results.append(result)
                if progress is not None:
                    progress(result)
        first = first or results
        yield SuiteResult(suite, name, tuple(results), time.perf_counter() - started)


def selection(expression: str) -> Callable[[str], bool]:
    """Return a function that tells whether a name contains a match of a regular expression. Case is ignored."""
    try:
        pattern = re.compile(expression, re.IGNORECASE)
    except re.error as error:
        hint = "write a regular expression: 'wire|refund'"
        raise UsageError(f"-k: {expression!r:.80} is malformed: {error}", hint=hint) from None
    return lambda name: pattern.search(name) is not None


def agreed(base: ScenarioResult, other: ScenarioResult) -> ScenarioResult:
    """Return `other`, marked as failed if its engine decided a request differently than the engine of `base`.

    Bundle and id of a decision are ignored, and so are messages if the policy failed, because they differ by engine.
    """
    steps = list(other.steps)
    for at, (first, second) in enumerate(zip(base.steps, other.steps, strict=False)):
        differing = _differing(first.answers, second.answers)
        if differing is not None:
            mismatch = Mismatch(f"decision, {base.engine} against {other.engine}", *differing)
            steps[at] = replace(second, mismatches=(*second.mismatches, mismatch))
    if len(base.steps) != len(other.steps) and not any(step.mismatches for step in steps):
        return replace(other, error=f"{base.engine} ran {len(base.steps)} steps, {other.engine} {len(other.steps)}")
    return replace(other, steps=tuple(steps))


def _differing(first: tuple[EngineAnswer, ...], second: tuple[EngineAnswer, ...]) -> tuple[Any, Any] | None:
    for answer, other in zip(first, second, strict=False):
        if answer.body != other.body:
            return {"request": orjson.loads(answer.body)}, {"request": orjson.loads(other.body)}
        if not equal(_plain(answer.decision), _plain(other.decision)):
            return _plain(answer.decision), _plain(other.decision)
    if len(first) != len(second):
        return {"requests": len(first)}, {"requests": len(second)}
    return None


def _plain(decision: Decision) -> dict[str, Any]:
    if NO_DECISION.issuperset(decision.codes):
        return {"verdict": decision.verdict.value, "codes": list(decision.codes)}
    plain = decision.as_json()
    return {name: plain[name] for name in ("verdict", "reasons", "obligations")}


@contextmanager
def _captured_log() -> Iterator[list[logging.LogRecord]]:
    """Yield a list that collects the warnings of `pdp`, which are not logged: a scenario may expect a failure."""
    log, handler = logging.getLogger("pdp"), BufferingHandler(sys.maxsize)
    handler.setLevel(logging.WARNING)
    handlers, propagate = log.handlers, log.propagate
    log.handlers, log.propagate = [handler], False
    try:
        yield handler.buffer
    finally:
        log.handlers, log.propagate = handlers, propagate


def _logged(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    return record.getMessage() + (f": {type(error).__name__}: {error}" if error else "")
