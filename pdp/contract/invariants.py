"""Invariants: structural rules of one tool, and the three ways out when one trips: correct, prune, reject.

Source: tool contract document, "ToolInvariant" and "A real example". What is corrected has to pass the schema and every
invariant again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from pdp.contract.invariant_rules import ExpressionRule, PythonRule, RuleRejectsError, changed
from pdp.contract.registry.tool_contract import DROP_STEP, DropStep
from pdp.manifest.expressions.expression import Check, compile_check
from pdp.manifest.expressions.path import ExpressionError
from pdp.proposal import RejectionCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pdp.contract.invariant_rules import Circumstances, Rule
    from pdp.contract.registry.tool_contract import ToolInvariant
    from pdp.manifest.records import Invariant

_log = logging.getLogger("pdp.contract")

MOST_CORRECTIONS: Final = 16
"""Most corrections of one call; rules that undo each other are found out by it."""


class Way(StrEnum):
    """What became of a call whose invariant tripped."""

    CORRECTED = "corrected"
    PRUNED = "pruned"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Trip:
    """An invariant that tripped.

    Attributes:
        invariant: its id.
        rule: what has to hold.
        way: what became of the call.
        changed: the arguments that were corrected, sorted; their values are in the corrected proposal.
    """

    invariant: str
    rule: str
    way: Way
    changed: tuple[str, ...] = ()

    def __str__(self) -> str:
        how = f"{self.way}: {', '.join(self.changed)}" if self.changed else str(self.way)
        return f"{self.invariant}: {self.rule} ({how})"

    def as_json(self) -> dict[str, Any]:
        """Return `{invariant, rule, way, changed}`."""
        return {"invariant": self.invariant, "rule": self.rule, "way": self.way, "changed": list(self.changed)}


class Settled:
    """What the invariants made of a call.

    Attributes:
        arguments: after correction; those that were proposed, the very object, when nothing was corrected.
        trips: every invariant that tripped, in their order.
        fault: why the call is rejected, or None.
        rejection: with which code, if it is.
        pruned: whether it is dropped.
    """

    __slots__ = ("arguments", "fault", "pruned", "rejection", "trips")

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self.trips: tuple[Trip, ...] = ()
        self.fault: str | None = None
        self.rejection = RejectionCode.INVALID_PAYLOAD
        self.pruned = False


class Invariants:
    """The invariants of one tool. Immutable and safe to share between threads.

    Args:
        of_manifest: those of its manifest entry.
        of_contract: those of its contract in Python.
        arguments: the arguments that its schema names.

    Raises:
        ExpressionError: a check of the manifest is not CEL.
    """

    def __init__(
        self,
        of_manifest: Iterable[Invariant] = (),
        of_contract: Iterable[ToolInvariant] = (),
        arguments: frozenset[str] = frozenset(),
    ) -> None:
        expressions = [ExpressionRule(one) for one in of_manifest]
        self.rules: tuple[Rule, ...] = (*expressions, *(PythonRule(one, arguments) for one in of_contract))
        # One evaluation of all is half as dear as one of each, and nearly every call violates none. CEL's && is strict
        # about types, so the whole is true only if each part is.
        self._all_hold = _joined(expressions) if len(expressions) == len(self.rules) > 1 else None
        self._reads_plan = any("plan" in one.text for one in expressions)

    def settle(
        self, arguments: dict[str, Any], about: Circumstances, refusal: Callable[[dict[str, Any]], str | None]
    ) -> Settled:
        """Correct, prune or reject a call until every invariant holds.

        The first that trips is corrected and all are asked anew, at most `MOST_CORRECTIONS` times. So what comes out
        violates none of them: settling it again changes nothing.

        Args:
            arguments: the call's, checked JSON that the schema admits.
            about: what the invariants see beside the call.
            refusal: says why the schema refuses arguments, or None.
        """
        settled = Settled(arguments)
        if not self.rules or self._hold_together(arguments, about):
            return settled
        trips: list[Trip] = []
        try:
            while (tripped := self._first_tripped(settled.arguments, about)) is not None:
                rule, why = tripped
                if len(trips) == MOST_CORRECTIONS:
                    why = f"{rule.id}: still violated after {MOST_CORRECTIONS} corrections"
                mended = _mended(rule, why, settled.arguments, about, last=len(trips) == MOST_CORRECTIONS)
                if mended is DROP_STEP:
                    settled.pruned = True
                    trips.append(Trip(rule.id, rule.rule, Way.PRUNED))
                    break
                _check_admitted(rule, refusal(mended))
                trips.append(Trip(rule.id, rule.rule, Way.CORRECTED, changed(settled.arguments, mended)))
                settled.arguments = mended
        except RuleRejectsError as error:
            settled.fault, settled.rejection = error.why, error.rejection
            trips.append(Trip(error.rule.id, error.rule.rule, Way.REJECTED))
        settled.trips = tuple(trips)
        return settled

    def _first_tripped(self, arguments: dict[str, Any], about: Circumstances) -> tuple[Rule, str] | None:
        for rule in self.rules:
            why = rule.violation(arguments, about)
            if why is not None:
                return rule, why
        return None

    def _hold_together(self, arguments: dict[str, Any], about: Circumstances) -> bool:
        if self._all_hold is None:
            return False
        try:
            return self._all_hold.holds(arguments, about.for_expressions(arguments, with_plan=self._reads_plan))
        except ExpressionError:
            return False  # which of them it is, and what of it, is found out one by one


def _mended(
    rule: Rule, why: str, arguments: dict[str, Any], about: Circumstances, *, last: bool
) -> dict[str, Any] | DropStep:
    """Return what a tripped rule makes of the call; it rejects when it corrects nothing, or nothing more."""
    mended = None if last else rule.correction(arguments, about)
    if mended is None:
        raise RuleRejectsError(rule, why)
    if mended is not DROP_STEP and not changed(arguments, mended):
        raise RuleRejectsError(rule, f"{why} (its correction does not help)")
    return mended


def _check_admitted(rule: Rule, refused: str | None) -> None:
    if refused is not None:
        raise RuleRejectsError(rule, f"{rule.id}: its correction does not pass the schema: {refused}")


def _joined(rules: list[ExpressionRule]) -> Check | None:
    """Return one condition of them all; None when it would be longer than a condition may be."""
    try:
        # On lines of their own: a text that ends in a comment must not end the whole with it.
        return compile_check(" && ".join(f"({rule.text}\n)" for rule in rules))
    except ExpressionError:
        return None


def violations(invariants: Iterable[ToolInvariant], arguments: Mapping[str, Any], about: Circumstances) -> list[str]:
    """Return `ID: why` for each invariant that the call violates, correcting nothing."""
    found = []
    for rule in (PythonRule(one, frozenset()) for one in invariants):
        try:
            why = rule.violation(dict(arguments), about)
        except RuleRejectsError as error:
            why = error.why
        if why is not None:
            found.append(why)
    return found


def log_trips(tool: str, trips: tuple[Trip, ...]) -> None:
    """Log each trip with its id. Arguments are not in the line."""
    for trip in trips:
        _log.info("%s: invariant %s tripped: %s", tool, trip.invariant, trip.way)
