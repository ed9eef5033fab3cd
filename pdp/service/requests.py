"""Reading a request: who calls and whether they may, the bounded body; errors with their status; the routes' class."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

from fastapi import Depends
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pdp.errors import PdpError
from pdp.json import MAX_VALUES, JsonTooLargeError, JsonValueError, parse_json
from pdp.service.security.principal import Principal, Scope
from pdp.service.settings import LimitSettings

if TYPE_CHECKING:
    from pdp.service.state import Service
    from pdp.service.tenant import Tenant

Model = TypeVar("Model", bound=BaseModel)
_LONGEST_LENGTH: Final = 20  # digits
_CODES: Final = {
    400: "service.bad_request",
    401: "service.unauthenticated",
    403: "service.forbidden",
    404: "service.not_found",
    405: "service.method_not_allowed",
    408: "service.timeout",
    409: "service.conflict",
    413: "service.too_large",
    429: "service.rate_limited",
    500: "service.internal",
    503: "service.unavailable",
}
_WORDS: Final = {
    "missing": "is missing",
    "model_type": "has to be an object",
    "model_attributes_type": "has to be an object",
    "dict_type": "has to be an object",
    "list_type": "has to be a list",
    "string_type": "has to be a text",
}


class HttpError(PdpError, HTTPException):
    """An error answer: its HTTP `status`, and a stable `error_code` in its body."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        hint: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        HTTPException.__init__(self, status, message, headers or {})
        self.status, self.message, self.hint = status, message, hint
        self.error_code = code or _CODES.get(status, "service.bad_request")

    def as_json(self) -> dict[str, Any]:
        """Return the body of the answer."""
        hint = {} if self.hint is None else {"hint": self.hint}
        return {"error": {"code": self.error_code, "message": self.message, **hint}}


class Caller(NamedTuple):
    """The holder of the request's token, and the tenant that the token belongs to."""

    principal: Principal
    tenant: "Tenant"

    def may(self, *scopes: Scope) -> bool:
        """Return whether the token has all of these scopes."""
        return self.principal.scopes.issuperset(scopes)


def service_of(request: Request) -> "Service":
    """Return the service that a request came to."""
    service: Service = request.app.state.service
    return service


def header(request: Request, name: bytes) -> str:
    """Return a header by its name in small letters; empty if it is absent."""
    for at, value in request.scope["headers"]:
        if at == name:
            return str(value, "latin-1")
    return ""


