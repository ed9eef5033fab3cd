"""The engine beside the process: a running OPA, asked over HTTP (OPA's Data API).

Whatever is not a decision is an error with a code of its own, and so a DENY:

    engine.unavailable       no connection; refused (401, 403), not ready (429, 502, 503, 504); circuit open; closed
    engine.timeout           no whole answer in time
    engine.answer_invalid    any other status, no `result`, not JSON, half an answer, a policy that fails
    decision.request_invalid a request that is too large or not JSON; OPA is not asked
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

import orjson

from pdp.circuit import FAILURES, PAUSE, Circuit
from pdp.engine.opa.address import parse_address
from pdp.engine.opa.connections import CONNECT_TIMEOUT, CONNECTIONS, Connections
from pdp.engine.protocol import DECISION, FINDINGS, PLAN, Engine
from pdp.engine.seconds import check_seconds
from pdp.errors import AnswerInvalidError, EngineError, RequestRefusedError, UsageError
from pdp.json import MAX_BYTES, JsonValueError, canonical

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pdp.decision import Decision
    from pdp.engine.opa.response import Response
    from pdp.request import Request

TIMEOUT: Final = 1.0
"""Default time for one decision, in seconds."""

_LONGEST: Final = 3600.0
_BATCH: Final = 16
# Strict, as otherwise a builtin that fails is undefined, and a deny that leans on it is lost (OPA's default).
_QUERY: Final = "?strict-builtin-errors=true"
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_OK: Final = 200
_REFUSED: Final = frozenset((401, 403))
_NOT_READY: Final = frozenset((429, 502, 503, 504))
_SHOWN: Final = 200


class SidecarEngine(Engine):
    """Decides by asking an OPA that runs beside the process. Safe for threads, tasks, and one event loop after another.

    Args:
        url: `http://HOST:PORT`, `https://HOST:PORT` or `unix:///PATH`.
        timeout: seconds for one decision, connecting and a second try included.
        connect_timeout: seconds to wait for a connection.
        token: sent as `Authorization: Bearer`, for OPA's `--authentication=token`. Shown nowhere.
        ca_file: certificates (PEM) to trust for `https` instead of the system's.
        connections: most connections that the tasks of one event loop have at a time; further ones wait.
        failures: after how many failures in a row OPA is left alone,
        pause: and for how many seconds, before one decision tries again. The others are DENY `engine.unavailable` at
            once meanwhile.

    Raises:
        UsageError: an argument that cannot be used.
    """

    name = "sidecar"

    def __init__(
        self,
        url: str,
        *,
        timeout: float = TIMEOUT,
        connect_timeout: float = CONNECT_TIMEOUT,
        token: str | None = None,
        ca_file: Path | None = None,
        connections: int = CONNECTIONS,
        failures: int = FAILURES,
        pause: float = PAUSE,
    ) -> None:
        for name, seconds in (("timeout", timeout), ("connect_timeout", connect_timeout), ("pause", pause)):
            check_seconds(name, seconds, most=_LONGEST)
        for name, count in (("connections", connections), ("failures", failures)):
            if type(count) is not int or count < 1:
                raise UsageError(f"{name}: {count!r:.40} is out of range", hint="at least 1")
        if token is not None and not _TOKEN.fullmatch(token):
            raise UsageError("token: it has characters that a bearer token must not have", hint="see RFC 6750")
        address = parse_address(url)
        self._name = f"OPA at {address.url}"
        self._timeout = timeout
        authorization = f"Authorization: Bearer {token}\r\n" if token is not None else ""
        self._heads = {
            document: (
                f"POST /v1/data/{document}{_QUERY} HTTP/1.1\r\nHost: {address.authority}\r\n"
                f"Accept-Encoding: identity\r\n{authorization}Content-Type: application/json\r\nContent-Length: "
            ).encode()
            for document in (DECISION, FINDINGS, PLAN)
        }
        self._connections = Connections(address, connect_timeout=connect_timeout, limit=connections, ca_file=ca_file)
        self._circuit = Circuit(failures=failures, pause=pause)

    def evaluate(self, body: bytes) -> bytes:
        """Evaluate `authz/decision` for the canonical request `body`, as `Engine.evaluate` does.

        Raises:
            EngineError: as the module's table says, by its code.
        """
        return self._answer(DECISION, body)

    def evaluate_findings(self, body: bytes) -> bytes:
        """Evaluate `authz/findings`, as `Engine.evaluate_findings` does; errors as of `evaluate`."""
        return self._answer(FINDINGS, body)

    def evaluate_plan(self, body: bytes) -> bytes:
        """Evaluate `authz/plan`, as `Engine.evaluate_plan` does; errors as of `evaluate`."""
        return self._answer(PLAN, body)

    def _answer(self, document: str, body: bytes) -> bytes:
        request = self._request(document, body)
        try:
            response = self._connections.exchange(request, self._timeout)
        except EngineError as error:
            self._note(error)
            raise
        return self._document(document, response)

    async def aevaluate(self, body: bytes) -> bytes:
        """Do as `evaluate`, without blocking the event loop."""
        return await self._aanswer(DECISION, body)

    async def aevaluate_plan(self, body: bytes) -> bytes:
        """Do as `evaluate_plan`, without blocking the event loop."""
        return await self._aanswer(PLAN, body)

    async def _aanswer(self, document: str, body: bytes) -> bytes:
        request = self._request(document, body)
        try:
            response = await self._connections.aexchange(request, self._timeout)
        except EngineError as error:
            self._note(error)
            raise
        return self._document(document, response)

    async def adecide_batch(self, requests: Sequence[Request]) -> list[Decision]:
        """Decide many requests, some at a time; the decisions stand in the requests' order.

        None of them spends its time-out on waiting for the others.
        """
        decisions: dict[int, Decision] = {}
        left = iter(enumerate(requests))

        async def decide() -> None:
            for index, request in left:
                decisions[index] = await self.adecide(request)

        await asyncio.gather(*(decide() for _ in range(min(_BATCH, len(requests)))))
        return [decisions[index] for index in range(len(requests))]

    def close(self) -> None:
        """Close all connections; deciding afterwards is a DENY `engine.unavailable`."""
        self._connections.close()

    def _request(self, document: str, body: bytes) -> bytes:
        if len(body) > MAX_BYTES:
            raise RequestRefusedError(f"the request has {len(body)} bytes, at most {MAX_BYTES} are admitted")
        # The body is put between `{"input":` and `}` as it is; so make sure that it cannot close the brace itself.
        try:
            orjson.loads(body)
        except ValueError as error:
            raise RequestRefusedError(f"the request is not JSON: {error}") from error
        if not self._circuit.admits():
            raise EngineError(
                f"{self._circuit.reason}; it is not asked again before a pause is over",
                hint="check that it runs and that the address is right",
            )
        return b'%b%d\r\n\r\n{"input":%b}' % (self._heads[document], len(body) + len(b'{"input":}'), body)

    # A policy that fails on some request is no reason to leave OPA alone: else whoever sends such a request could make
    # everybody's decisions fail.
    def _note(self, error: EngineError) -> None:
        if isinstance(error, AnswerInvalidError):
            self._circuit.succeeded()
        else:
            self._circuit.failed(error.message)

    def _document(self, document: str, response: Response) -> bytes:
        if response.status != _OK:
            raise self._refusal(response)
        self._circuit.succeeded()
        try:
            envelope = orjson.loads(response.body)
        except ValueError as error:
            raise AnswerInvalidError(
                f"{self._name} answered something that is not JSON: {_shown(response.body)}",
                hint="check that OPA itself listens there",
            ) from error
        if type(envelope) is not dict:
            raise AnswerInvalidError(
                f"{self._name} answered something that is no answer of OPA's: {_shown(response.body)}",
                hint="check that OPA itself listens there",
            )
        if "result" not in envelope:
            raise AnswerInvalidError(
                f"{self._name} has no document {document}", hint="load the bundle into it, and look into its log"
            )
        try:
            return canonical(envelope["result"])
        except JsonValueError as error:
            raise AnswerInvalidError(f"{self._name} answered something that is not plain JSON: {error}") from error

    def _refusal(self, response: Response) -> EngineError:
        said = f"({response.status}): {_said(response.body)}"
        if response.status in _NOT_READY:
            error = EngineError(f"{self._name} is not ready {said}", hint="look into its log")
            self._circuit.failed(error.message)
            return error
        self._circuit.succeeded()
        if response.status in _REFUSED:
            return EngineError(
                f"{self._name} refused the request {said}", hint="check the token, and OPA's policy system.authz"
            )
        return AnswerInvalidError(
            f"{self._name} made no decision {said}",
            hint="check the policy at the place that is named, if any, and that OPA itself listens there",
        )


def _said(body: bytes) -> str:
    """What OPA gives as its reason: the first error with its place in the policy, else its message."""
    try:
        error = orjson.loads(body)
        for cause in error.get("errors") or ():
            place = cause.get("location") or {}
            at = f"{place['file']}:{place['row']}: " if place.get("file") else ""
            return _line(f"{at}{cause['message']}")
        return _line(str(error["message"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return _shown(body)


def _shown(body: bytes) -> str:
    return repr(_line(body[:_SHOWN].decode(errors="replace"))) if body else "nothing"


def _line(text: str) -> str:
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
