"""The HTTP application: routes, error answers, start and end."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import uuid
from contextlib import ExitStack, asynccontextmanager
from multiprocessing import parent_process
from typing import TYPE_CHECKING, Any, Final

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from pdp import __version__
from pdp.errors import AuditError, EngineError, PdpError, StoreError, UsageError
from pdp.execution.telemetry import SCOPE
from pdp.service import health, openapi, proposals, tools
from pdp.service.approvals import inbox
from pdp.service.approvals import routes as approvals
from pdp.service.approvals.feed import ApprovalFeed
from pdp.service.approvals.sweep import background
from pdp.service.authzen import routes as authzen
from pdp.service.requests import HttpError
from pdp.service.security import routes as token_routes
from pdp.service.security.limits import RateLimiter
from pdp.service.security.oidc import OidcAuthenticator
from pdp.service.security.tokens import COOKIE, open_tokens
from pdp.service.telemetry import request_observed, tracer_provider
from pdp.service.tenant import Tenant, open_tenant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from pdp.service.security.principal import Authenticator, Principal
    from pdp.service.settings import ServiceSettings

_log = logging.getLogger("pdp.service")

_REQUEST_ID: Final = re.compile(rb"[!-~]{1,256}")
_STATUS: Final = {"calls.unknown": 404, "calls.conflict": 409}  # of errors of our own, by their codes
_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)


class Service:
    """What all requests share: settings, tenants, who knows tokens, the limits."""

    def __init__(self, settings: ServiceSettings, owned: ExitStack) -> None:
        self.settings = settings
        provider = tracer_provider(settings, owned)
        self.tracer = provider and provider.get_tracer(SCOPE)
        self.tenants: dict[str, Tenant] = {
            name: open_tenant(name, tenant, owned, provider) for name, tenant in settings.tenants.items()
        }
        _check_apart(self.tenants)
        self.readiness = health.Readiness(self.tenants)
        self.ending = asyncio.Event()  # set when the process is told to end: what waits answers now
        self.feeds = {
            name: ApprovalFeed(tenant.stream, settings.limits.waiting, self.ending)
            for name, tenant in self.tenants.items()
        }
        self.limiter = RateLimiter(settings.limits.requests_per_second, settings.limits.burst)
        self.tokens = open_tokens(settings, owned)
        self.authenticators: list[Authenticator] = [self.tokens, *map(OidcAuthenticator, settings.oidc)]

    async def authenticated(self, request: Request) -> Principal:
        """Return the holder of the request's token; HttpError 401 without a valid one, 503 where nobody can say."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        by_cookie = scheme.lower() != "bearer" or not token.strip()
        if by_cookie:
            token = request.cookies.get(COOKIE, "") if request.method == "GET" else ""
        for authenticator in self.authenticators if token else ():
            principal = await authenticator.principal(token.strip())
            if principal is not None and principal.cookie is by_cookie and principal.tenant in self.tenants:
                return principal
        problem = ' error="invalid_token"' if token else ""
        raise HttpError(
            401,
            "the token is not valid, or no longer" if token else "no access token",
            hint="send Authorization: Bearer TOKEN",
            headers={"WWW-Authenticate": f"Bearer{problem}"},
        )


def _check_apart(tenants: dict[str, Tenant]) -> None:
    """Raise UsageError where two tenants have one database, however its URL is written: it has one secret."""
    names: dict[bytes, str] = {}
    for name, tenant in tenants.items():
        other = names.setdefault(tenant.stores.ledger.key, name)
        if other != name:
            raise UsageError(f"the tenants {other} and {name} have the same store", hint="give each its own database")


def create_app(settings: ServiceSettings) -> FastAPI:
    """Return the application of one process. It opens what it needs when it starts, and closes it when it ends."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, object]]:
        parent, loop = parent_process(), asyncio.get_running_loop()
        if parent is not None:  # a worker without it would hold the port, and nobody would end it

            def end() -> None:
                loop.remove_reader(parent.sentinel)
                signal.raise_signal(signal.SIGTERM)

            loop.add_reader(parent.sentinel, end)
        with ExitStack() as owned:
            service = app.state.service = Service(settings, owned)
            async with background(service):
                yield {"ending": service.ending}

    app = FastAPI(
        title="Policy decisions for tool calls",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    # A request tries one route after the other: what is asked most comes first.
    for module in (authzen, health, openapi, tools, proposals, inbox, approvals, token_routes):
        app.router.routes.extend(module.router.routes)
    app.state.paths = {route.endpoint: route.path for route in app.router.routes if isinstance(route, Route)}
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(PdpError, _pdp_error)
    app.add_middleware(Envelope)
    return app


def _answer(request: Request, error: HttpError) -> Response:
    authzen = request.url.path.startswith(("/access/", "/.well-known/"))
    body: Any = error.message if authzen else error.as_json()
    return JSONResponse(body, status_code=error.status, headers=error.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer what Starlette refuses: a path that is not there, another method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    status = error.status_code if error.status_code in (404, 405) else 400
    headers = dict(error.headers or {})
    if "Allow" in headers:
        # Starlette names the methods of one route alone, and a path may have several.
        routes = [
            each for each in iter_route_contexts(request.app.routes) if each.matches(request.scope)[0] != Match.NONE
        ]
        headers["Allow"] = ", ".join(sorted({method for each in routes for method in each.methods or ()}))
    return _answer(request, HttpError(status, str(error.detail), headers=headers))


async def _pdp_error(request: Request, error: Exception) -> Response:
    """Answer an error of our own: bad input is 400, what is down is 503."""
    if isinstance(error, HttpError):
        return _answer(request, error)
    if isinstance(error, StoreError | AuditError | EngineError):
        _log.error("a request could not be served: %s: %s", error.code, error)
        down = HttpError(503, "a store or engine cannot be used", hint="try again", headers={"Retry-After": "1"})
        return _answer(request, down)
    assert isinstance(error, PdpError)  # noqa: S101 - registered for it
    status = 400 if isinstance(error, UsageError) else _STATUS.get(error.code)
    if status is None:
        raise error
    return _answer(request, HttpError(status, error.message, hint=error.hint))


class Envelope:
    """ASGI middleware around every request: its id, what is counted and logged of it, the headers of its answer.

    The id is in `scope["state"]["request_id"]`. What fails without a reason is a 500, and in the log.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex.encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode()
        with request_observed(scope, scope["app"].state.service.tracer) as answer:

            async def sending(message: Message) -> None:
                if message["type"] == "http.response.start":
                    answer["status"] = message["status"]
                    message["headers"] = [*message["headers"], (b"x-request-id", request_id), *_HEADERS]
                await send(message)

            try:
                await self._app(scope, receive, sending)
            except ClientDisconnect:
                pass  # nobody is there to be answered
            except Exception as error:
                if answer["status"] is not None:
                    raise  # half an answer: the connection is closed
                _log.error("a request failed, which is a fault of the service", exc_info=error)
                failed = _answer(Request(scope), HttpError(500, "the service failed; its log says how"))
                await failed(scope, receive, sending)