async def caller(request: Request, *scopes: Scope) -> Caller:
    """Return who calls, with any one of these scopes; without any stated, every valid token will do.

    HttpError: 401 without a valid token, 403 without the scope, 429 too many requests, 503 the token cannot be checked.
    """
    service = service_of(request)
    principal = await service.authenticated(request)
    request.scope["state"]["principal"] = principal  # for the log
    if scopes and principal.scopes.isdisjoint(scopes):
        needed = " or ".join(scopes)
        raise HttpError(
            403,
            f"the token has not the scope {needed}",
            hint="ask an administrator for a token that has it",
            headers={"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{needed}"'},
        )
    service.limiter.admit(principal)
    return Caller(principal, service.tenants[principal.tenant])


class Needs:
    """A dependency of a route: the caller, whose token has one of these scopes."""

    def __init__(self, *scopes: Scope) -> None:
        self.scopes = scopes

    async def __call__(self, request: Request) -> Caller:
        """Return the caller, whom `ServiceRoute` has found before the body was read."""
        found: Caller = request.state.caller
        return found


AnyHolder = Annotated[Caller, Depends(Needs())]
Proposer = Annotated[Caller, Depends(Needs(Scope.PROPOSE))]
Approver = Annotated[Caller, Depends(Needs(Scope.APPROVE))]
ApprovalReader = Annotated[Caller, Depends(Needs(Scope.APPROVE, Scope.PROPOSE))]
Auditor = Annotated[Caller, Depends(Needs(Scope.AUDIT))]
Administrator = Annotated[Caller, Depends(Needs(Scope.ADMIN))]


class StrictRequest(Request):
    """A request whose body is bounded in bytes and time, and strict JSON: no key twice, not too deep.

    HttpError: 400 the body is not such an object; 413 too long, or too many values; 408 too slow.
    """

    async def body(self) -> bytes:
        """Return the whole body; empty if there is none."""
        if not hasattr(self, "_body"):
            self._body = await _bounded(self, service_of(self).settings.limits)
            kind = header(self, b"content-type").partition(";")[0].strip().lower()
            if self._body and kind != "application/json":
                raise HttpError(400, "the body is not application/json", hint="send Content-Type: application/json")
        return self._body

    async def json(self) -> dict[str, Any]:
        """Return the object in the body."""
        body = await self.body()
        try:
            # Bound the number of values, since reading many small ones would delay all other requests.
            value = parse_json(body, most=MAX_VALUES)
        except JsonTooLargeError as error:
            raise HttpError(413, str(error), hint="send less at a time") from None
        except JsonValueError as error:
            raise HttpError(400, str(error)) from None
        if not isinstance(value, dict):
            raise HttpError(400, "the body has to be an object")
        return value


async def read_object(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body of a request that a route reads itself; HttpError as of `StrictRequest`."""
    return await StrictRequest(request.scope, request.receive).json()


class ServiceRoute(APIRoute):
    """A route that authenticates before it reads the body, and reads strict JSON.

    The scopes of its `Needs` are its `security` in the OpenAPI document. Fields that an answer does not set are left
    out of it.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        options |= {"response_model_exclude_unset": True, "operation_id": to_camel(endpoint.__name__.lstrip("_"))}
        if options["status_code"] == HTTPStatus.NO_CONTENT:
            options["response_class"] = Response  # without Content-Type
        super().__init__(path, endpoint, **options)
        stated = security(*self._needs.scopes, reads="GET" in (self.methods or ())) if self._needs else []
        self.openapi_extra = {"security": stated, **(self.openapi_extra or {})}

    @property
    def _needs(self) -> Needs | None:
        calls = (each.call for each in self.dependant.dependencies)
        return next((call for call in calls if isinstance(call, Needs)), None)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        handle, needs = super().get_route_handler(), self._needs

        async def handler(request: Request) -> Response:
            request = StrictRequest(request.scope, request.receive)
            if needs is not None:
                request.state.caller = await caller(request, *needs.scopes)
            if self.dependant.query_params and len(request.query_params) < len(request.query_params.multi_items()):
                raise HttpError(400, "a parameter is there twice")
            if self.body_field is not None:
                await request.body()  # FastAPI would answer 400 to a client that has gone
            return await handle(request)

        return handler


def bounded_page(request: Request, limit: int | None) -> int:
    """Return the size of a page; HttpError 400 if it is above the setting `limits.page`."""
    most = service_of(request).settings.limits.page
    if limit is not None and limit > most:
        raise HttpError(400, "limit is not valid", hint=f"a number from 1 to {most}")
    return limit or most


def security(*scopes: Scope, reads: bool = False) -> list[dict[str, list[str]]]:
    """Return the `security` of an operation whose token has any one of these scopes; a browser's session only reads."""
    tokens = [{"token": [str(scope)]} for scope in scopes] or [{"token": list[str]()}]
    return [*tokens, {"cookie": []}] if reads and Scope.ADMIN not in scopes else tokens


def read_model(model: type[Model], value: Any, place: str = "") -> Model:
    """Return a value as its model; HttpError 400 if the model refuses it. `place`: the field that the value is."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise invalid(error.errors(), place) from None


def invalid(errors: Sequence[Any], at: str = "") -> HttpError:
    """Return the answer to a request that its model refuses, by the first of pydantic's errors; `at`: their place."""
    first = errors[0]
    parts = [at, *(str(part) for part in first["loc"] if part not in ("body", "query"))]
    place = ".".join(filter(None, parts)) or "the body"
    if first["type"] == "extra_forbidden":
        return HttpError(400, f"unknown field {place!r:.60}", hint="GET /openapi.json describes the fields")
    message = first["msg"].removeprefix("Value error, ")
    return HttpError(400, f"{place:.60} {_WORDS.get(first['type']) or f'is not valid: {message}'}")


async def _bounded(request: Request, limits: LimitSettings) -> bytes:
    length = header(request, b"content-length") or "0"
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
        raise HttpError(408, f"the body took longer than {limits.body_seconds:g} s", hint="send it whole") from None
    return b"".join(parts)


def _too_long(most: int) -> HttpError:
    return HttpError(413, f"the body is longer than {most} bytes", hint="send less at a time")
