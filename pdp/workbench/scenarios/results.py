"""What a run of scenarios came to, as plain frozen records: reports, coverage and mutation all read these."""

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
    """One key of an expectation that was not met; both sides as plain JSON."""

    key: str
    expected: Any
    actual: Any


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """One request that the engine was asked, as canonical bytes, and what it decided. Equal bodies, equal answers."""

    body: bytes
    decision: Decision


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step that was done.

    Attributes:
        action: one of `pdp.workbench.scenarios.files.scenario.ACTIONS`.
        expected: the expectation as it is written, plain JSON; actual: the same keys, as they were.
        mismatches: what differs; empty when the step passed.
        evaluations: of a proposal or a plan; empty for the other steps.
        answers: every request that the engine was asked on the way, in order.
        plans: every plan that it was asked about.
        tool: the tool proposed, or named by the raw request; None for approvals.
        given: what was proposed, planned or requested, by that name, and the `session`, both as plain JSON.
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
        """What was expected and what came, for each proposal of a plan."""
        if isinstance(self.expected, list):
            return tuple(zip(self.expected, self.actual, strict=True))
        return ((self.expected, self.actual),)


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """One scenario on one engine.

    Attributes:
        engine: `embedded` or `sidecar`; of a card, each of those that agree.
        steps: those that were done; after one that failed, the rest are not.
        error: what kept it from being run to its end, one message; None when it was run.
        log: what the enforcement point logged meanwhile, a line each.
        diagnosis: why it failed, if somebody asked (`Diagnoses`).
        seconds: how long it took.
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
        """Whether every step was done, and came to what was expected of it."""
        return self.error is None and not any(step.mismatches for step in self.steps)


@dataclass(frozen=True, slots=True)
class Fired:
    """A rule that fired for a request: what it found, and where it stands (`FILE:LINE`; None where unknown)."""

    part: str
    code: str
    message: str
    details: Any
    where: str | None
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Missed:
    """A rule that was expected to fire and did not: where it stands, and the first condition that did not hold.

    `condition` and `seen` are None when nobody can tell, see `Diagnosis.unknown`; `seen` are the values that the
    condition saw.
    """

    code: str
    where: str
    condition: str | None = None
    seen: Any = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a step failed, as far as it can be told.

    Attributes:
        stopped: why the enforcement point rejected or denied the call by itself; None when it did not.
        fired: every rule that fired for the step's last request, whichever verdict won.
        missed: the rules of the codes that were expected and not found.
        unknown: why it cannot be told where the missed rules stopped, to go on from "not known"; None where it is.
    """

    stopped: str | None = None
    fired: tuple[Fired, ...] = ()
    missed: tuple[Missed, ...] = ()
    unknown: str | None = None


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """One scenario file on one engine; `results` in the order of the file, those only that were selected."""

    suite: Suite
    engine: str
    results: tuple[ScenarioResult, ...]
    seconds: float

    @property
    def bundle_revision(self) -> str | None:
        """The revision of the bundle that decided; None when nothing was decided by one."""
        answers = (answer for result in self.results for step in result.steps for answer in step.answers)
        return next((answer.decision.bundle_revision for answer in answers if answer.decision.bundle_revision), None)


@dataclass(frozen=True, slots=True)
class Score:
    """How many of the proposals for which something was expected were right."""

    right: int
    of: int


@dataclass(frozen=True, slots=True)
class Golden:
    """What a recorded agent is measured by (tool registry document: selection, arguments, manifest compliance).

    Attributes:
        total: how many golden scenarios there are; `in_manifest`, `schema_valid`: in how many every proposal is.
        tools: proposals whose tool is the expected one (`trace.tool_name`).
        arguments: proposals whose arguments are the expected ones.
    """

    total: int
    in_manifest: int
    schema_valid: int
    tools: Score
    arguments: Score


@dataclass(frozen=True, slots=True)
class RunResult:
    """All that one `pdp test` ran. `coverage` is what `Coverage.as_json` gives; None: it was not measured."""

    suites: tuple[SuiteResult, ...]
    coverage: Mapping[str, Any] | None = None

    @property
    def results(self) -> tuple[ScenarioResult, ...]:
        """Every result, suite by suite."""
        return tuple(result for run in self.suites for result in run.results)

    @property
    def cards(self) -> tuple[ScenarioResult, ...]:
        """Every result, those that failed first; once where engines agree, and then `engine` names all of them."""
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
        """How many scenarios failed."""
        return sum(not result.passed for result in self.results)

    @property
    def golden(self) -> Golden:
        """What is known of the golden scenarios."""
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
