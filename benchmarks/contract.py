"""Speed of the contract's checks: schema, three invariants and config, `python -m benchmarks.contract`.

The goal is a call that holds, at most 40 µs at the median. Beside it: one that is corrected, a plan of four steps, and
the same rules as Python functions.
"""

import sys
from collections.abc import Callable
from typing import Any

from benchmarks.measuring import medians
from pdp.contract.invariants import ToolInvariant
from pdp.contract.plan import validate_plan
from pdp.contract.registry.registry import Registry
from pdp.contract.registry.tool_contract import ToolConfigParam, ToolContract
from pdp.contract.request import check
from pdp.manifest.model import Manifest
from pdp.proposal import Proposal
from pdp.session import Session

GOAL = 40.0
"""Microseconds at the median."""

_SCHEMA = {
    "subquestion_id": "Optional[str]", "subquestion_ids": "Optional[list[str]]", "web_search": "Optional[bool]",
    "query": "str",
}  # fmt: skip
_RULES = [
    ("EXCLUSIVE", "Cannot use both", "!(has(call.subquestion_id) && has(call.subquestion_ids))", None),
    (
        "WEB", "Bundled steps search", "!has(call.subquestion_ids) || call.web_search == true",
        {"set": {"web_search": True}},
    ),
    ("MODE", "Fast mode asks one thing", 'config.mode != "fast" || size(call.query) < 200', None),
]  # fmt: skip


def _functions() -> list[ToolInvariant]:
    return [
        ToolInvariant(
            "EXCLUSIVE",
            "Cannot use both",
            lambda call, *_: not ("subquestion_id" in call and "subquestion_ids" in call),
        ),
        ToolInvariant(
            "WEB",
            "Bundled steps search",
            lambda call, *_: "subquestion_ids" not in call or call.get("web_search") is True,
        ),
        ToolInvariant(
            "MODE",
            "Fast mode asks one thing",
            lambda call, _, config: config["mode"] != "fast" or len(call["query"]) < 200,  # noqa: PLR2004
        ),
    ]


def _registry() -> Registry:
    """Return `retrieve_evidence`, as a manifest states it, and `retrieve_again`, the same in Python."""
    empty = Registry()
    empty.register_contract(ToolContract("retrieve_evidence", _SCHEMA, [], "Retrieve."))
    entry: dict[str, Any] = {
        "name": "retrieve_evidence",
        "schema": empty.manifest.tools["retrieve_evidence"].schema_,
        "invariants": [
            {"id": name, "rule": rule, "check": text, "correct": correct} for name, rule, text, correct in _RULES
        ],
        "config": [{"key": "mode", "default": "Fast", "normalize": ["strip", "lower"]}],
    }
    registry = Registry(Manifest.model_validate({"manifest_version": "1", "tools": [entry]}))
    mode = ToolConfigParam("mode", "Fast", str.lower)
    registry.register_contract(ToolContract("retrieve_again", _SCHEMA, _functions(), "Retrieve.", config_params=[mode]))
    return registry


def _cases() -> dict[str, Callable[[], object]]:
    registry = _registry()
    compiled, session = registry.compiled, Session(claims={"sub": "clinician-7"}, config={"mode": " FAST "})

    def checking(tool: str, **arguments: Any) -> Callable[[], object]:
        proposal = Proposal.read({"tool": tool, "arguments": {"query": "metformin and contrast media", **arguments}})
        return lambda: check(proposal, session, compiled)

    bundled = {"subquestion_ids": ["q1", "q2"]}
    plan = [{"tool": "retrieve_evidence", "arguments": {"query": f"question {at}"}} for at in range(4)]
    return {
        "schema, three invariants, config": checking("retrieve_evidence", web_search=True, **bundled),
        "the same, one corrected": checking("retrieve_evidence", **bundled),
        "the same in Python": checking("retrieve_again", web_search=True, **bundled),
        "a plan of four steps": lambda: validate_plan(plan, session, compiled),
    }


def main(calls: int = 4000) -> int:
    """Print the medians; return 1 when the goal is missed."""
    found = medians(_cases(), calls)
    for name, value in found.items():
        print(f"{name:<36} {value:8.1f} us")
    reached = found["schema, three invariants, config"] <= GOAL
    print(f"goal: at most {GOAL:g} us: {'reached' if reached else 'missed'}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
