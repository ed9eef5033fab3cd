"""Patterns that derive something: validation, classification, composition, conversion.

Source: tool pattern library, patterns 3, 4, 5 and 9.
"""

from types import MappingProxyType
from typing import Any, Final

from pdp.json import canonical
from pdp.manifest.model import Tool
from pdp.manifest.schema.walk import argument_schemas
from pdp.patterns.exceptions import OutOfDistributionError, PatternFault
from pdp.patterns.rule import PatternCall, PatternResult, PatternRule, refer_back
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

    def after(self, call: PatternCall, checked: PatternResult) -> PatternResult:
        """Demand that the trace explains the verdict, and that it is the one of before."""
        result = checked.execution.result
        heaviest = max((rule["verdict"] for rule in result["trace"]), key=_VERDICTS.index, default="pass")
        if result["verdict"] != heaviest:
            raise PatternFault(
                "validation.unexplained",
                f"the verdict is {result['verdict']}, and the heaviest of its rules is {heaviest}",
            )
        for rule in result["trace"]:
            refer_back(rule.get("evidence", []), call.run)
        asked = canonical(call.arguments)
        if not call.run.same_answer((call.entry.id, call.entry.version, asked, call.facts.inputs), result):
            raise PatternFault(
                "validation.not_reproducible",
                "the same candidate and rule pack were answered otherwise before, in this run",
            )
        return checked


class Classification(PatternRule):
    """One of the declared bands. What is in none of them is said so, and never put into some band."""

    def check(self, call: PatternCall, result: Any) -> None:
        """Demand a declared band."""
        if isinstance(result, dict) and "band" in result and result["band"] not in _bands(call.entry):
            raise OutOfDistributionError("the subject is in none of the declared bands")

    def after(self, call: PatternCall, checked: PatternResult) -> PatternResult:
        """Let the evidence refer to what this run has retrieved."""
        refer_back(checked.execution.result["evidence"], call.run)
        return checked


def _bands(entry: Tool) -> list[Any]:
    band = argument_schemas(entry.result_schema or {}).get("band")
    return [value for alternative in band.alternatives for value in alternative.values or ()] if band else []


class Composition(PatternRule):
    """A draft, and never anything else: only the staging of an action makes something of it."""

    def check(self, call: PatternCall, result: Any) -> None:  # noqa: ARG002 - of the form of all
        """Refuse what calls itself anything else."""
        if isinstance(result, dict) and result.get("state", "draft") != "draft":
            raise PatternFault("composition.not_a_draft", f"the result is in state {result['state']!r:.60}")

    def after(self, call: PatternCall, checked: PatternResult) -> PatternResult:  # noqa: ARG002 - of the form of all
        """Call it a draft."""
        checked.execution.result.setdefault("state", "draft")
        return checked


class Conversion(PatternRule):
    """What was asked for, and the same out of the same; rates are those that were pinned when the run started."""

    def after(self, call: PatternCall, checked: PatternResult) -> PatternResult:
        """Demand the target's own members and the answer of before, and name the pins."""
        _check_target(call.arguments["target"], checked.execution.result)
        key = (call.entry.id, call.entry.version, canonical(call.arguments))
        if not call.run.same_answer(key, checked.execution.result):
            raise PatternFault(
                "conversion.not_reproducible", "the same arguments were converted otherwise before, in this run"
            )
        return checked._replace(pins=MappingProxyType({source: pin.version for source, pin in call.run.pins.items()}))


# `convert<In, Out>(value, target) -> Out`: what both of them name is said of the same thing.
def _check_target(target: Any, result: Any) -> None:
    if not isinstance(target, dict) or not isinstance(result, dict):
        return
    for name in sorted(target.keys() & result.keys()):
        if canonical(target[name]) != canonical(result[name]):
            raise PatternFault("conversion.other_target", f"the result's `{name:.60}` is not that of the target")
