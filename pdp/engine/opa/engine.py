"""The engine that asks an OPA server beside the process over HTTP (OPA's Data API).

Every answer that is not a decision becomes an error with a stable code, and so a DENY:

    engine.unavailable       no connection; rejected (401, 403), not ready (429, 502, 503, 504); circuit open; closed;
                             OPA's version may not decide (`versions`)
    engine.timeout           no complete answer in time
    engine.answer_invalid    any other status, no `result`, unknown members beside `result`, a duplicate key, not JSON,
                             a truncated answer, a failed policy
    decision.request_invalid the request is too large or not JSON; OPA is not asked
"""

from __future__ import annotations

import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from pdp.engine.data import directory_faults
from pdp.engine.opa.client import Answer, OpaClient, parse_address
from pdp.engine.opa.versions import version_fault
from pdp.engine.protocol import DECISION, Engine, check_seconds, parse_answer
from pdp.errors import (
    AnswerInvalidError,
    EngineError,
    MissingExtraError,
    RequestRefusedError,
    UndefinedDocumentError,
    UsageError,
)
from pdp.json import MAX_BYTES, JsonValueError, canonical, has_unique_keys, parse_json

if TYPE_CHECKING:
    from opa_client.base import BaseClient

    from pdp.engine.opa.aio import Sessions
    from pdp.engine.opa.server import ServerClient

TIMEOUT: Final = 1.0  # the default number of seconds for one decision
TOKEN_VARIABLE: Final = "PDP_OPA_TOKEN"  # noqa: S105 - the variable's name, not a token
CONNECT_TIMEOUT: Final = 0.5  # The default number of seconds to wait for a connection.
CONNECTIONS: Final = 64  # The default maximum of connections per event loop, and of idle connections for threads.
FAILURES: Final = 5  # The default number of consecutive failures after which requests are paused.
PAUSE: Final = 1.0  # The default number of seconds between two trial requests during a pause.

# Strict errors are needed: by default a failing builtin is undefined, so a deny rule that calls it would not fire.
# `provenance` adds OPA's version to each answer, because another OPA may have taken the address since the last request.
_PATH: Final = "/v1/data/{}?strict-builtin-errors=true&provenance=true"
# The syntax of bearer tokens in RFC 6750.
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_OK: Final = 200
_REFUSED: Final = frozenset((401, 403))
_NOT_READY: Final = frozenset((429, 502, 503, 504))
_SHOWN: Final = 200
_NOTHING: Final = b"{}"
_DIRECTORY_SECONDS: Final = 10
_MEMBERS: Final = frozenset(("result", "provenance", "decision_id"))  # OPA adds `decision_id` if it logs decisions.
_NULL: Final = b'{"input":null}'  # For this input OPA adds a warning that the input is missing, and still decides.


