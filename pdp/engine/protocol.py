"""What every engine does: decide a request, and answer a DENY with a stable code whenever it cannot.

An engine has a `name` and implements `evaluate`, and `aevaluate` where it waits: canonical bytes in, a document of the
policy as JSON out, an `EngineError` or `BundleError` for everything else.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, Literal, Self, get_args

import orjson

from pdp.decision import GRANT, Decision, denied, parse_decision
from pdp.documents.arguments import Closable
from pdp.errors import BundleError, EngineError, RequestRefusedError, UsageError
from pdp.json import JsonValueError
from pdp.request import Request

EngineName = Literal["embedded", "sidecar"]
"""An engine, as options and settings name it: `embedded` stands in `wasm/`, `sidecar` in `opa/`."""

ENGINES: Final[tuple[EngineName, ...]] = get_args(EngineName)

REQUEST_INVALID = RequestRefusedError.code
"""The code of a request that cannot even be serialised; the policy gives the same code for a malformed one."""

DECISION: Final = "authz/decision"  # the document that decides; every bundle has it
FINDINGS: Final = "authz/findings"  # everything that fired, whichever verdict won: for people who want to know why
PLAN: Final = "authz/plan"  # whether a whole plan is acceptable, in the form of a decision

_GRANTS: Final = {DECISION: GRANT, PLAN: "planning.acceptable"}


def check_seconds(name: str, value: object, *, most: float = 3600) -> None:
    """Raise UsageError unless an argument of an engine is a number of seconds above 0, at most `most`: an hour."""
    # The comparison fails for NaN.
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= most:
        raise UsageError(f"{name}: {value!r:.40} is not a number of seconds", hint=f"above 0, at most {most:.0f}")


def parse_answer(answer: bytes, request: bytes | Request, document: str = DECISION) -> Decision:
    """Return the decision in an engine's answer; AnswerInvalidError: malformed, or about another request."""
    return parse_decision(answer, _request_id(request), grant=_GRANTS.get(document))


def _request_id(request: bytes | Request) -> str | None:
    """Return the id that the policy names in its answer; None where the request has no text there."""
    if isinstance(request, bytes):
        try:
            stated = orjson.loads(request)
        except ValueError:
            return None
        context = stated.get("context") if type(stated) is dict else None
    else:
        context = request.context
    named = context.get("request_id") if type(context) is dict else None
    return named if type(named) is str else None


class Engine(Closable, ABC):
    """A policy decision point. Safe to share between threads and tasks; close it when done.

    Every `decide…` method fails closed: it never raises for a failed evaluation but returns a DENY whose only reason
    has the failure's code.

    `document` is what the policy is asked for: `DECISION` unless given, `PLAN` or `FINDINGS`.
    """

    name: str
    """For reports; those of this package are `ENGINES`."""

    @abstractmethod
    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Evaluate a document for the canonical request `body` and return it as JSON.

        Raises:
            EngineError: no answer (unavailable, timed out), or an invalid answer.
            BundleError: the engine has no usable bundle.
        """

    async def aevaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Async variant of `evaluate`: unless an engine does better, it blocks the event loop for one evaluation."""
        return self.evaluate(body, document)

    async def adirectory(self) -> Mapping[str, Any]:
        """Return the data `directory` that it decides by, empty where it does not say; EngineError: no answer."""
        return {}

    async def ahealthy(self) -> bool:
        """Return whether the engine is ready."""
        return True

    def close(self) -> None:
        """Release what the engine holds. Deciding afterwards is a DENY."""

    async def aclose(self) -> None:
        """Async variant of `close`."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def decide(self, request: Request) -> Decision:
        """Decide one request."""
        try:
            return self.decide_body(request.canonical())
        except JsonValueError as error:
            return denied(REQUEST_INVALID, str(error))

    def decide_body(self, body: bytes, document: str = DECISION) -> Decision:
        """Decide one request given as canonical bytes, of whatever shape: the policy itself checks it.

        With `PLAN`, decide whether a whole plan is acceptable: `{steps: [{tool}], context: {purpose}}`. That is ALLOW
        or DENY and lets no call run; each call is decided by itself.
        """
        try:
            return parse_answer(self.evaluate(body, document), body, document)
        except (EngineError, BundleError) as error:
            return denied(error.code, error.message)

    async def adecide(self, request: Request) -> Decision:
        """Async variant of `decide`."""
        try:
            return await self.adecide_body(request.canonical())
        except JsonValueError as error:
            return denied(REQUEST_INVALID, str(error))

    async def adecide_body(self, body: bytes, document: str = DECISION) -> Decision:
        """Async variant of `decide_body`."""
        try:
            return parse_answer(await self.aevaluate(body, document), body, document)
        except (EngineError, BundleError) as error:
            return denied(error.code, error.message)
