"""What a run of scenarios came to, as plain frozen records: reports, coverage and mutation all read these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdp.call import Evaluation
    from pdp.decision import Decision
    from pdp.errors import Place


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One key of an expectation that was not met; both sides as plain JSON."""

    key: str
    expected: Any
    actual: Any


@dataclass(frozen=True, slots=True)
class Answer:
    """One request that the engine was asked, as canonical bytes, and what it decided. Equal bodies, equal answers."""

    body: bytes
    decision: Decision


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step that was done.

    Attributes:
        action: one of `pdp.harness.scenario.ACTIONS`.
        place: where it stands.
        expected: the expectation as it is written, plain JSON; actual: the same keys, as they were.
        mismatches: what differs; empty when the step passed.
        evaluations: of a proposal or a plan; empty for the other steps.
        answers: every request that the engine was asked on the way, in order.
        tool: the tool proposed, or named by the raw request; None for approvals.
    """

    action: str
    place: Place
    expected: Any
    actual: Any
    mismatches: tuple[Mismatch, ...]
    evaluations: tuple[Evaluation, ...]
    answers: tuple[Answer, ...]
    tool: str | None


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """One scenario on one engine.

    Attributes:
        file: the scenario file as it was named; place: where the scenario stands in it.
        engine: `embedded` or `sidecar`.
        steps: those that were done; after one that failed, the rest are not.
        error: what kept it from being run at all, one message; None when it was run.
    """

    file: str
    name: str
    why: str | None
    golden: bool
    place: Place
    engine: str
    manifest_version: str
    manifest_digest: str
    steps: tuple[StepResult, ...]
    error: str | None = None

    @property
    def passed(self) -> bool:
        """Whether every step came to what was expected of it."""
        return self.error is None and not any(step.mismatches for step in self.steps)
