"""Authenticates callers, reads request bodies within the limits, and defines the route classes."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from http import HTTPStatus
from inspect import Parameter, Signature
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute
from pydantic.alias_generators import to_camel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import request_response

from pdp.json import MAX_VALUES, JsonTooLargeError, JsonValueError, parse_json
from pdp.service.errors import HttpError
from pdp.service.security.principal import Scope
from pdp.service.settings import LimitSettings
from pdp.service.state import Caller, service_of

_LONGEST_LENGTH: Final = 20  # The maximum number of digits in the header Content-Length.


async def caller(request: Request, *scopes: Scope) -> Caller:
    """Authenticate the caller. If scopes are given, the token must have one of the scopes.

    Raises `HttpError` 401 (invalid token), 403 (scope is missing), 429 (rate limit) or 503 (token cannot be checked).
    """
    service = service_of(request)
    principal = await service.authenticated(request)
    request.scope["state"]["principal"] = principal  # The principal is stored for the request's log line.
    if scopes and principal.scopes.isdisjoint(scopes):
        needed = " or ".join(scopes)
        raise HttpError(
            403,
            f"the token lacks the scope {needed}",
            hint="ask an administrator for a token with this scope",
            headers={"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{needed}"'},
        )
    service.limiter.admit(principal)
    return Caller(principal, service.tenants[principal.tenant])


class Needs:
    """A FastAPI dependency: the caller of a route, whose token must have one of the given scopes."""

    def __init__(self, *scopes: Scope) -> None:
        self.scopes = scopes

    async def __call__(self, request: Request) -> Caller:
        """Return the caller that `ServiceRoute` authenticated before it parsed the request body."""
        caller_of_route: Caller = request.state.caller
        return caller_of_route


AnyHolder = Annotated[Caller, Depends(Needs())]
Proposer = Annotated[Caller, Depends(Needs(Scope.PROPOSE))]
Approver = Annotated[Caller, Depends(Needs(Scope.APPROVE))]
ApprovalReader = Annotated[Caller, Depends(Needs(Scope.APPROVE, Scope.PROPOSE))]
Auditor = Annotated[Caller, Depends(Needs(Scope.AUDIT))]
MetricsReader = Annotated[Caller, Depends(Needs(Scope.METRICS, Scope.AUDIT))]
Administrator = Annotated[Caller, Depends(Needs(Scope.ADMIN))]


class StrictRequest(Request):
    """A request whose body must be a JSON object. Raises `HttpError` 400 for other bodies, 408 or 413 above a limit."""

    async def body(self) -> bytes:
        """Return the whole body, which may be empty."""
        if not hasattr(self, "_body"):
            self._body = await read_body(self, service_of(self).settings.limits)
            kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
            if self._body and kind != "application/json":
                raise HttpError(400, "the body is not application/json", hint="send Content-Type: application/json")
        return self._body

    async def json(self) -> dict[str, Any]:
        """Return the JSON object in the body."""
        body = await self.body()
        try:
            # The number of values is limited, because reading many small values would delay all other requests.
            value = parse_json(body, most=MAX_VALUES)
        except JsonTooLargeError as error:
            raise HttpError(413, str(error), hint="send less data in one request") from None
        except JsonValueError as error:
            raise HttpError(400, str(error)) from None
        if not isinstance(value, dict):
            raise HttpError(400, "the body must be an object")
        return value


async def read_object(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body of a request that FastAPI does not parse. Raises as `StrictRequest` does."""
    return await StrictRequest(request.scope, request.receive).json()


class ServiceRoute(APIRoute):
    """A route that authenticates the caller before it reads the body, and accepts only strict JSON."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        options |= {"response_model_exclude_unset": True, "operation_id": to_camel(endpoint.__name__.lstrip("_"))}
        if options["status_code"] == HTTPStatus.NO_CONTENT:
            options["response_class"] = Response  # An answer without a body must have no Content-Type.
        super().__init__(path, endpoint, **options)
        stated = security(*self._needs.scopes, reads="GET" in (self.methods or ())) if self._needs else []
        self.openapi_extra = {"security": stated, **(self.openapi_extra or {})}

    @property
    def _needs(self) -> Needs | None:
        calls = (each.call for each in self.dependant.dependencies)
        return next((call for call in calls if isinstance(call, Needs)), None)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of the route's requests."""
        handle, needs = super().get_route_handler(), self._needs

        async def handler(request: Request) -> Response:
            request = StrictRequest(request.scope, request.receive)
            if needs is not None:
                request.state.caller = await caller(request, *needs.scopes)
            if self.dependant.query_params and len(request.query_params) < len(request.query_params.multi_items()):
                raise HttpError(400, "a query parameter is repeated", hint="send each parameter once")
            if self.body_field is not None:
                # The body is read here, because FastAPI would answer 400 to a client that has disconnected.
                await request.body()
            return await handle(request)

        return handler


def direct_endpoint(
    router: APIRouter, path: str, scope: Scope, takes: Any, gives: Any
) -> Callable[[Callable[[Request], Awaitable[Response]]], None]:
    """Register a fast endpoint that parses the request itself. `takes` and `gives` are the body types for OpenAPI."""

    def register(endpoint: Callable[[Request], Awaitable[Response]]) -> None:
        def documented() -> None: ...

        types = {"body": takes, **dict.fromkeys(re.findall(r"{(\w+)}", path), str)}
        parameters = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=each) for name, each in types.items()]
        vars(documented)["__signature__"] = Signature(parameters, return_annotation=gives)
        documented.__name__, documented.__doc__ = endpoint.__name__, endpoint.__doc__
        router.add_api_route(path, documented, methods=["POST"], openapi_extra={"security": security(scope)})
        cast("APIRoute", router.routes[-1]).app = request_response(endpoint)

    return register


def bounded_page(request: Request, limit: int | None) -> int:
    """Return the size of a page. Raise `HttpError` 400 if it exceeds the setting `limits.page`."""
    most = service_of(request).settings.limits.page
    if limit is not None and limit > most:
        raise HttpError(400, "limit is not valid", hint=f"use a number from 1 to {most}")
    return limit or most


def security(*scopes: Scope, reads: bool = False) -> list[dict[str, list[str]]]:
    """Return the OpenAPI `security` of a route. A token needs one of the scopes; a browser session can only read."""
    tokens = [{"token": [str(scope)]} for scope in scopes] or [{"token": list[str]()}]
    return [*tokens, {"cookie": []}] if reads and Scope.ADMIN not in scopes else tokens


async def read_body(request: Request, limits: LimitSettings) -> bytes:
    """Return the whole body, which may be empty. Raise `HttpError` 408 or 413 above a limit."""
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > _LONGEST_LENGTH or int(length) > limits.body_bytes:
        raise _too_long(limits.body_bytes)
    parts, size, more = [], 0, True
    try:
        async with asyncio.timeout(limits.body_seconds):
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                parts.append(message.get("body", b""))
                size, more = size + len(parts[-1]), message.get("more_body", False)
                if size > limits.body_bytes:
                    raise _too_long(limits.body_bytes)
    except TimeoutError:
        raise HttpError(408, f"the body took longer than {limits.body_seconds:g} s", hint="send it faster") from None
    return b"".join(parts)


def _too_long(most: int) -> HttpError:
    return HttpError(413, f"the body is longer than {most} bytes", hint="send less data in one request")
