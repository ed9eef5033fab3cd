"""The results of a run of scenarios, as frozen dataclasses for reports, coverage and mutation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pdp.decision import Decision
from pdp.errors import Place
from pdp.flow.evaluation import Evaluation
from pdp.json import canonical
from pdp.workbench.scenarios.files.suite import Suite


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A key whose expected and actual value differ, with both values as plain JSON."""

    key: str
    expected: Any
    actual: Any


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """A request to the engine as canonical bytes, and its decision. Requests with equal bytes have equal decisions."""

    body: bytes
    decision: Decision


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step. `actual` has the keys of `expected`. If there are no `mismatches`, the step passed.

    `action` is one of `ACTIONS`. `answers` and `plans` are the engine's answers on calls and plans, in order. `tool` is
    the called tool; None for approvals. `given` has the action's input and the `session`, as plain JSON.
    """

    action: str
    place: Place
    expected: Any
    actual: Any
    mismatches: tuple[Mismatch, ...]
    evaluations: tuple[Evaluation, ...]
    answers: tuple[EngineAnswer, ...]
    tool: str | None
    plans: tuple[EngineAnswer, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sides(self) -> tuple[tuple[Any, Any], ...]:
        """Pairs of an expected and an actual result: one pair for each proposal of a plan, otherwise a single pair."""
        if isinstance(self.expected, list):
            return tuple(zip(self.expected, self.actual, strict=True))
        return ((self.expected, self.actual),)


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """The result of a scenario on an engine. `steps` end with the first failed step, or before an `error`.

    `engine` is `embedded` or `sidecar`, or both if `RunResult.cards` joins equal results. `log` has the warnings of the
    enforcement point. `diagnosis` is set only by `Diagnoses`. `seconds` is the duration.
    """

    name: str
    why: str | None
    golden: bool
    place: Place
    engine: str
    steps: tuple[StepResult, ...]
    error: str | None = None
    log: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    seconds: float = field(default=0.0, compare=False)

    @property
    def passed(self) -> bool:
        """Whether every step ran and had the expected result."""
        return self.error is None and not any(step.mismatches for step in self.steps)


@dataclass(frozen=True, slots=True)
class Fired:
    """A rule that fired for a request, with its finding and its location (`FILE:LINE`, or None if unknown)."""

    part: str
    code: str
    message: str
    details: Any
    where: str | None
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Missed:
    """An expected rule that did not fire, its first failed condition if known, and the values in the condition."""

    code: str
    where: str
    condition: str | None = None
    seen: Any = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a step failed. `fired` has the rules that fired for the last request, `missed` expected rules that did not.

    `stopped` says why the enforcement point rejected or denied the call. `unknown` says why it is not known which
    condition stopped a rule; reports print it after "not known".
    """

    stopped: str | None = None
    fired: tuple[Fired, ...] = ()
    missed: tuple[Missed, ...] = ()
    unknown: str | None = None


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """The results of the selected scenarios of a file on an engine, in the order of the file."""

    suite: Suite
    engine: str
    results: tuple[ScenarioResult, ...]
    seconds: float

    @property
    def bundle_revision(self) -> str | None:
        """The revision of the bundle that decided, or None if no decision names a revision."""
        answers = (answer for result in self.results for step in result.steps for answer in step.answers)
        return next((answer.decision.bundle_revision for answer in answers if answer.decision.bundle_revision), None)


@dataclass(frozen=True, slots=True)
class Score:
    """The number of proposals that were as expected, and the number of proposals with an expectation."""

    right: int
    of: int


@dataclass(frozen=True, slots=True)
class Golden:
    """How well a recorded agent called its tools (tool registry document: selection, arguments, manifest compliance).

    `total` counts golden scenarios, `in_manifest` golden scenarios that propose only tools of the manifest, and
    `schema_valid` golden scenarios that propose only valid arguments. `tools` and `arguments` count proposals with the
    expected tool or arguments.
    """

    total: int
    in_manifest: int
    schema_valid: int
    tools: Score
    arguments: Score


@dataclass(frozen=True, slots=True)
class RunResult:
    """The results of one `pdp test`. `coverage` is the JSON of `Coverage.as_json`, or None if it was not measured."""

    suites: tuple[SuiteResult, ...]
    coverage: Mapping[str, Any] | None = None

    @property
    def results(self) -> tuple[ScenarioResult, ...]:
        """The results of all scenarios, file by file."""
        return tuple(result for run in self.suites for result in run.results)

    @property
    def cards(self) -> tuple[ScenarioResult, ...]:
        """The results to show, failed results first. Equal results of a scenario on several engines are one card."""
        cards: dict[Any, ScenarioResult] = {}
        for result in self.results:
            answers = [answer.decision for step in result.steps for answer in step.answers]
            decided = [(decision.verdict, decision.codes) for decision in answers]
            happened = [(step.actual, step.mismatches) for step in result.steps]
            key = result.place, result.name, result.error, repr((happened, decided))
            known = cards.get(key)
            cards[key] = result if known is None else replace(known, engine=f"{known.engine}, {result.engine}")
        return tuple(sorted(cards.values(), key=lambda card: card.passed))

    @property
    def failed(self) -> int:
        """The number of failed scenarios; a scenario that fails on two engines counts twice."""
        return sum(not result.passed for result in self.results)

    @property
    def golden(self) -> Golden:
        """How well the recorded agent called its tools in the golden scenarios."""
        scenarios = [result.steps for result in self.results if result.golden]
        traces = [[evaluation.trace for step in steps for evaluation in step.evaluations] for steps in scenarios]
        sides = [pair for steps in scenarios for step in steps for pair in step.sides]
        return Golden(
            total=len(traces),
            in_manifest=sum(all(trace.in_manifest is True for trace in scenario) for scenario in traces),
            schema_valid=sum(all(trace.schema_valid is True for trace in scenario) for scenario in traces),
            tools=_score(sides, lambda side: (side.get("trace") or {}).get("tool_name")),
            arguments=_score(sides, lambda side: side.get("arguments")),
        )


def _score(sides: Sequence[tuple[Any, Any]], read: Callable[[Any], Any]) -> Score:
    stated = [(read(expected), read(actual)) for expected, actual in sides if read(expected) is not None]
    return Score(sum(canonical(expected) == canonical(actual) for expected, actual in stated), len(stated))
