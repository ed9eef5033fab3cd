"""The HTTP application: its middleware, error answers, start and end."""

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

from pdp.approvals.approvals import ApprovalRefusedError
from pdp.decision import new_id
from pdp.errors import AuditError, EngineError, PdpError, StoreError, UsageError
from pdp.service.approvals.routes import refused
from pdp.service.approvals.sweep import background
from pdp.service.errors import HttpError, invalid
from pdp.service.openapi import ROUTES, TITLE
from pdp.service.settings import ServiceSettings
from pdp.service.state import Service
from pdp.service.telemetry import request_ended, request_span

_log = logging.getLogger("pdp.service")

_REQUEST_ID: Final = re.compile(rb"[!-~]{1,256}")
_STATUS: Final = {"calls.unknown": 404, "calls.conflict": 409}  # of errors of our own, by their codes
_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
_CSP: Final = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")


def create_app(settings: ServiceSettings) -> FastAPI:
    """Return the application of one process. It opens what it needs when it starts, and closes it when it ends.

    `app.state.service` is the `Service`, from the start on.
    """
    app = FastAPI(
        title=TITLE,
        lifespan=_lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},  # see `telemetry`
    )
    app.state.settings = settings
    app.add_middleware(RequestMiddleware)
    for kind in (PdpError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _answer)
    app.router.routes.extend(ROUTES)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[dict[str, object]]:
    parent, loop = parent_process(), asyncio.get_running_loop()
    if parent is not None:  # a worker without its parent would hold the port, and no one could end it

        def end() -> None:
            loop.remove_reader(parent.sentinel)
            signal.raise_signal(signal.SIGTERM)

        loop.add_reader(parent.sentinel, end)
    with ExitStack() as owned:
        app.state.service = service = Service(app.state.settings, owned)
        async with background(service):
            gc.collect()
            gc.freeze()  # these objects stay until the end, so no collection has to look at them again
            yield {"ending": service.ending}


class RequestMiddleware:
    """Around every request: its id, its span, its line in the log, the headers of its answer.

    The id is in `scope["state"]["request_id"]`. An exception that no handler knows is a 500, and in the log.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
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
                csp = () if any(name == _CSP[0] for name, _ in own) else (_CSP,)
                message["headers"] = [*own, (b"x-request-id", request_id), *_HEADERS, *csp]
            await send(message)

        tracer = scope["app"].state.service.tracer
        with nullcontext() if tracer is None else request_span(scope, tracer) as span:
            try:
                await self._app(scope, receive, sending)
            except ClientDisconnect:
                pass  # no client is left to answer
            except Exception as error:
                if status is not None:
                    raise  # half an answer: the connection is closed
                answer = await _answer(Request(scope, receive), error)
                await answer(scope, receive, sending)
            finally:
                if status != HTTPStatus.METHOD_NOT_ALLOWED:
                    state["route"] = getattr(scope.get("route"), "path", "none")
                request_ended(scope, status, time.perf_counter() - began, span)


async def _answer(request: Request, error: Exception) -> Response:
    """Return the answer to an error: 400 for bad input, 503 if an engine or store is down, 500 for a fault."""
    if isinstance(error, RequestValidationError):
        error = invalid(error.errors())
    elif isinstance(error, ApprovalRefusedError):
        error = refused(error)
    elif isinstance(error, StoreError | AuditError | EngineError):
        _log.error("a request could not be served: %s: %s", error.code, error)
        error = HttpError(503, "a store or engine cannot be used", hint="try again", headers={"Retry-After": "1"})
    elif isinstance(error, PdpError) and not isinstance(error, HttpError):
        status = 400 if isinstance(error, UsageError) else _STATUS.get(error.code)
        error = error if status is None else HttpError(status, error.message, hint=error.hint)
    elif isinstance(error, HTTPException) and not isinstance(error, HttpError):
        allowed = {"Allow": _methods(request)} if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED else {}
        error = HttpError(error.status_code, error.detail, headers=allowed)
    if not isinstance(error, HttpError):
        _log.error("a request failed, which is a fault of the service", exc_info=error)
        error = HttpError(500, "the service failed; its log says how")
    is_authzen = request.scope["path"].startswith(("/access/", "/.well-known/"))
    body: Any = error.message if is_authzen else error.as_json()
    return Response(orjson.dumps(body), error.status, error.headers, "application/json")


def _methods(request: Request) -> str:
    """Return the methods of a path, of all its routes."""
    matching = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return ", ".join(sorted({method for route in matching for method in getattr(route, "methods", ())}))
