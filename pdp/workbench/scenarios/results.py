"""What a run of scenarios came to, as plain frozen records: reports, coverage and mutation all read these."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdp.decision import Decision
    from pdp.errors import Place
    from pdp.evaluation import Evaluation
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
        place: where it stands.
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


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """One scenario on one engine.

    Attributes:
        place: where the scenario stands, in its file as that was named.
        engine: `embedded` or `sidecar`; of a card, each of those that agree.
        steps: those that were done; after one that failed, the rest are not.
        error: what kept it from being run to its end, one message; None when it was run.
        log: what the enforcement point logged meanwhile, a line each.
        diagnosis: why it failed, if somebody asked (`Diagnoses`).
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

    @property
    def passed(self) -> bool:
        """Whether every step came to what was expected of it."""
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
    """One scenario file on one engine.

    Attributes:
        results: in the order of the file, those only that were selected.
        seconds: how long it took.
    """

    suite: Suite
    engine: str
    results: tuple[ScenarioResult, ...]
    seconds: float

    @property
    def bundle_revision(self) -> str | None:
        """The revision of the bundle that decided; None when nothing was decided by one."""
        revisions = (
            answer.decision.bundle_revision
            for result in self.results
            for step in result.steps
            for answer in step.answers
        )
        return next((revision for revision in revisions if revision is not None), None)


@dataclass(frozen=True, slots=True)
class Golden:
    """The golden scenarios: how many there are, and of how many every proposal is in the manifest, and schema-valid."""

    total: int
    in_manifest: int
    schema_valid: int


@dataclass(frozen=True, slots=True)
class RunResult:
    """All that one `pdp test` ran."""

    suites: tuple[SuiteResult, ...]

    @property
    def results(self) -> tuple[ScenarioResult, ...]:
        """Every result, suite by suite."""
        return tuple(result for run in self.suites for result in run.results)

    @property
    def cards(self) -> tuple[ScenarioResult, ...]:
        """Every result, those that failed first; once where engines agree, and then `engine` names all of them."""
        cards: dict[Any, ScenarioResult] = {}
        for result in self.results:
            decided = [
                (
                    step.actual,
                    step.mismatches,
                    [(answer.decision.verdict, answer.decision.codes) for answer in step.answers],
                )
                for step in result.steps
            ]
            key = result.place, result.name, result.error, repr(decided)
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
        traces = [
            [evaluation.trace for step in result.steps for evaluation in step.evaluations]
            for result in self.results
            if result.golden
        ]
        return Golden(
            total=len(traces),
            in_manifest=sum(all(trace.in_manifest is True for trace in scenario) for scenario in traces),
            schema_valid=sum(all(trace.schema_valid is True for trace in scenario) for scenario in traces),
        )
