"""Both engines on one scenario: the same requests, and the same decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from pdp.workbench.scenarios.results import Mismatch
from pdp.workbench.scenarios.running.engines import NO_DECISION
from pdp.workbench.scenarios.running.expectation import equal

if TYPE_CHECKING:
    from pdp.decision import Decision
    from pdp.workbench.scenarios.results import Answer, ScenarioResult


def agreed(one: ScenarioResult, other: ScenarioResult) -> ScenarioResult:
    """Return `other`, failed where its engine decided otherwise than that of `one`, body by body.

    Bundle and id of the decisions are not compared: they name the engine's bundle and the moment. Of a policy that
    failed on both, only the code is: each engine tells of it in words of its own.
    """
    steps = list(other.steps)
    for at, (first, second) in enumerate(zip(one.steps, other.steps, strict=False)):
        differing = _differing(first.answers, second.answers)
        if differing is not None:
            mismatch = Mismatch(f"decision, {one.engine} against {other.engine}", *differing)
            steps[at] = replace(second, mismatches=(*second.mismatches, mismatch))
    if len(one.steps) != len(other.steps) and not any(step.mismatches for step in steps):
        return replace(other, error=f"{one.engine} did {len(one.steps)} steps, {other.engine} {len(other.steps)}")
    return replace(other, steps=tuple(steps))


def _differing(ones: tuple[Answer, ...], others: tuple[Answer, ...]) -> tuple[Any, Any] | None:
    for one, other in zip(ones, others, strict=False):
        if one.body != other.body:
            return {"request": orjson.loads(one.body)}, {"request": orjson.loads(other.body)}
        if not equal(_plain(one.decision), _plain(other.decision)):
            return _plain(one.decision), _plain(other.decision)
    if len(ones) != len(others):
        return {"requests": len(ones)}, {"requests": len(others)}
    return None


def _plain(decision: Decision) -> dict[str, Any]:
    if NO_DECISION.issuperset(decision.codes):
        return {"verdict": decision.verdict.value, "codes": list(decision.codes)}
    return {
        "verdict": decision.verdict.value,
        "reasons": [{"code": each.code, "message": each.message, "details": each.details} for each in decision.reasons],
        "obligations": [
            {"id": each.id, "on": each.on.value, "parameters": each.parameters} for each in decision.obligations
        ],
    }
