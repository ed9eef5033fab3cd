"""The engine beside the process: a running OPA, asked over HTTP (OPA's Data API).

Whatever is not a decision is an error with a code of its own, and so a DENY:

    engine.unavailable       no connection; refused (401, 403), not ready (429, 502, 503, 504); circuit open; closed;
                             an OPA whose version may not decide (`versions`)
    engine.timeout           no whole answer in time
    engine.answer_invalid    any other status, no `result`, unknown members beside it, a key that stands twice,
                             not JSON, half an answer, a policy that fails
    decision.request_invalid a request that is too large or not JSON; OPA is not asked
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

TIMEOUT: Final = 1.0  # default time for one decision, in seconds
TOKEN_VARIABLE: Final = "PDP_OPA_TOKEN"  # noqa: S105 - the variable with the token for an OPA that runs already
CONNECT_TIMEOUT: Final = 0.5  # default time to wait for a connection, in seconds
CONNECTIONS: Final = 64  # default limit of the connections of an event loop, and of idle ones that threads left open
FAILURES: Final = 5  # default number of failures in a row that open the circuit
PAUSE: Final = 1.0  # default time between two trials while the circuit is open, in seconds

# Strict, as otherwise a builtin that fails is undefined, and a deny that leans on it is lost (OPA's default). With
# `provenance` each answer has the version of the OPA that gave it: another one may listen there since the last request.
_PATH: Final = "/v1/data/{}?strict-builtin-errors=true&provenance=true"
# As RFC 6750 writes it.
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_OK: Final = 200
_REFUSED: Final = frozenset((401, 403))
_NOT_READY: Final = frozenset((429, 502, 503, 504))
_SHOWN: Final = 200
_NOTHING: Final = b"{}"
_DIRECTORY_SECONDS: Final = 10
_MEMBERS: Final = frozenset(("result", "provenance", "decision_id"))  # the last where OPA logs decisions
_NULL: Final = b'{"input":null}'  # OPA warns that the input is missing, and decides


class Circuit:
    """A circuit breaker: spares callers the time-out of an OPA that is down. Safe for threads and tasks.

    It opens when `failures` calls in a row have failed, and then admits one trial per `pause` seconds until one
    succeeds. `reason` is why the last failed call failed. A call that is cancelled need not report.
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
        """Return whether a call may be made now; while the circuit is open, True once per pause."""
        if self._failed < self._limit:
            return True
        with self._lock:
            if self._failed >= self._limit and self._clock() < self._next_trial:
                return False
            self._next_trial = self._clock() + self._pause
            return True

    def succeeded(self) -> None:
        """Note that a call was answered: the circuit is closed."""
        if self._failed:
            with self._lock:
                self._failed = 0

    def failed(self, reason: str) -> None:
        """Note that a call failed, and why."""
        with self._lock:
            self._failed += 1
            self.reason = reason
            if self._failed >= self._limit:
                self._next_trial = self._clock() + self._pause


