"""The interface of every engine: an engine decides requests, and on failure returns a DENY with a stable code.

An engine has a `name` and implements `evaluate`, and also `aevaluate` if it waits for I/O. Both methods take the
canonical request as bytes and return a document of the policy as JSON. They raise `EngineError` and `BundleError`.
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
"""The names of engines in options and settings. `embedded` is implemented in `wasm/`, `sidecar` in `opa/`."""

ENGINES: Final[tuple[EngineName, ...]] = get_args(EngineName)

REQUEST_INVALID = RequestRefusedError.code
"""The code for a request that cannot be serialised. The policy uses the same code for a malformed request."""

DECISION: Final = "authz/decision"  # the path of the document with the decision, which every bundle must have
FINDINGS: Final = "authz/findings"  # the document with all findings, also those that did not change the verdict
PLAN: Final = "authz/plan"  # the path of the decision on whether a whole plan is acceptable

_GRANTS: Final = {DECISION: GRANT, PLAN: "planning.acceptable"}


def check_seconds(name: str, value: object, *, most: float = 3600) -> None:
    """Raise `UsageError` unless `value` is a number above 0 and at most `most` (default: one hour in seconds)."""
    # The comparison is written so that NaN is rejected too.
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= most:
        raise UsageError(
            f"{name}: {value!r:.40} is not a number of seconds", hint=f"give a number above 0, at most {most:.0f}"
        )


def parse_answer(answer: bytes, request: bytes | Request, document: str = DECISION) -> Decision:
    """Parse an engine's answer. Raises `AnswerInvalidError` for a malformed answer, or an answer to another request."""
    return parse_decision(answer, _request_id(request), grant=_GRANTS.get(document))


def _request_id(request: bytes | Request) -> str | None:
    """Return the request id that the policy repeats in its answer, or None if the request has no textual id."""
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
    """A policy decision point. Safe to share between threads and tasks. Close it after use.

    If an evaluation fails, the methods `decide…` do not raise an error, but return a DENY with the error's code as its
    reason. Their argument `document` is the document of the policy to evaluate: `DECISION`, `PLAN` or `FINDINGS`.

    Examples:
        >>> from pdp.errors import EngineError
        >>> class Unavailable(Engine):
        ...     name = "unavailable"
        ...     def evaluate(self, body, document="authz/decision"):
        ...         raise EngineError("no server")
        >>> Unavailable().decide_body(b"{}").codes
        ('engine.unavailable',)
    """

    name: str
    """The engine's name in reports; the engines of this package use the names in `ENGINES`."""

    @abstractmethod
    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Evaluate a document of the policy for a request, and return the result as JSON.

        Args:
            body: the request in its canonical form, as `Request.canonical` returns it.
            document: the name of the document, by default `DECISION`.

        Raises:
            EngineError: the engine is not available, timed out, or its answer is invalid.
            BundleError: the engine has no usable bundle.
        """

    async def aevaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Async variant of `evaluate`. This default blocks the event loop during the evaluation."""
        return self.evaluate(body, document)

    async def adirectory(self) -> Mapping[str, Any]:
        """Return `data.directory` of the engine, or an empty mapping if the engine cannot read its data.

        Raises:
            EngineError: the engine does not answer.
        """
        return {}

    async def ahealthy(self) -> bool:
        """Return whether the engine can decide now."""
        return True

    def close(self) -> None:
        """Release the engine's resources. Later decisions are a DENY."""

    async def aclose(self) -> None:
        """Async variant of `close`."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def decide(self, request: Request) -> Decision:
        """Return the decision about one request, or a DENY if the evaluation fails."""
        try:
            return self.decide_body(request.canonical())
        except JsonValueError as error:
            return denied(REQUEST_INVALID, str(error))

    def decide_body(self, body: bytes, document: str = DECISION) -> Decision:
        """Return the decision about a request in its canonical form. The policy rejects malformed requests.

        With `PLAN`, `body` is a plan: `{steps: [{tool}], context: {purpose}}`. ALLOW accepts the plan; no call runs.
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
