"""The HTTP application: what is around every request, error answers, start and end."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import signal
import time
from contextlib import ExitStack, asynccontextmanager, nullcontext
from multiprocessing import parent_process
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Router

from pdp.decision import new_id
from pdp.errors import AuditError, EngineError, PdpError, StoreError, UsageError
from pdp.execution.telemetry import SCOPE
from pdp.service import health, hooks, openapi, proposals, tools
from pdp.service.approvals import inbox
from pdp.service.approvals import routes as approvals
from pdp.service.approvals.feed import ApprovalFeed
from pdp.service.approvals.sweep import background
from pdp.service.authzen import routes as authzen
from pdp.service.requests import HttpError, header
from pdp.service.routing import Routes
from pdp.service.security import routes as token_routes
from pdp.service.security.limits import RateLimiter
from pdp.service.security.oidc import OidcAuthenticator
from pdp.service.security.tokens import COOKIE, open_tokens
from pdp.service.telemetry import request_ended, request_span, tracer_provider
from pdp.service.tenant import Tenant, open_tenant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Message, Receive, Scope, Send

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
        self.tracer = None if provider is None else provider.get_tracer(SCOPE)
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
        scheme, _, token = header(request, b"authorization").partition(" ")
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


class HttpApp:
    """The ASGI application of one process, which opens what it needs when it starts, and closes it when it ends.

    Around every request: its id, in `scope["state"]["request_id"]`, what is counted and logged of it, the headers of
    its answer. What fails without a reason is a 500, and in the log.

    Attributes:
        routes: all endpoints.
        service: what they share, from the start on.
    """

    service: Service

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        parts = (authzen, health, openapi, tools, proposals, hooks, inbox, approvals, token_routes)
        self.routes = Routes(*(part.routes for part in parts))
        self._others = Router(lifespan=lambda _: self.lifespan())  # what is no request

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[dict[str, object]]:
        """Start and end, in a process of one or several."""
        parent, loop = parent_process(), asyncio.get_running_loop()
        if parent is not None:  # a worker without it would hold the port, and nobody would end it

            def end() -> None:
                loop.remove_reader(parent.sentinel)
                signal.raise_signal(signal.SIGTERM)

            loop.add_reader(parent.sentinel, end)
        with ExitStack() as owned:
            self.service = Service(self._settings, owned)
            async with background(self.service):
                gc.collect()
                gc.freeze()  # what is there stays until the end: no collection has to walk through it again
                yield {"ending": self.service.ending}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._others(scope, receive, send)
            return
        began, status = time.perf_counter(), None
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given if _REQUEST_ID.fullmatch(given) else new_id().encode()
        scope["app"] = self
        scope.setdefault("state", {}).update(request_id=request_id.decode(), route="none", principal=None)

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id), *_HEADERS]
            await send(message)

        tracer = self.service.tracer
        with nullcontext() if tracer is None else request_span(scope, tracer) as span:
            try:
                await self._answer(Request(scope, receive, send), sending)
            except ClientDisconnect:
                pass  # nobody is there to be answered
            except Exception as error:
                if status is not None:
                    raise  # half an answer: the connection is closed
                await _failure(scope, error)(scope, receive, sending)
            finally:
                request_ended(scope, status, time.perf_counter() - began, span)

    async def _answer(self, request: Request, send: Send) -> None:
        scope = request.scope
        scope["state"]["route"], endpoint, parameters = self.routes.find(scope["method"], scope["path"])
        response = await endpoint(request, **parameters)
        await response(scope, request.receive, send)


def _failure(scope: Scope, error: Exception) -> Response:
    """Return the answer to an error: of our own bad input is 400, what is down 503, and what nobody expects 500."""
    if isinstance(error, StoreError | AuditError | EngineError):
        _log.error("a request could not be served: %s: %s", error.code, error)
        error = HttpError(503, "a store or engine cannot be used", hint="try again", headers={"Retry-After": "1"})
    elif isinstance(error, PdpError) and not isinstance(error, HttpError):
        status = 400 if isinstance(error, UsageError) else _STATUS.get(error.code)
        error = error if status is None else HttpError(status, error.message, hint=error.hint)
    if not isinstance(error, HttpError):
        _log.error("a request failed, which is a fault of the service", exc_info=error)
        error = HttpError(500, "the service failed; its log says how")
    authzen = scope["path"].startswith(("/access/", "/.well-known/"))
    body: Any = error.message if authzen else error.as_json()
    return JSONResponse(body, status_code=error.status, headers=error.headers)
