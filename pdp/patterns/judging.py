"""Patterns that judge: validation and classification (tool pattern library, patterns 3 and 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdp.json import canonical
from pdp.manifest.schema.walk import arguments_of
from pdp.patterns.evidence import refer_back
from pdp.patterns.exceptions import OutOfDistributionError, PatternFault
from pdp.patterns.rule import PatternCall, PatternRule

if TYPE_CHECKING:
    from pdp.manifest.model import Tool
    from pdp.patterns.circumstances import Checked
    from pdp.proposal import Execution

_VERDICTS: Final = ("pass", "warn", "block")  # lightest first


class Validation(PatternRule):
    """A verdict with the trace of the rules that led to it, the same each time for the same rule pack's version."""

    def before(self, call: PatternCall) -> Execution | None:
        """Refuse a candidate of another ontology than the tool's."""
        pin = call.arguments.get("ontologyPin")
        if pin is not None and call.entry.ontology_pin is not None and pin != call.entry.ontology_pin:
            raise PatternFault(
                "validation.other_ontology",
                f"the tool is pinned to ontology {call.entry.ontology_pin}, not to {pin!r:.60}",
            )
        return None

    def after(self, call: PatternCall, checked: Checked) -> Checked:
        """Demand that the trace explains the verdict, and that it is the one of before."""
        result = checked.execution.result
        heaviest = max((rule["verdict"] for rule in result["trace"]), key=_VERDICTS.index, default="pass")
        if result["verdict"] != heaviest:
            raise PatternFault(
                "validation.unexplained",
                f"the verdict is {result['verdict']}, and the heaviest of its rules says {heaviest}",
            )
        for rule in result["trace"]:
            refer_back(rule.get("evidence", []), call.run)
        asked = canonical(call.arguments)
        if not call.run.same_answer((call.entry.id, call.entry.version, asked, call.about.inputs), result):
            raise PatternFault(
                "validation.not_reproducible",
                "the same candidate and rule pack were answered otherwise before, in this run",
            )
        return checked


class Classification(PatternRule):
    """One of the declared bands. What is in none of them is said so, and never put into some band."""

    def after(self, call: PatternCall, checked: Checked) -> Checked:
        """Demand a declared band."""
        result = checked.execution.result
        if result["band"] not in _bands(call.entry):
            raise OutOfDistributionError("the subject is in none of the declared bands")
        refer_back(result["evidence"], call.run)
        return checked


def _bands(entry: Tool) -> set[Any]:
    band = arguments_of(entry.result_schema or {}).get("band")
    return {value for one in band.alternatives for value in one.values or ()} if band else set()
