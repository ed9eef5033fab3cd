"""Checks a whole plan at once: which calls pass, as proposed or corrected, and why other calls do not.

Source: tool contract document, "A real example". The checks apply the rules of single tools. Rules about several
tools belong to a planning policy in the policy's data (policies/authz/planning).
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

# The maximum number of steps in a plan, because an invariant may check each step against all earlier ones.
MAX_STEPS: Final = 100


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a plan after the checks. `position` counts from 0; a corrected or pruned step is `transformed`.

    `proposal` is the proposal after correction; None if the step was pruned or rejected.
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
        """Whether the step was pruned from the plan."""
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
    """A plan after the checks, with one `PlanStep` for each proposed step."""

    steps: tuple[PlanStep, ...]

    @property
    def valid(self) -> bool:
        """Whether no step was rejected. Pruned and corrected steps are valid."""
        return all(step.rejection is None for step in self.steps)

    @property
    def plan(self) -> list[dict[str, Any]]:
        """The accepted and corrected steps, `[{tool, arguments, step_name?}]`, to be the `plan` of the session."""
        return [
            step.proposal.as_json() | ({} if step.name is None else {"step_name": step.name})
            for step in self.steps
            if step.proposal is not None
        ]

    def explained(self) -> tuple[str, ...]:
        """Return one line for each step that was corrected, pruned or rejected."""
        return tuple(str(step) for step in self.steps if step.status is not Status.ACCEPTED)


def validate_plan(
    steps: Sequence[Any], session: Session, manifest: CompiledManifest, filled: Filled = Proposal.read
) -> CheckedPlan:
    """Check every call of a plan against its tool and the calls before it, without asking the policy.

    Args:
        steps: proposals, `{tool, arguments}` or `{tool_name, payload}`, each with an optional `step_name`.
        session: the caller's session, whose `plan` is ignored.
        manifest: the compiled manifest, such as `Registry.compiled`.
        filled: adds default arguments to a proposal.

    Raises:
        UsageError: `steps` is not a list, or has more than `MAX_STEPS` steps.
        ConfigError: the configuration of a tool is invalid.

    Examples:
        >>> from pdp import Registry, Session
        >>> registry = Registry.from_files("manifest.json", governance="governance.yaml")
        >>> steps = [{"tool": "shell", "arguments": {}, "step_name": "clean up"}]
        >>> plan = validate_plan(steps, Session(claims={"sub": "officer-123"}), registry.compiled)
        >>> [step.status.value for step in plan.steps]
        ['rejected']
    """
    if not isinstance(steps, list | tuple):
        raise UsageError(f"a plan must be a list of proposals, not {type(steps).__name__}")
    if len(steps) > MAX_STEPS:
        raise UsageError(f"the plan has {len(steps)} steps, but at most {MAX_STEPS} are allowed", hint="split it")
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
    name, value = _split_name(step)
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
    """Return the name of the plan's first step that equals the call; None if there is no such step or no name."""
    call = proposal.as_json()
    return _split_name(next((step for step in plan if respelt(step) == call), None))[0]


def _split_name(step: Any) -> tuple[str | None, Any]:
    if not isinstance(step, dict) or "step_name" not in step:
        return None, step
    name = step["step_name"]
    return (name if isinstance(name, str) else None), {key: value for key, value in step.items() if key != "step_name"}
