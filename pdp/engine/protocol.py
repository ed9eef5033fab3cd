"""What every engine does: decide requests, one or many, and answer a DENY with a stable code whenever it cannot.

An engine implements `evaluate` and `aevaluate`: canonical bytes in, the JSON document `authz/decision` out, an
`EngineError` or `BundleError` for everything else. The rest is the same for all and stands here.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Self

from pdp.decision import Decision, Findings, denied, parse_decision, parse_findings
from pdp.errors import BundleError, EngineError, RequestRefusedError
from pdp.json import JsonValueError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdp.request import Request

REQUEST_INVALID = RequestRefusedError.code
"""The code of a request that cannot even be serialised; the policy gives the same code for a malformed one."""

DECISION: Final = "authz/decision"
"""The document that decides; a bundle without it is none."""

FINDINGS: Final = "authz/findings"
"""The document with everything that fired, whichever verdict won."""

PLAN: Final = "authz/plan"
"""The document that decides whether a whole plan is acceptable, in the form of a decision."""


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
            EngineError: no answer (unavailable, timed out), or an invalid answer.
            BundleError: the engine has no usable bundle.
        """

    @abstractmethod
    async def aevaluate(self, body: bytes) -> bytes:
        """Async variant of `evaluate`: it blocks the event loop for one evaluation at most."""

    def evaluate_findings(self, body: bytes) -> bytes:  # noqa: ARG002 - what an engine does that cannot tell
        """Evaluate `authz/findings` for the canonical request `body` and return the document as JSON.

        Raises:
            EngineError, BundleError: as of `evaluate`; also when this engine or its bundle cannot tell.
        """
        raise EngineError(f"the engine {self.name} does not tell what fired")

    def evaluate_plan(self, body: bytes) -> bytes:  # noqa: ARG002 - what an engine does that has no planning rules
        """Evaluate `authz/plan` for the plan `body`, canonical, and return the document as JSON.

        Raises:
            EngineError, BundleError: as of `evaluate`; also when this engine or its bundle knows nothing of plans.
        """
        raise EngineError(f"the engine {self.name} decides no plans")

    async def aevaluate_plan(self, body: bytes) -> bytes:
        """Async variant of `evaluate_plan`: it blocks the event loop for one evaluation at most."""
        return self.evaluate_plan(body)

    def close(self) -> None:  # noqa: B027 - an engine that holds nothing has nothing to do
        """Release what the engine holds. Deciding afterwards is a DENY."""

    async def aclose(self) -> None:
        """Async variant of `close`."""
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
            return parse_decision(self.evaluate(body))
        except (EngineError, BundleError) as error:
            return denied(error.code, error.message)

    async def adecide(self, request: Request) -> Decision:
        """Async variant of `decide`."""
        try:
            body = request.canonical()
        except JsonValueError as error:
            return denied(REQUEST_INVALID, str(error))
        return await self.adecide_body(body)

    async def adecide_body(self, body: bytes) -> Decision:
        """Async variant of `decide_body`."""
        try:
            return parse_decision(await self.aevaluate(body))
        except (EngineError, BundleError) as error:
            return denied(error.code, error.message)

    def decide_plan(self, body: bytes) -> Decision:
        """Decide whether a plan is acceptable, given as canonical bytes: `{steps: [{tool}], context: {purpose}}`.

        ALLOW or DENY; it lets no call run. Each call is decided by itself.
        """
        try:
            return parse_decision(self.evaluate_plan(body))
        except (EngineError, BundleError) as error:
            return denied(error.code, error.message)

    async def adecide_plan(self, body: bytes) -> Decision:
        """Async variant of `decide_plan`."""
        try:
            return parse_decision(await self.aevaluate_plan(body))
        except (EngineError, BundleError) as error:
            return denied(error.code, error.message)

    def findings(self, body: bytes) -> Findings:
        """Return everything that fired for one request given as canonical bytes, whichever verdict won.

        For people who want to know why; nothing is decided by it.

        Raises:
            EngineError, BundleError: it cannot be told.
        """
        return parse_findings(self.evaluate_findings(body))

    def decide_batch(self, requests: Sequence[Request]) -> list[Decision]:
        """Decide many requests; the decisions stand in the requests' order, each on its own."""
        return [self.decide(request) for request in requests]

    async def adecide_batch(self, requests: Sequence[Request]) -> list[Decision]:
        """Decide many requests concurrently; the decisions stand in the requests' order."""
        return list(await asyncio.gather(*(self.adecide(request) for request in requests)))