class Circuit:
    """A circuit breaker: while OPA is down, callers do not wait for the timeout. Safe for threads and tasks.

    After `failures` failed calls in a row, the circuit opens: then one trial call is permitted every `pause` seconds,
    until a trial call succeeds. `reason` describes the last failure. A cancelled call need not report its result.
    """

    def __init__(
        self, *, failures: int = FAILURES, pause: float = PAUSE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = failures
        self._pause = pause
        self._clock = clock
        self._lock = threading.Lock()
        self._failed = 0
        self._next_trial = 0.0
        self.reason = ""

    def admits(self) -> bool:
        """Return whether a call to OPA is permitted now. An open circuit permits one call per pause."""
        if self._failed < self._limit:
            return True
        with self._lock:
            if self._failed >= self._limit and self._clock() < self._next_trial:
                return False
            self._next_trial = self._clock() + self._pause
            return True

    def succeeded(self) -> None:
        """Record that OPA answered a call, and close the circuit."""
        if self._failed:
            with self._lock:
                self._failed = 0

    def failed(self, reason: str) -> None:
        """Record that a call to OPA failed, with the reason."""
        with self._lock:
            self._failed += 1
            self.reason = reason
            if self._failed >= self._limit:
                self._next_trial = self._clock() + self._pause


class SidecarEngine(Engine):
    """An engine that asks an OPA server beside the process. Safe for threads and tasks, and for several event loops.

    In a forked process every decision is a DENY `engine.unavailable`, so create the engine after the fork.

    Args:
        url: `http://HOST:PORT`, `https://HOST:PORT` or `unix:///PATH`.
        client: instead of `url`: an `OpaClient` or `AsyncOpaClient` of opa-python-client. The engine reads its address,
            headers, token and certificates, opens its own connections, and does not close the client.
        timeout: seconds for one decision, including the connection and a second attempt.
        connect_timeout: seconds for opening a connection.
        token: sent as `Authorization: Bearer`, for OPA's `--authentication=token`; never logged.
        tls: for `https`, replaces the system's certificates; it may include a client certificate, for
            `--authentication=tls`.
        connections: the maximum number of connections of an event loop. Each waiting thread uses a separate connection.
        failures: after this number of failures in a row, OPA is not asked for `pause` seconds.
        pause: seconds in which every decision is a DENY `engine.unavailable`. Then one decision tries OPA again.
        accept_unknown_opa: accept an OPA server that does not report its version. Known bad versions never decide.

    Raises:
        UsageError: an argument is invalid.

    Examples:
        >>> with SidecarEngine("http://127.0.0.1:9", timeout=1) as engine:  # no server uses this port
        ...     engine.decide_body(b"{}").codes
        ('engine.unavailable',)
    """

    name = "sidecar"

    def __init__(
        self,
        url: str | None = None,
        *,
        client: BaseClient | None = None,
        timeout: float = TIMEOUT,
        connect_timeout: float = CONNECT_TIMEOUT,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        connections: int = CONNECTIONS,
        failures: int = FAILURES,
        pause: float = PAUSE,
        accept_unknown_opa: bool = False,
    ) -> None:
        for name, seconds in (("timeout", timeout), ("connect_timeout", connect_timeout), ("pause", pause)):
            check_seconds(name, seconds)
        for name, count in (("connections", connections), ("failures", failures)):
            if type(count) is not int or count < 1:
                raise UsageError(f"{name}: {count!r:.40} is out of range", hint="give at least 1")
        if token is not None and not _TOKEN.fullmatch(token):  # The message must not contain the token.
            raise UsageError(
                "OPA's token has characters that a bearer token must not have",
                hint="use letters, digits and -._~+/ with = at the end; check for spaces, line breaks and quotes",
            )
        if (url is None) == (client is None) or (client is not None and token is not None):
            hint = "pass a url (with a token if needed), or a client"
            raise UsageError("the engine needs either a url or a client", hint=hint)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        if client is not None:
            from pdp.engine.opa.server import settings_of  # noqa: PLC0415 - opa-python-client takes 0.2 s to import

            url, headers, own = settings_of(client)
            tls = tls or own
        address = parse_address(cast("str", url))
        if tls is not None and not address.tls:
            raise UsageError("tls is set, but OPA's URL is not https", hint="use https://HOST:PORT")
        self._name = f"OPA at {address.url}"
        self._timeout = timeout
        self._accept_unknown = accept_unknown_opa
        self._client = OpaClient(
            address,
            connect_timeout=connect_timeout,
            connections=connections,
            headers=headers,
            tls=(tls or ssl.create_default_context()) if address.tls else None,
        )
        self._tasks: Sessions | None = None
        self._process = os.getpid()
        self.opa_version: str | None = None  # As OPA's last answer stated it.
        self._directory: Mapping[str, Any] = {}
        self._directory_ends = 0.0
        self._circuit = Circuit(failures=failures, pause=pause)

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Evaluate a document, as `Engine.evaluate` does. The docstring of the module lists the errors."""
        content = self._content(body)
        try:
            answer = self._client.exchange("POST", _PATH.format(document), content, self._timeout)
        except EngineError as error:
            self._report_to_circuit(error)
            raise
        return self._document(document, content, answer)

    async def aevaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Async variant of `evaluate`."""
        content = self._content(body)
        try:
            answer = await self._sessions().exchange("POST", _PATH.format(document), content, self._timeout)
        except EngineError as error:
            self._report_to_circuit(error)
            raise
        return self._document(document, content, answer)

    async def adirectory(self) -> Mapping[str, Any]:
        """Return OPA's data `directory`. The result is cached for ten seconds.

        Raises:
            EngineError: OPA does not answer, or the directory is malformed.
        """
        if time.monotonic() >= self._directory_ends:
            try:
                directory = parse_json(await self.aevaluate(_NOTHING, "directory"))
            except UndefinedDocumentError:
                directory = {}
            for _, message, hint in directory_faults(directory):
                raise AnswerInvalidError(f"{self._name}: {message}", hint=hint)
            self._directory, self._directory_ends = directory, time.monotonic() + _DIRECTORY_SECONDS
        return self._directory

    async def ahealthy(self) -> bool:
        """Return whether all bundles and plugins of OPA are ready (`GET /health?bundles&plugins`)."""
        async with self._server() as server:
            return bool(await server.check_health({"bundles": "true", "plugins": "true"}))

    async def astatus(self) -> dict[str, Any]:
        """Return the status of OPA, as `pdp opa status --json` prints it.

        Raises:
            EngineError: OPA does not answer.
        """
        content, decides_by, problems = self._content(_NOTHING), None, []
        answer = await self._sessions().exchange("POST", _PATH.format(DECISION), content, self._timeout)
        try:
            decision = parse_answer(self._document(DECISION, content, answer), _NOTHING)
            decides_by = {"revision": decision.bundle_revision, "release": decision.release}
        except EngineError as error:
            if not _provenance_of(answer):
                raise
            problems = [error.message]
        async with self._server() as server:
            status = await server.status(_provenance_of(answer))
        bad = ", ".join(part for part, healthy in status["health"].items() if not healthy)
        problems += [f"{self._name} is not healthy: {bad}"] if bad else []
        return {"url": self._client.address.url, "problems": problems, "decides_by": decides_by, **status}

    def _server(self) -> ServerClient:
        from pdp.engine.opa.server import ServerClient  # noqa: PLC0415 - opa-python-client takes 0.2 s to import

        return ServerClient(self._client, self._timeout)

    def close(self) -> None:
        """Close all connections to OPA. Later decisions are a DENY `engine.unavailable`."""
        self._client.close()
        if self._tasks is not None and os.getpid() == self._process:
            self._tasks.close()

    async def aclose(self) -> None:
        """Async variant of `close`, for a running event loop."""
        self.close()
        if self._tasks is not None:
            await self._tasks.aclose()

    def _sessions(self) -> Sessions:
        self._client.check_usable()
        if self._tasks is None:
            try:
                from pdp.engine.opa.aio import Sessions  # noqa: PLC0415 - aiohttp takes 0.2 s to import
            except MissingExtraError as error:
                raise EngineError(error.message) from error
            self._tasks = Sessions(self._client)
        return self._tasks

    def _content(self, body: bytes) -> bytes:
        if len(body) > MAX_BYTES:
            raise RequestRefusedError(f"the request has {len(body)} bytes, but at most {MAX_BYTES} are allowed")
        # The body is inserted between `{"input":` and `}`, so it must be valid JSON, which cannot close the outer
        # brace.
        try:
            orjson.loads(body)
        except ValueError as error:
            raise RequestRefusedError(f"the request is not JSON: {error}") from error
        if not self._circuit.admits():
            raise EngineError(
                f"{self._circuit.reason}; the engine does not ask OPA again until the pause ends",
                hint="check that OPA runs and that the URL is right",
            )
        return b'{"input":%b}' % body

    # A failing policy does not start a pause, because otherwise one caller's requests could block all decisions.
    def _report_to_circuit(self, error: EngineError) -> None:
        if isinstance(error, AnswerInvalidError):
            self._circuit.succeeded()
        else:
            self._circuit.failed(error.message)

    def _document(self, document: str, content: bytes, answer: Answer) -> bytes:
        if answer.status != _OK:
            raise self._status_error(answer)
        try:
            envelope = orjson.loads(answer.body)
            # If orjson writes the parsed answer with the same bytes, as it usually does for OPA's answers, no key is a
            # duplicate.
            is_sure = orjson.dumps(envelope) == answer.body.rstrip(b"\n") or has_unique_keys(answer.body)
        except ValueError as error:
            raise self._unexpected_answer("something that is not JSON", answer) from error
        # If there are errors, warnings or unknown members beside the result, the result may be incomplete.
        members = _MEMBERS if content != _NULL else _MEMBERS | {"warning"}
        if not is_sure or type(envelope) is not dict or not envelope.keys() <= members:
            raise self._unexpected_answer("something that is not in OPA's format", answer)
        provenance = envelope.get("provenance")
        stated = provenance.get("version") if type(provenance) is dict else None
        self.opa_version = stated if type(stated) is str else None
        fault = version_fault(self.opa_version, accept_unknown=self._accept_unknown)
        if fault is not None:
            refused = EngineError(f"{self._name} {fault}")
            self._circuit.failed(refused.message)
            raise refused
        self._circuit.succeeded()
        if "result" not in envelope:
            raise UndefinedDocumentError(
                f"{self._name} has no document {document}", hint="load the bundle into OPA, and check OPA's log"
            )
        try:
            return canonical(envelope["result"])
        except JsonValueError as error:
            raise AnswerInvalidError(f"{self._name} answered something that is not plain JSON: {error}") from error

    def _unexpected_answer(self, fault: str, answer: Answer) -> AnswerInvalidError:
        self._circuit.succeeded()
        return AnswerInvalidError(
            f"{self._name} answered {fault}: {_excerpt(answer.body)}", hint="check that OPA listens at this URL"
        )

    def _status_error(self, answer: Answer) -> EngineError:
        shown = f"({answer.status}): {_message(answer.body)}"
        if answer.status in _NOT_READY:
            error = EngineError(f"{self._name} is not ready {shown}", hint="check its log")
            self._circuit.failed(error.message)
            return error
        self._circuit.succeeded()
        if answer.status in _REFUSED:
            return EngineError(
                f"{self._name} refused the request {shown}",
                hint="check the token, and that OPA's policy system.authz allows the request",
            )
        return AnswerInvalidError(
            f"{self._name} made no decision {shown}",
            hint="check that OPA listens at this URL, and the policy at the location that the message names",
        )


def _provenance_of(answer: Answer) -> dict[str, Any]:
    try:
        provenance = orjson.loads(answer.body)["provenance"]
    except (ValueError, TypeError, KeyError):
        return {}
    return provenance if isinstance(provenance, dict) else {}


def _message(body: bytes) -> str:
    """Return the reason that OPA reports: its first error with the location in the policy, or else its message."""
    try:
        error = orjson.loads(body)
        for cause in error.get("errors") or ():
            place = cause.get("location") or {}
            at = f"{place['file']}:{place['row']}: " if place.get("file") else ""
            return _one_line(f"{at}{cause['message']}")
        return _one_line(str(error["message"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return _excerpt(body)


def _excerpt(body: bytes) -> str:
    return repr(_one_line(body[:_SHOWN].decode(errors="replace"))) if body else "nothing"


def _one_line(text: str) -> str:
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
