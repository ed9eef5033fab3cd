"""Rules of the patterns that derive a result from other data: validation, classification, composition, conversion.

Source: tool pattern library, patterns 3, 4, 5 and 9.
"""

from types import MappingProxyType
from typing import Any, Final

from pdp.json import canonical
from pdp.manifest.model import Tool
from pdp.manifest.schema.walk import argument_schemas
from pdp.patterns.exceptions import OutOfDistributionError, PatternFault
from pdp.patterns.rule import PatternCall, PatternResult, PatternRule, add_snapshots
from pdp.proposal import Execution

_VERDICTS: Final = ("pass", "warn", "block")  # The verdicts, ordered from mild to severe.


class Validation(PatternRule):
    """Rules for a tool that returns a verdict and the rules behind it. The same inputs must give the same verdict."""

    def before(self, call: PatternCall) -> Execution | None:
        """Reject a candidate that is pinned to an ontology other than the tool's ontology."""
        pin = call.arguments.get("ontologyPin")
        if pin is not None and call.entry.ontology_pin is not None and pin != call.entry.ontology_pin:
            raise PatternFault(
                "validation.other_ontology",
                f"the tool is pinned to ontology {call.entry.ontology_pin}, not to {pin!r:.60}",
            )
        return None

    def after(self, call: PatternCall, checked: PatternResult) -> PatternResult:
        """Check that the trace explains the verdict, and that the result equals earlier results of equal calls."""
        result = checked.execution.result
        heaviest = max((rule["verdict"] for rule in result["trace"]), key=_VERDICTS.index, default="pass")
        if result["verdict"] != heaviest:
            raise PatternFault(
                "validation.unexplained",
                f"the verdict is {result['verdict']}, but the most severe rule that fired says {heaviest}",
            )
        for rule in result["trace"]:
            add_snapshots(rule.get("evidence", []), call.run)
        asked = canonical(call.arguments)
        if not call.run.same_answer((call.entry.id, call.entry.version, asked, call.facts.inputs), result):
            raise PatternFault(
                "validation.not_reproducible",
                "the same candidate and rule pack had another answer earlier in this run",
            )
        return checked


class Classification(PatternRule):
    """Rules for a tool that assigns a subject to a declared class (`band`), or raises `OutOfDistributionError`."""

    def check(self, call: PatternCall, result: Any) -> None:
        """Reject a result whose class (`band`) the tool does not declare."""
        if isinstance(result, dict) and "band" in result and result["band"] not in _bands(call.entry):
            raise OutOfDistributionError("the subject is in none of the declared bands")

    def after(self, call: PatternCall, checked: PatternResult) -> PatternResult:
        """Add the retrieval snapshots to the evidence in the result."""
        add_snapshots(checked.execution.result["evidence"], call.run)
        return checked


def _bands(entry: Tool) -> list[Any]:
    band = argument_schemas(entry.result_schema or {}).get("band")
    return [value for alternative in band.alternatives for value in alternative.values or ()] if band else []


class Composition(PatternRule):
    """Rules for a tool that writes a draft. A draft has an effect only if the draft is later staged as an action."""

    def check(self, call: PatternCall, result: Any) -> None:  # noqa: ARG002 - same signature for all rules
        """Reject a result that is not in the state `draft`."""
        if isinstance(result, dict) and result.get("state", "draft") != "draft":
            raise PatternFault("composition.not_a_draft", f"the result is in state {result['state']!r:.60}")

    def after(self, call: PatternCall, checked: PatternResult) -> PatternResult:  # noqa: ARG002 - same signature for all rules
        """Set the result's state to `draft` if the result has no state."""
        checked.execution.result.setdefault("state", "draft")
        return checked


class Conversion(PatternRule):
    """Rules for a tool that converts a value, reproducibly, with the rates that were pinned when the run started."""

    def after(self, call: PatternCall, checked: PatternResult) -> PatternResult:
        """Check that the result has the target's values, and equals earlier results of equal calls. Add the pins."""
        _check_target(call.arguments["target"], checked.execution.result)
        key = (call.entry.id, call.entry.version, canonical(call.arguments))
        if not call.run.same_answer(key, checked.execution.result):
            raise PatternFault(
                "conversion.not_reproducible", "the same arguments had another result earlier in this run"
            )
        return checked._replace(pins=MappingProxyType({source: pin.version for source, pin in call.run.pins.items()}))


# A conversion has the form `convert<In, Out>(value, target) -> Out`, so members that both the target and the result
# have must be equal.
def _check_target(target: Any, result: Any) -> None:
    if not isinstance(target, dict) or not isinstance(result, dict):
        return
    for name in sorted(target.keys() & result.keys()):
        if canonical(target[name]) != canonical(result[name]):
            raise PatternFault("conversion.other_target", f"the result's `{name:.60}` differs from the target's")
