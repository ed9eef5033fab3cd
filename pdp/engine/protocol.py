"""What every engine does: decide requests, one or many, and answer a DENY with a stable code whenever it cannot.

An engine implements `evaluate` and `aevaluate`: canonical bytes in, the JSON document `authz/decision` out, an
`EngineError` or `BundleError` for everything else. The rest is the same for all and stands here.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from pdp.canonical import JsonValueError, canonical
from pdp.decision import Answer, Decision, Reason, Verdict, parse_answer
from pdp.errors import BundleError, EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdp.request import Request

REQUEST_INVALID = "decision.request_invalid"
"""The code of a request that cannot even be serialised; the policy gives the same code for a malformed one."""


def new_id() -> str:
    """Return a new unguessable identifier: 32 hexadecimal digits."""
    return os.urandom(16).hex()


def denied(code: str, message: str) -> Decision:
    """Return the DENY that stands for a failure: no policy took part in it."""
    return Decision(
        verdict=Verdict.DENY,
        reasons=(Reason(code=code, message=message, details={}),),
        obligations=(),
        decision_id=new_id(),
        bundle_revision=None,
        release=None,
    )


class Engine(ABC):
    """A policy decision point. Safe to share between threads and tasks; close it when done.

    Every `decide…` method fails closed: it never raises for a failed evaluation but returns a DENY whose only reason
    has the failure's code.
    """

    name: str
    """`embedded` or `sidecar`, as on the command line."""

    @abstractmethod
    def evaluate(self, body: bytes) -> bytes:
        """Evaluate `authz/decision` for the canonical request `body` and return the document as JSON.

        Raises:
            EngineError: no answer (unavailable, timed out), or an answer that is none.
            BundleError: the engine has no usable bundle.
        """

    @abstractmethod
    async def aevaluate(self, body: bytes) -> bytes:
        """Do as `evaluate`, without blocking the event loop for longer than an evaluation takes."""

    def close(self) -> None:  # noqa: B027 - an engine that holds nothing has nothing to do
        """Release what the engine holds. Deciding afterwards is a DENY."""

    async def aclose(self) -> None:
        """Do as `close`, for use in a running event loop."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def decide(self, request: Request) -> Decision:
        """Decide one request."""
        try:
            body = request.canonical()
        except JsonValueError as error:
            return denied(REQUEST_INVALID, str(error))
        return self.decide_body(body)

    def decide_body(self, body: bytes) -> Decision:
        """Decide one request given as canonical bytes, of whatever shape: the policy itself checks it."""
        try:
            return _decision(self.evaluate(body))
        except (EngineError, BundleError) as error:
            return denied(error.code, error.message)

    async def adecide(self, request: Request) -> Decision:
        """Decide one request, asynchronously."""
        try:
            body = request.canonical()
        except JsonValueError as error:
            return denied(REQUEST_INVALID, str(error))
        return await self.adecide_body(body)

    async def adecide_body(self, body: bytes) -> Decision:
        """Decide one request given as canonical bytes, asynchronously."""
        try:
            return _decision(await self.aevaluate(body))
        except (EngineError, BundleError) as error:
            return denied(error.code, error.message)

    def decide_batch(self, requests: Sequence[Request]) -> list[Decision]:
        """Decide many requests; the decisions stand in the requests' order, each on its own."""
        return [self.decide(request) for request in requests]

    async def adecide_batch(self, requests: Sequence[Request]) -> list[Decision]:
        """Decide many requests concurrently; the decisions stand in the requests' order."""
        return list(await asyncio.gather(*(self.adecide(request) for request in requests)))


def _decision(body: bytes) -> Decision:
    answer: Answer = parse_answer(body)
    reasons = answer.reasons if len(answer.reasons) == 1 else tuple(sorted(answer.reasons, key=_reason_order))
    obligations = answer.obligations
    if len(obligations) > 1:
        obligations = tuple(sorted(obligations, key=lambda one: (one.id, canonical(one.parameters))))
    bundle = answer.bundle
    return Decision(
        verdict=answer.verdict,
        reasons=reasons,
        obligations=obligations,
        decision_id=new_id(),
        bundle_revision=bundle.revision if bundle else None,
        release=bundle.release if bundle else None,
    )


# Sets have no order, and WebAssembly and OPA list them differently (trap 15): one order for both.
def _reason_order(reason: Reason) -> tuple[str, bytes, str]:
    return reason.code, canonical(reason.details), reason.message
