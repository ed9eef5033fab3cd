"""Reading a request: who calls and whether they may, the bounded body; and errors with their status."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlette.requests import ClientDisconnect

from pdp.errors import PdpError
from pdp.json import MAX_VALUES, JsonTooLargeError, JsonValueError, parse_json

if TYPE_CHECKING:
    from starlette.requests import Request

    from pdp.service.app import Service
    from pdp.service.security.principal import Principal, Scope
    from pdp.service.settings import LimitSettings
    from pdp.service.tenant import Tenant

_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
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


class HttpError(PdpError):
    """A request that is not answered as asked: `status`, and a stable `code` in the body."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        hint: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.error_code = code or _CODES[status]
        self.headers = headers or {}

    def as_json(self) -> dict[str, Any]:
        """Return the body of the answer."""
        hint = {} if self.hint is None else {"hint": self.hint}
        return {"error": {"code": self.error_code, "message": self.message, **hint}}


class Caller(NamedTuple):
    """Who makes a request, and the tenant whose policies, stores and stream it is about."""

    principal: Principal
    tenant: Tenant

    def may(self, *scopes: Scope) -> bool:
        """Return whether the token has all of these scopes."""
        return self.principal.scopes.issuperset(scopes)


def service_of(request: Request) -> Service:
    """Return the service that a request came to."""
    service: Service = request.scope["app"].service
    return service


def header(request: Request, name: bytes) -> str:
    """Return a header by its name in small letters; empty where it is not there."""
    return next((value.decode("latin-1") for at, value in request.scope["headers"] if at == name), "")


async def caller(request: Request, *scopes: Scope) -> Caller:
    """Return who calls, with any one of these scopes; without any stated, every valid token will do.

    HttpError: 401 without a valid token, 403 without the scope, 429 too many requests, 503 nobody can say.
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


async def read_object(request: Request, *, optional: bool = False) -> dict[str, Any]:
    """Return the JSON object in a request's body; with `optional`, an empty one where there is no body.

    HttpError: 400 not `application/json`, not strict JSON, not an object, too deep; 413 too long, or too many values;
    408 too slow.
    """
    limits = service_of(request).settings.limits
    kind = header(request, b"content-type").partition(";")[0].strip().lower()
    body = await _body(request, limits)
    if optional and not body:
        return {}
    if kind != "application/json":
        raise HttpError(400, "the body is not application/json", hint="send Content-Type: application/json")
    try:
        # Of many small values, a short text has more than are read in a moment, and nobody else is answered meanwhile.
        value = parse_json(body, most=MAX_VALUES)
    except JsonTooLargeError as error:
        raise HttpError(413, str(error), hint="send less at a time") from None
    except JsonValueError as error:
        raise HttpError(400, str(error)) from None
    if not isinstance(value, dict):
        raise HttpError(400, "the body has to be an object")
    return value


async def _body(request: Request, limits: LimitSettings) -> bytes:
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


def known_fields(value: dict[str, Any], *fields: str) -> None:
    """Raise HttpError 400 where an object has other fields than these."""
    unknown = sorted(value.keys() - set(fields))
    if unknown:
        raise HttpError(400, f"unknown field {unknown[0]!r:.60}", hint=f"known: {', '.join(fields)}")


def number(asked: dict[str, str], name: str, absent: int, least: int, most: int) -> int:
    """Return a parameter that is a whole number; HttpError 400 where it is none, or out of bounds."""
    given = asked.get(name, str(absent))
    if not _NUMBER.fullmatch(given) or not least <= int(given) <= most:
        raise HttpError(400, f"{name} is not valid", hint=f"a number from {least} to {most}")
    return int(given)


def query(request: Request, *names: str) -> dict[str, str]:
    """Return the parameters of a request; HttpError 400 for another one, or one that is there twice."""
    stated = request.query_params.multi_items()
    asked = dict(stated)
    known_fields(asked, *names)
    if len(asked) < len(stated):
        raise HttpError(400, "a parameter is there twice")
    return asked
