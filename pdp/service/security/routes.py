"""Access tokens and browser sessions over HTTP."""

import asyncio
from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pdp.service.errors import HttpError
from pdp.service.models.tokens import Grace, NewToken, TokenList, TokenOrder
from pdp.service.requests import Administrator, AnyHolder, ServiceRoute
from pdp.service.security.principal import BrowserSession
from pdp.service.security.tokens import COOKIE, issue_token, public_id, replaced_token, shown_token, token_event
from pdp.service.state import Caller, service_of

router = APIRouter(route_class=ServiceRoute, tags=["tokens"])


@router.post("/v1/tokens", status_code=201)
async def create_token(request: Request, by: Administrator, order: TokenOrder) -> NewToken:
    """Create a token for the administrator's tenant. Only this answer contains its secret."""
    store = service_of(request).tokens.tokens
    record, token = await asyncio.to_thread(issue_token, store, by.tenant.name, order)
    await record_token_event(request, by, "token.created", record.id, record.scopes)
    return NewToken(**shown_token(record), token=token)


@router.get("/v1/tokens")
async def list_tokens(request: Request, by: Administrator) -> TokenList:
    """List the tokens of the administrator's tenant, without secrets, including revoked and expired tokens."""
    records = await asyncio.to_thread(service_of(request).tokens.tokens.list, by.tenant.name)
    return TokenList.model_validate({"tokens": [shown_token(record) for record in records]})


@router.delete("/v1/tokens/{token_id}", status_code=204)
async def revoke_token(request: Request, by: Administrator, token_id: str) -> None:
    """Revoke a token of the administrator's tenant, with its browser sessions. Revocation takes up to five seconds."""
    if not await service_of(request).tokens.revoke(token_id, by.tenant.name):
        raise HttpError(404, "the tenant has no token with this id")
    await record_token_event(request, by, "token.revoked", token_id)


@router.post("/v1/tokens/{token_id}/rotate", status_code=201)
async def rotate_token(request: Request, by: Administrator, token_id: str, grace: Grace = 0) -> NewToken:
    """Replace a token by a new one of the same kind. The old one is revoked, at once or after `grace` seconds."""
    store = service_of(request).tokens.tokens
    record, token = await asyncio.to_thread(replaced_token, store, token_id, by.tenant.name, grace)
    await record_token_event(request, by, "token.created", record.id, record.scopes)
    await record_token_event(request, by, "token.revoked", token_id, [f"after {grace} s"] if grace else ())
    return NewToken(**shown_token(record), token=token)


@router.post("/v1/session", status_code=204)
async def open_session(request: Request, by: AnyHolder, response: Response) -> None:
    """Open a browser session: a read-only cookie for one hour, with the rights of the token."""
    service = service_of(request)
    token = await service.tokens.open_session(by.principal, BrowserSession.API)
    secure = service.settings.url.startswith("https:")
    response.set_cookie(COOKIE, token, secure=secure, httponly=True, samesite="strict")


@router.delete("/v1/session", status_code=204, openapi_extra={"security": [{"cookie": []}]})
async def end_session(request: Request, response: Response) -> None:
    """End the browser session that the request's cookie identifies. Without a valid cookie, the answer is 401."""
    tokens = service_of(request).tokens
    token = request.cookies.get(COOKIE, "")
    principal = await tokens.principal(token)
    if principal is None or principal.session is not BrowserSession.API:
        raise HttpError(401, "the request has no valid browser session", headers={"WWW-Authenticate": "Bearer"})
    await tokens.revoke(public_id(token), principal.tenant)
    response.delete_cookie(COOKIE)


async def record_token_event(
    request: Request, by: Caller, kind: str, token_id: str, scopes: Sequence[str] = ()
) -> None:
    """Record in the audit stream that `by` created or revoked a token, or opened or ended a session."""
    who = str(by.principal.claims.get("sub", by.principal.id))
    event = token_event(kind, who, token_id, scopes, request.scope["state"]["request_id"])
    await by.tenant.stream.aappend(event)
