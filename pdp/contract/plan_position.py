"""The plan as an invariant of one call sees it: the steps before it, and the call itself.

What comes later in a plan never changes what becomes of an earlier step. So of duplicates the first survives, and
going through a plan once settles it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdp.proposal import Proposal


class PlanSoFar:
    """Where a call stands in a plan.

    Args:
        proposal: the call as it was proposed.
        plan: the session's plan, proposals in either spelling. The call is the first of them that is equal to it, or to
            what it is corrected to; one that the plan does not hold comes after all of it.
        before: the steps before the call, when they are known.
    """

    __slots__ = ("_before", "_plan", "_proposal")

    def __init__(self, proposal: Proposal, plan: Sequence[Any], before: Sequence[Any] | None) -> None:
        self._proposal = proposal
        self._plan = plan
        self._before = before

    def up_to(self, arguments: dict[str, Any]) -> list[Any]:
        """Return the plan up to and including the call with these arguments, `[{tool, arguments}]`."""
        call = {"tool": self._proposal.tool, "arguments": arguments}
        if self._before is not None:
            return [*self._before, call]
        steps = [_spelt(step) for step in self._plan]
        for sought in (self._proposal.as_json(), call):
            if sought in steps:
                return [*steps[: steps.index(sought)], call]
        return [*steps, call]


def _spelt(step: Any) -> Any:
    if isinstance(step, dict) and "tool_name" in step and "tool" not in step:
        return {"tool": step["tool_name"], "arguments": step.get("payload", {})}
    return step
