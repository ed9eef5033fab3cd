"""A whole plan before its first call: each step by the rules of its tool, all of them by the planning policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdp.contract.plan import validate_plan
from pdp.decision import Decision, denied
from pdp.engine.protocol import PLAN, REQUEST_INVALID
from pdp.flow.drive import Question
from pdp.json import JsonValueError, canonical
from pdp.request import bounded

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from pdp.contract.compiled import CompiledManifest
    from pdp.contract.plan import CheckedPlan
    from pdp.flow.drive import Step
    from pdp.session import Session


@dataclass(frozen=True, slots=True)
class PlanEvaluation:
    """What became of a plan.

    Attributes:
        checked: what the rules of each tool made of its steps; see `pdp.contract.plan`.
        decision: what the planning policy says of the steps that go on; ALLOW lets no call run.
    """

    checked: CheckedPlan
    decision: Decision

    @property
    def acceptable(self) -> bool:
        """Whether no step was rejected and the policy accepts the plan."""
        return self.checked.valid and self.decision.verdict == "ALLOW"

    @property
    def plan(self) -> list[dict[str, Any]]:
        """The steps that go on, `[{tool, arguments}]`: the `plan` of the session in which they are called."""
        return self.checked.plan


def evaluate_plan(
    steps: Sequence[Any], session: Session, manifest: CompiledManifest
) -> Generator[Step, Any, PlanEvaluation]:
    """Check a plan's steps, and ask the policy about what is left of them.

    Raises:
        UsageError: as of `validate_plan`.
    """
    checked = validate_plan(steps, session, manifest)
    try:
        body = bounded(canonical({"steps": checked.plan, "context": {"purpose": session.purpose}}))
    except JsonValueError as error:
        return PlanEvaluation(checked, denied(REQUEST_INVALID, str(error)))
    decision = yield Question(body, PLAN)
    return PlanEvaluation(checked, decision)
