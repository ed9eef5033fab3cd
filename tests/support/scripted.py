"""An engine that answers by a function of the request: for what happens around a decision, whatever the policy is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from pdp.engine.protocol import Engine


def answer(verdict: str = "ALLOW", *obligations: dict[str, Any], code: str = "scripted.said") -> dict[str, Any]:
    """A decision document with one reason; obligations belong to the verdict."""
    return {
        "verdict": verdict,
        "reasons": [{"code": code, "message": "as the test says", "details": {}}],
        "obligations": [{"on": verdict, **obligation} for obligation in obligations],
        "bundle": {"revision": "sha256:1", "release": 1},
    }


def duty(name: str, /, **parameters: Any) -> dict[str, Any]:
    return {"id": name, "parameters": parameters}


def until_approved(request: dict[str, Any]) -> dict[str, Any]:
    """STEP_UP without an approval, ALLOW with one."""
    return answer("STEP_UP", code="approvals.required") if request["context"]["approval"] is None else answer()


class Scripted(Engine):
    """Asks `respond`, and keeps what it was asked."""

    name = "scripted"

    def __init__(self, respond: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self.respond = respond
        self.asked: list[dict[str, Any]] = []

    def evaluate(self, body: bytes) -> bytes:
        request = orjson.loads(body)
        self.asked.append(request)
        return orjson.dumps(self.respond(request))

    async def aevaluate(self, body: bytes) -> bytes:
        return self.evaluate(body)