class SidecarEngine(Engine):
    """Decides by asking an OPA that runs beside the process. Safe for threads, tasks, and one event loop after another.

    It belongs to the process that made it: in a forked child every decision is a DENY `engine.unavailable`.

    Args:
        url: `http://HOST:PORT`, `https://HOST:PORT` or `unix:///PATH`.
        client: in its place, an `OpaClient` or `AsyncOpaClient` of opa-python-client. The engine reads its address,
            headers, token and certificates once, opens its own connections, and never closes the client.
        timeout: seconds for one decision, connecting and a second try included.
        connect_timeout: seconds to wait for a connection.
        token: sent as `Authorization: Bearer`, for OPA's `--authentication=token`. Shown nowhere.
        tls: for `https`, instead of the system's certificates; it may have a client certificate, for OPA's
            `--authentication=tls`.
        connections: most connections that the tasks of one event loop have at a time; further ones wait. Threads have
            one each while they ask, and at most as many stay open between requests.
        failures: after how many failures in a row OPA is left alone,
        pause: and for how many seconds, before one decision tries again. The others are DENY `engine.unavailable` at
            once meanwhile.
        accept_unknown_opa: let an OPA decide that does not say which release it is. A version that is known to be bad
            never decides.

    UsageError: an argument that cannot be used.
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
                raise UsageError(f"{name}: {count!r:.40} is out of range", hint="at least 1")
        if token is not None and not _TOKEN.fullmatch(token):  # not shown
            raise UsageError(
                "OPA's token has characters that a bearer token must not have",
                hint="letters, digits and -._~+/ with = at its end; look for blanks, line feeds and quotes",
            )
        if (url is None) == (client is None) or (client is not None and token is not None):
            hint = "give a url, with its token, or a client"
            raise UsageError("the engine needs a url or a client, and not both", hint=hint)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        if client is not None:
            from pdp.engine.opa.server import settings_of  # noqa: PLC0415 - opa-python-client takes 0.2 s

            url, headers, own = settings_of(client)
            tls = tls or own
        address = parse_address(cast("str", url))
        if tls is not None and not address.tls:
            raise UsageError("tls is given, and OPA's address is not https", hint="give https://HOST:PORT")
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
        self._directory: Mapping[str, Any] = {}
        self._directory_ends = 0.0
        self._circuit = Circuit(failures=failures, pause=pause)

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Evaluate a document, as `Engine.evaluate` does; EngineError by the module's table."""
        content = self._content(body)
        try:
            answer = self._client.exchange("POST", _PATH.format(document), content, self._timeout)
        except EngineError as error:
            self._note(error)
            raise
        return self._document(document, content, answer)

    async def aevaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Async variant of `evaluate`."""
        content = self._content(body)
        try:
            answer = await self._sessions().exchange("POST", _PATH.format(document), content, self._timeout)
        except EngineError as error:
            self._note(error)
            raise
        return self._document(document, content, answer)

    async def adirectory(self) -> Mapping[str, Any]:
        """Return OPA's `directory`, as it was at most ten seconds ago; EngineError: no answer, or a mistyped one."""
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
        """Return whether OPA says that its bundles are activated and its plugins run: `GET /health?bundles&plugins`."""
        async with self._server() as server:
            return bool(await server.check_health({"bundles": "true", "plugins": "true"}))

    async def astatus(self) -> dict[str, Any]:
        """Return what OPA says about itself, as `pdp opa status --json` prints it; EngineError: no OPA answers."""
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
        from pdp.engine.opa.server import ServerClient  # noqa: PLC0415 - opa-python-client takes 0.2 s

        return ServerClient(self._client, self._timeout)

    def close(self) -> None:
        """Close all connections; deciding afterwards is a DENY `engine.unavailable`."""
        self._client.close()
        if self._tasks is not None and os.getpid() == self._process:
            self._tasks.close()

    async def aclose(self) -> None:
        """Async variant of `close`, for use in a running event loop."""
        self.close()
        if self._tasks is not None:
            await self._tasks.aclose()

    def _sessions(self) -> Sessions:
        self._client.check_usable()
        if self._tasks is None:
            try:
                from pdp.engine.opa.aio import Sessions  # noqa: PLC0415 - aiohttp takes 0.2 s
            except MissingExtraError as error:
                raise EngineError(error.message) from error
            self._tasks = Sessions(self._client)
        return self._tasks

    def _content(self, body: bytes) -> bytes:
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
        return b'{"input":%b}' % body

    # A policy that fails on one request does not open the circuit: else its sender could make all decisions fail.
    def _note(self, error: EngineError) -> None:
        if isinstance(error, AnswerInvalidError):
            self._circuit.succeeded()
        else:
            self._circuit.failed(error.message)

    def _document(self, document: str, content: bytes, answer: Answer) -> bytes:
        if answer.status != _OK:
            raise self._refusal(answer)
        try:
            envelope = orjson.loads(answer.body)
            # OPA's text is nearly always the one form that orjson writes, and then no key stands twice in it.
            is_sure = orjson.dumps(envelope) == answer.body.rstrip(b"\n") or has_unique_keys(answer.body)
        except ValueError as error:
            raise self._not_opa("something that is not JSON", answer) from error
        # Errors, warnings and a code beside a result say that it is not the whole truth; what is unknown may as well.
        members = _MEMBERS if content != _NULL else _MEMBERS | {"warning"}
        if not is_sure or type(envelope) is not dict or not envelope.keys() <= members:
            raise self._not_opa("something that is no answer of OPA's", answer)
        provenance = envelope.get("provenance")
        stated = provenance.get("version") if type(provenance) is dict else None
        fault = version_fault(stated if type(stated) is str else None, accept_unknown=self._accept_unknown)
        if fault is not None:
            refused = EngineError(f"{self._name} {fault}")
            self._circuit.failed(refused.message)
            raise refused
        self._circuit.succeeded()
        if "result" not in envelope:
            raise UndefinedDocumentError(
                f"{self._name} has no document {document}", hint="load the bundle into it, and look into its log"
            )
        try:
            return canonical(envelope["result"])
        except JsonValueError as error:
            raise AnswerInvalidError(f"{self._name} answered something that is not plain JSON: {error}") from error

    def _not_opa(self, fault: str, answer: Answer) -> AnswerInvalidError:
        self._circuit.succeeded()
        return AnswerInvalidError(
            f"{self._name} answered {fault}: {_shown(answer.body)}", hint="check that OPA itself listens there"
        )

    def _refusal(self, answer: Answer) -> EngineError:
        shown = f"({answer.status}): {_message(answer.body)}"
        if answer.status in _NOT_READY:
            error = EngineError(f"{self._name} is not ready {shown}", hint="look into its log")
            self._circuit.failed(error.message)
            return error
        self._circuit.succeeded()
        if answer.status in _REFUSED:
            return EngineError(
                f"{self._name} refused the request {shown}",
                hint="check the token, and that OPA's policy system.authz admits the request",
            )
        return AnswerInvalidError(
            f"{self._name} made no decision {shown}",
            hint="check the policy at the place that is named, if any, and that OPA itself listens there",
        )


def _provenance_of(answer: Answer) -> dict[str, Any]:
    try:
        provenance = orjson.loads(answer.body)["provenance"]
    except (ValueError, TypeError, KeyError):
        return {}
    return provenance if isinstance(provenance, dict) else {}


def _message(body: bytes) -> str:
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
