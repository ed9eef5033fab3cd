"""The HTTP application: middleware, error answers, startup and shutdown."""

import asyncio
import gc
import logging
import re
import signal
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, nullcontext
from http import HTTPStatus
from multiprocessing import parent_process
from typing import Any, Final

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pdp.approvals.people import ApprovalRefusedError
from pdp.decision import new_id
from pdp.errors import AuditError, EngineError, PdpError, StoreError, UsageError
from pdp.service.approvals.routes import refused
from pdp.service.approvals.sweep import background
from pdp.service.console.page import PREFIX, error_page
from pdp.service.console.sign_in.link import OneTimeLink
from pdp.service.errors import HttpError, invalid
from pdp.service.metrics import Metrics
from pdp.service.openapi import ROUTES, TITLE
from pdp.service.settings import ServiceSettings
from pdp.service.state import Service
from pdp.service.telemetry import request_ended, request_span

_log = logging.getLogger("pdp.service")

_REQUEST_ID: Final = re.compile(rb"[!-~]{1,256}")
STATUS: Final = {
    "calls.unknown": 404,
    "calls.conflict": 409,
    "approvals.grant_refused": 409,
    "approvals.grant_unknown": 404,
}  # The HTTP status that is returned for each error code.
_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
_CSP: Final = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")


def create_app(settings: ServiceSettings, link: OneTimeLink | None = None) -> FastAPI:
    """Return the HTTP application of one process. At startup, it stores the `Service` in `app.state.service`.

    The console accepts `link`, whose session ends with the application.
    """
    app = FastAPI(
        title=TITLE,
        lifespan=_lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # The telemetry of FastAPI is off, because `RequestMiddleware` records requests.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.settings, app.state.link = settings, link
    app.add_middleware(RequestMiddleware)
    for kind in (PdpError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _answer)
    app.router.routes.extend(ROUTES)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[dict[str, object]]:
    parent, loop = parent_process(), asyncio.get_running_loop()
    # The worker ends with its parent process, because it would otherwise keep the port and nothing could stop it.
    if parent is not None:

        def end() -> None:
            loop.remove_reader(parent.sentinel)
            signal.raise_signal(signal.SIGTERM)

        loop.add_reader(parent.sentinel, end)
    with ExitStack() as owned:
        app.state.service = service = Service(app.state.settings, owned)
        app.state.metrics = Metrics(service)
        async with background(service):
            gc.collect()
            # The garbage collector skips all objects that exist at this point, because they are never freed.
            gc.freeze()
            yield {"ending": service.ending}
            if app.state.link is not None:
                await app.state.link.end(service)


class RequestMiddleware:
    """Gives each request an id in `scope["state"]["request_id"]`, a trace span, a log line and security headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one HTTP request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), None
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given if _REQUEST_ID.fullmatch(given) else new_id().encode()
        state = scope.setdefault("state", {})
        state.update(request_id=request_id.decode(), route="none", principal=None)

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status, own = message["status"], message["headers"]
                names = {name for name, _ in own}
                missing = [header for header in (*_HEADERS, _CSP) if header[0] not in names]
                message["headers"] = [*own, (b"x-request-id", request_id), *missing]
            await send(message)

        tracer = scope["app"].state.service.tracer
        with nullcontext() if tracer is None else request_span(scope, tracer) as span:
            try:
                await self._app(scope, receive, sending)
            except ClientDisconnect:
                pass  # The client has disconnected, so no answer is sent.
            except Exception as error:
                if status is not None:
                    raise  # Part of the answer was already sent, so the connection is closed.
                answer = await _answer(Request(scope, receive), error)
                await answer(scope, receive, sending)
            finally:
                if status != HTTPStatus.METHOD_NOT_ALLOWED:
                    state["route"] = getattr(scope.get("route"), "path", "none")
                request_ended(scope, status, time.perf_counter() - began, span)


async def _answer(request: Request, error: Exception) -> Response:
    """Return the HTTP response for an error: 400 for bad input, 503 if an engine or store is down, 500 for a bug."""
    is_invalid = isinstance(error, RequestValidationError)
    if isinstance(error, RequestValidationError):
        error = invalid(error.errors())
    elif isinstance(error, ApprovalRefusedError):
        error = refused(error)
    elif isinstance(error, StoreError | AuditError | EngineError):
        _log.error("request failed because a store or engine is unavailable: %s: %s", error.code, error)
        error = HttpError(503, "a store or engine is unavailable", hint="try again", headers={"Retry-After": "1"})
    elif isinstance(error, PdpError) and not isinstance(error, HttpError):
        status = 400 if isinstance(error, UsageError) else STATUS.get(error.code)
        error = error if status is None else HttpError(status, error.message, hint=error.hint)
    elif isinstance(error, HTTPException) and not isinstance(error, HttpError):
        allowed = {"Allow": _methods(request)} if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED else {}
        error = HttpError(error.status_code, error.detail, headers=allowed)
    if not isinstance(error, HttpError):
        _log.error("request failed with an unexpected error", exc_info=error)
        error = HttpError(500, "internal error; see the log of the service")
    if request.scope["path"].startswith(PREFIX):
        if is_invalid:
            error.hint = None  # It names the document of the API.
        return error_page(request, error)
    is_authzen = request.scope["path"].startswith(("/access/", "/.well-known/"))
    body: Any = error.message if is_authzen else error.as_json()
    return Response(orjson.dumps(body), error.status, error.headers, "application/json")


def _methods(request: Request) -> str:
    matching = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return ", ".join(sorted({method for route in matching for method in getattr(route, "methods", ())}))
