"""Patterns that make something of what is there: composition and conversion (tool pattern library, 5 and 9)."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pdp.json import canonical
from pdp.patterns.exceptions import PatternFault
from pdp.patterns.rule import PatternCall, PatternRule

if TYPE_CHECKING:
    from pdp.patterns.circumstances import Checked


class Composition(PatternRule):
    """A draft, and never anything else: only the staging of an action makes something of it."""

    def after(self, call: PatternCall, checked: Checked) -> Checked:  # noqa: ARG002 - of the form of all
        """Call it a draft."""
        result = checked.execution.result
        if result.setdefault("state", "draft") != "draft":
            raise PatternFault("composition.not_a_draft", f"the result is in state {result['state']!r:.60}")
        return checked


class Conversion(PatternRule):
    """What was asked for, and the same out of the same; rates are those that were pinned when the run started."""

    def after(self, call: PatternCall, checked: Checked) -> Checked:
        """Demand the target's own members and the answer of before, and name the pins."""
        _check_target(call.arguments["target"], checked.execution.result)
        key = (call.entry.id, call.entry.version, canonical(call.arguments))
        if not call.run.same_answer(key, checked.execution.result):
            raise PatternFault(
                "conversion.not_reproducible", "the same arguments were converted otherwise before, in this run"
            )
        return replace(checked, pins=MappingProxyType({source: pin.version for source, pin in call.run.pins.items()}))


# `convert<In, Out>(value, target) -> Out`: what both of them name is said of the same thing.
def _check_target(target: Any, result: Any) -> None:
    if not isinstance(target, dict) or not isinstance(result, dict):
        return
    for name in sorted(target.keys() & result.keys()):
        if canonical(target[name]) != canonical(result[name]):
            raise PatternFault("conversion.other_target", f"the result's `{name:.60}` is not that of the target")
