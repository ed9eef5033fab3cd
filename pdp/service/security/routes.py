"""Access tokens and browser sessions over HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, Response

from pdp.service.requests import Caller, HttpError, caller, read_object, service_of
from pdp.service.routing import Routes
from pdp.service.security.principal import Scope
from pdp.service.security.tokens import COOKIE, issue_token, token_event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

routes = Routes()


@routes.at("/v1/tokens", "POST")
async def create_token(request: Request) -> Response:
    """Make a token of the administrator's tenant. It is in this answer, and nowhere else."""
    by = await caller(request, Scope.ADMIN)
    body = await read_object(request)
    store = service_of(request).tokens.tokens
    record, token = await asyncio.to_thread(issue_token, store, by.tenant.name, body)
    await _recorded(request, by, "token.created", record.id, record.scopes)
    return JSONResponse({**record.as_json(), "token": token}, status_code=201)


@routes.at("/v1/tokens", "GET")
async def list_tokens(request: Request) -> Response:
    """Return the tokens of the administrator's tenant, revoked and expired ones too; not the tokens themselves."""
    by = await caller(request, Scope.ADMIN)
    records = await asyncio.to_thread(service_of(request).tokens.tokens.list, by.tenant.name)
    return JSONResponse({"tokens": [record.as_json() for record in records]})


@routes.at("/v1/tokens/{id}", "DELETE")
async def revoke_token(request: Request, id: str) -> Response:  # noqa: A002 - its name in the path
    """Revoke a token of the administrator's tenant, and its browser sessions. Processes notice within five seconds."""
    by = await caller(request, Scope.ADMIN)
    if not await service_of(request).tokens.revoke(id, by.tenant.name):
        raise HttpError(404, "the tenant has no token of that id")
    await _recorded(request, by, "token.revoked", id)
    return Response(status_code=204)


@routes.at("/v1/session", "POST")
async def open_session(request: Request) -> Response:
    """Give a browser a cookie by which it reads for an hour, as the holder of the token that is sent."""
    by = await caller(request)
    service = service_of(request)
    token = await service.tokens.open_session(by.principal)
    answer = Response(status_code=204)
    secure = service.settings.url.startswith("https:")
    answer.set_cookie(COOKIE, token, secure=secure, httponly=True, samesite="strict")
    return answer


@routes.at("/v1/session", "DELETE")
async def end_session(request: Request) -> Response:
    """End the session of the browser that asks, by its cookie; without one that counts, 401."""
    tokens = service_of(request).tokens
    token = request.cookies.get(COOKIE, "")
    principal = await tokens.principal(token)
    if principal is None or not principal.cookie:
        raise HttpError(401, "no browser session", headers={"WWW-Authenticate": "Bearer"})
    await tokens.revoke(token.removeprefix("pdp_")[:16], principal.tenant)
    answer = Response(status_code=204)
    answer.delete_cookie(COOKIE)
    return answer


async def _recorded(request: Request, by: Caller, kind: str, token_id: str, scopes: Sequence[str] = ()) -> None:
    who = str(by.principal.claims.get("sub", by.principal.id))
    event = token_event(kind, who, token_id, scopes, request.scope["state"]["request_id"])
    await by.tenant.stream.aappend(event)
