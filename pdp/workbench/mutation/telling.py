"""What an expectation can say of an original's answer that does not hold for its mutant's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdp.workbench.scenarios.running.expectation import has_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdp.decision import Decision, Reason

Outcome = dict[str, Any]
"""What an expectation can name of a decision: verdict, codes, obligations; `reasons` are `[code, message, details]`."""

_WHOLE: Final = ("verdict", "codes", "obligations")


def outcome_of(decision: Decision) -> Outcome:
    """Return what an expectation can name of a decision."""
    return {
        "verdict": decision.verdict.value,
        "codes": list(decision.codes),
        "obligations": [{"id": each.id, "parameters": each.parameters} for each in decision.obligations],
        "reasons": plain_reasons(decision.reasons),
    }


def plain_reasons(reasons: Sequence[Reason]) -> list[list[Any]]:
    """Return reasons as lists of code, message and details."""
    return [[each.code, each.message, each.details] for each in reasons]


def told(one: Outcome, other: Outcome) -> dict[str, Any] | None:
    """Return an expectation that holds for the first and not for the second; None when there is none.

    What reasons say is named only where verdict, codes and obligations are the same.
    """
    whole = {name: one[name] for name in _WHOLE}
    if any(one[name] != other[name] for name in _WHOLE):
        return whole
    more = told_of_reasons(one["reasons"], other["reasons"])
    return {"verdict": whole["verdict"], "codes": whole["codes"], **more} if more else None


def told_of_reasons(one: Sequence[Sequence[Any]], other: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return `details` and `messages` that hold for the first reasons and not for the second, those that there are."""
    found: dict[str, dict[str, Any]] = {}
    for code, message, details in one:
        rivals = [each for each in other if each[0] == code]
        if details and not any(has_fields(rival[2], details) for rival in rivals):
            found.setdefault("details", {})[code] = details
        if message and all(rival[1] != message for rival in rivals):
            found.setdefault("messages", {})[code] = message
    return found
