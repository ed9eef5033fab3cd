"""What the slowest proposals cost that one can build at the bounds, `python -m benchmarks.worst_proposal`.

Each is read and checked against its tool's schema, as the enforcement point does it on the event loop. The goal is at
most 50 ms for each, rejected or not, of the processor's time: a busy machine changes nothing.
"""

import json
import sys
from collections.abc import Callable
from time import thread_time
from typing import Any

from benchmarks.measuring import medians
from pdp.contract.compiled import CompiledManifest
from pdp.contract.request import check
from pdp.json import MAX_VALUES
from pdp.manifest.effective import effective_manifest
from pdp.manifest.model import MAX_ARGUMENTS, Manifest
from pdp.proposal import Proposal, ProposalRejectedError
from pdp.session import Session

GOAL = 50_000.0
"""Microseconds at the median."""

_MANY = MAX_VALUES - 5
_BRANCHES = [{"type": "object", "properties": {"a": {"const": at}}, "required": ["a"]} for at in range(60)]
_TREE = {"$ref": "#/$defs/N", "$defs": {"N": {"items": {"$ref": "#/$defs/N"}, "uniqueItems": True}}}
_CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "numbers, allowed": ({"items": {"type": "integer"}}, [0] * _MANY),
    "numbers, all wrong": ({"items": {"type": "string"}}, [0] * _MANY),
    "small numbers": ({}, [1e-6] * _MANY),
    "empty objects": ({}, [{}] * _MANY),
    "one long text": ({}, "a" * (MAX_ARGUMENTS - 20)),
    "a text of two bytes each": ({}, "é" * (MAX_ARGUMENTS // 2 - 20)),
    "texts of separators": ({}, ',[{"' * (MAX_ARGUMENTS // 6)),
    "60 branches, too much": ({"items": {"anyOf": _BRANCHES}}, [{"a": "x"}] * (_MANY // 2)),
    "60 branches, at the bound": ({"items": {"anyOf": _BRANCHES}}, [{"a": 59}] * 1_000),
    "60 branches, the last wrong": ({"items": {"anyOf": _BRANCHES}}, [*([{"a": 59}] * 1_000), {"a": "x"}]),
    "one of 10, at the bound": (
        {"oneOf": [{"items": {"type": "string", "minLength": at}} for at in range(10)]}, ["a" * 9] * 15_000,
    ),
    "a pattern of 1,000 letters": ({"pattern": "(0|1)*1(0|1){500}x"}, "0110100" * 250),
    "a pattern of 64 letters": ({"pattern": "([01]*1[01]{62}x)?"}, "0110100" * 3_800),
    "fractions": ({"items": {"multipleOf": 0.01}}, [47500.25] * 7_000),
    "equal items, nested": (_TREE, [[at, at + 0.5] for at in range(5_000)]),
    "large constants": ({"items": {"enum": [{"a": at} for at in range(1_000)]}}, [{"a": 999}] * 110),
}  # fmt: skip


def _case(schema: dict[str, Any], value: Any) -> tuple[Callable[[], object], str]:
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    whole = {"type": "object", "properties": {"x": schema}, **definitions}
    manifest = Manifest.model_validate({"manifest_version": "1", "tools": [{"name": "t", "schema": whole}]})
    compiled, session = CompiledManifest(effective_manifest(manifest)), Session(claims={"sub": "ann"})
    text = json.dumps({"tool": "t", "arguments": {"x": value}}, separators=(",", ":"), ensure_ascii=False)

    def decide() -> str:
        try:
            result = check(Proposal.read(text), session, compiled)
        except ProposalRejectedError as error:
            return error.message
        rejection = getattr(result, "rejection", None)
        return "passed" if rejection is None else str(rejection.reason)

    return decide, decide()


def main(calls: int = 1) -> int:
    """Print the medians; return 1 when the goal is missed."""
    cases = {name: _case(*case) for name, case in _CASES.items()}
    found = medians({name: decide for name, (decide, _) in cases.items()}, calls, thread_time)
    for name, value in found.items():
        print(f"{name:<28} {value / 1000:8.2f} ms  {cases[name][1]:.60}")
    reached = max(found.values()) <= GOAL
    print(f"goal: at most {GOAL / 1000:g} ms: {'reached' if reached else 'missed'}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
