"""Running the scenarios of a suite on an engine, through the enforcement point that applications use."""

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
# A scenario takes the log for itself, and its tools file a name among the modules.
_ALONE: Final = threading.RLock()


class Runner:
    """Runs the scenarios of one suite on an engine that knows its manifest.

    Nothing is shared between scenarios: each has its own approvals, its own audit stream, and its tools file run anew.
    A tool without a function returns null, so that a scenario can say that it is executed; where there is a tools file,
    one of type `cli` runs its program. What the file's `deployment()` returns holds for the scenario's runs.
    `explained` says why a result failed; see `Diagnoses`.
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
        """Run one scenario; it counts from 0. After a step that failed, the rest of them are not run.

        EngineTimeoutError: the engine was late: that says nothing of the policy, whatever is expected.
        """
        suite = self._suite
        scenario = suite.scenarios[scenario_index]
        steps: list[StepResult] = []
        with _ALONE, _captured_log() as log:
            started = time.perf_counter()
            error = self._done(scenario, scenario_index, steps)
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
        """Run every scenario in the order of the file."""
        return [self.run(index) for index in range(len(self._suite.scenarios))]

    def _with_tools(self, world: RecordedWorld | None) -> tuple[Pep, Mapping[str, Callable[..., Any]]]:
        if self._tools is None:
            return self._pep, self._stand_ins
        entries = self._manifest.tools
        functions, deployment = self._tools.read(entries, world.systems if world else {})
        absent = {name: _absent(name, self._suite.tools) for name, entry in entries.items() if entry.type != "cli"}
        pep = self._pep
        if world is not None or deployment is not None:
            observers = (world.observe,) if world else ()
            pep = Pep(self._manifest, self._engine, deployment=deployment, observers=observers)
        return pep, absent | {name: function for name, function in functions.items() if name in entries}

    def _done(self, scenario: Scenario, index: int, done: list[StepResult]) -> str | None:
        """Do the steps, adding each to `done`, and return what kept them from being done."""
        try:
            world = None if scenario.world is None else RecordedWorld(scenario.world, self._suite.file.parent)
            pep, functions = self._with_tools(world)
            run = ScenarioRun(pep, self._engine, functions, world)
            for at, step in enumerate(scenario.steps):
                done.append(run.step(step, self._suite.sessions[index][at], self._suite.place(index, at)))
                _check_in_time(scenario, done[-1])
                if scenario.golden:
                    done[-1] = _held_to_contract(done[-1])
                if done[-1].mismatches:
                    break
        except UsageError as raised:
            return str(raised)
        except SystemExit as raised:
            return f"a tool would end the process: sys.exit({raised.code!r})"
        except BaseException as raised:
            # Of exceptions, the enforcement point has made a failure of the tool already.
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


def _absent(name: str, file: Path | None) -> Callable[..., Any]:
    """A stand-in that says so, for whoever misspelt the name of a function."""

    def stand_in(**_: Any) -> Any:
        _LOG.warning("%s has no function %s: it returned null", file, name)

    return stand_in


def run_suite(
    suite: Suite,
    engines: Sequence[EngineName],
    *,
    selected: Callable[[str], bool] | None = None,
    progress: Callable[[ScenarioResult], None] | None = None,
) -> Iterator[SuiteResult]:
    """Run the scenarios on each of the engines in turn. From the second on, decisions must be those of the first.

    Where no scenario is selected, no result is given. `progress` is told of each scenario that was run.
    """
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
    """Return whether a name is selected: the regular expression is found in it, in capital or small letters."""
    try:
        pattern = re.compile(expression, re.IGNORECASE)
    except re.error as error:
        hint = "write a regular expression: 'wire|refund'"
        raise UsageError(f"-k: {expression!r:.80} is malformed: {error}", hint=hint) from None
    return lambda name: pattern.search(name) is not None


def agreed(one: ScenarioResult, other: ScenarioResult) -> ScenarioResult:
    """Return `other`, failed where its engine decided otherwise than that of `one`, body by body.

    Bundle and id of the decisions are not compared: they name the engine's bundle and the moment. Of a policy that
    failed on both, only the code is: each engine tells of it in words of its own.
    """
    steps = list(other.steps)
    for at, (first, second) in enumerate(zip(one.steps, other.steps, strict=False)):
        differing = _differing(first.answers, second.answers)
        if differing is not None:
            mismatch = Mismatch(f"decision, {one.engine} against {other.engine}", *differing)
            steps[at] = replace(second, mismatches=(*second.mismatches, mismatch))
    if len(one.steps) != len(other.steps) and not any(step.mismatches for step in steps):
        return replace(other, error=f"{one.engine} did {len(one.steps)} steps, {other.engine} {len(other.steps)}")
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
    """Yield a list that gets the warnings of `pdp`, which then go nowhere else: a failure may be what is expected."""
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
