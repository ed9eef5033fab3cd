"""A whole plan checked at once: which of its calls go on, as proposed or corrected, and why the others do not.

Source: tool contract document, "A real example". What is checked here are the rules of each tool; rules across tools
are a planning policy, which stands in the policy's data (policies/authz/planning).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pdp.contract.checks import Checked, Rejected
from pdp.contract.compiled import CompiledManifest
from pdp.contract.invariants import Trip, respelt
from pdp.contract.request import check
from pdp.errors import UsageError
from pdp.proposal import Proposal, ProposalRejectedError, Rejection, Status
from pdp.session import Session

Filled = Callable[[Proposal], Proposal]

MAX_STEPS: Final = 100  # most steps of a plan: an invariant may look at each of those before it


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a plan after the checks.

    Attributes:
        position: which step of the plan as proposed, from 0.
        status: a step that was pruned is transformed, as one that was corrected.
        proposal: what goes on, after correction; None when it was pruned or rejected.
        checked: the same as a call has it, for the record.
    """

    position: int
    name: str | None
    status: Status
    proposal: Proposal | None
    rejection: Rejection | None
    trips: tuple[Trip, ...]
    checked: Checked | Rejected = field(repr=False, compare=False)

    @property
    def pruned(self) -> bool:
        """Whether it was dropped from the plan."""
        return self.status is Status.TRANSFORMED and self.proposal is None

    def __str__(self) -> str:
        shown = f"step {self.position + 1}" + (f" ({self.name})" if self.name else "")
        if self.rejection is not None:
            return f"{shown}: rejected: {self.rejection.code}: {self.rejection.reason}"
        if self.pruned:
            return f"{shown}: pruned: {self.trips[-1].invariant}: {self.trips[-1].rule}"
        why = "; ".join(str(trip) for trip in self.trips)
        return f"{shown}: {self.status}" + (f": {why}" if why else "")


@dataclass(frozen=True, slots=True)
class CheckedPlan:
    """A plan after the checks: a `PlanStep` for each step as it was proposed."""

    steps: tuple[PlanStep, ...]

    @property
    def valid(self) -> bool:
        """Whether no step was rejected; pruned and corrected ones do not make a plan invalid."""
        return all(step.rejection is None for step in self.steps)

    @property
    def plan(self) -> list[dict[str, Any]]:
        """What goes on, `[{tool, arguments, step_name?}]`: the plan of the session in which its calls are made."""
        return [
            step.proposal.as_json() | ({} if step.name is None else {"step_name": step.name})
            for step in self.steps
            if step.proposal is not None
        ]

    def explained(self) -> tuple[str, ...]:
        """Return a line for each step that did not go on as it was proposed."""
        return tuple(str(step) for step in self.steps if step.status is not Status.ACCEPTED)


def validate_plan(
    steps: Sequence[Any], session: Session, manifest: CompiledManifest, filled: Filled = Proposal.read
) -> CheckedPlan:
    """Check every call of a plan, in order, each against those before it that go on.

    A step is a proposal, `{tool, arguments}` or `{tool_name, payload}`, and may have a `step_name`. The session's own
    plan is ignored. Checking the result once more changes nothing. No policy is asked. `filled` adds defaults.

    Raises:
        UsageError: not a list, or more than `MAX_STEPS` of them.
        ConfigError: the config of a tool cannot be resolved.
    """
    if not isinstance(steps, list | tuple):
        raise UsageError(f"a plan is a list of proposals, not {type(steps).__name__}")
    if len(steps) > MAX_STEPS:
        raise UsageError(f"the plan has {len(steps)} steps, at most {MAX_STEPS} are admitted", hint="split it")
    checked: list[PlanStep] = []
    for position, step in enumerate(steps):
        before = [earlier.proposal.as_json() for earlier in checked if earlier.proposal is not None]
        checked.append(_checked_step(position, step, session, manifest, before, filled=filled))
    return CheckedPlan(tuple(checked))


def _checked_step(
    position: int,
    step: Any,
    session: Session,
    manifest: CompiledManifest,
    before: list[dict[str, Any]],
    *,
    filled: Filled,
) -> PlanStep:
    name, value = _named(step)
    try:
        proposal = filled(Proposal.read(value))
    except ProposalRejectedError as error:
        unread = Rejected("proposal", None, Rejection(error.rejection, error.message))
        return PlanStep(position, name, Status.REJECTED, None, unread.rejection, (), unread)
    checked = check(proposal, session, manifest, before=before)
    if isinstance(checked, Rejected):
        status = Status.TRANSFORMED if checked.rejection is None else Status.REJECTED
        return PlanStep(position, name, status, None, checked.rejection, checked.trips, checked)
    status = Status.ACCEPTED if checked.proposal is proposal else Status.TRANSFORMED
    return PlanStep(position, name, status, checked.proposal, None, checked.trips, checked)


def planned_step(proposal: Proposal, plan: Sequence[Any]) -> str | None:
    """Return the name of the first step of a session's plan that is equal to a call; None where that has no name."""
    call = proposal.as_json()
    return _named(next((step for step in plan if respelt(step) == call), None))[0]


def _named(step: Any) -> tuple[str | None, Any]:
    if not isinstance(step, dict) or "step_name" not in step:
        return None, step
    name = step["step_name"]
    return (name if isinstance(name, str) else None), {key: value for key, value in step.items() if key != "step_name"}
