"""Sign-in and sign-out of the console."""

import time
from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from pdp.service.console.page import (
    PREFIX,
    SIGN_IN,
    AnyViewer,
    ConsoleRoute,
    SentForm,
    Viewer,
    cookie_name,
    own_page,
    redirect,
    render,
    set_cookie,
)
from pdp.service.console.texts import text
from pdp.service.security.oidc import LEEWAY
from pdp.service.security.principal import BrowserSession, Principal
from pdp.service.security.routes import record_token_event
from pdp.service.security.tokens import public_id
from pdp.service.state import Caller, service_of

router = APIRouter(route_class=ConsoleRoute)

_LONGEST_ADDRESS: Final = 4_000
_FRESH_SECONDS: Final = 15 * 60


def is_fresh(principal: Principal) -> bool:
    """Return whether the person signed in at an identity provider within the last 15 minutes.

    The time of a pasted token or of a one-time link is unknown, so these sessions cannot grant commit-high calls.
    """
    return principal.auth_time is not None and -LEEWAY <= time.time() - principal.auth_time <= _FRESH_SECONDS


@router.get(SIGN_IN)
async def show_sign_in(
    request: Request, after: Annotated[str, Query(alias="next", max_length=_LONGEST_ADDRESS)] = PREFIX
) -> Response:
    """Show the page on which people sign in."""
    return _page(request, after)


@router.post(SIGN_IN)
async def sign_in(request: Request, form: SentForm) -> Response:
    """Open a session with the pasted token, which must be valid."""
    after = form.get("next", PREFIX)
    principal = await service_of(request).holder(form.get("token", "").strip())
    if principal is None:
        return _page(request, after, text("sign_in.refused"))
    answer = redirect(own_page(after))
    await begin_session(request, principal, answer)
    return answer


def _page(request: Request, after: str, refused: str | None = None) -> Response:
    providers = [(key, each.name) for key, each in service_of(request).sign_ins.items()]
    status = 403 if refused else 200
    # `pdp console` has a one-time link.
    values = {"after": after, "refused": refused, "is_local": request.app.state.link is not None}
    return render(request, "sign_in.html", status=status, providers=providers, **values)


async def begin_session(request: Request, principal: Principal, answer: Response) -> str:
    """Open a session for the principal, set its cookie, and return its id. Ends the session that the browser had."""
    service, before = service_of(request), request.state.viewer
    token = await service.tokens.open_session(principal, BrowserSession.CONSOLE)
    by = Caller(principal, service.tenants[principal.tenant])
    await record_token_event(request, by, "session.opened", public_id(token), sorted(principal.scopes))
    if before is not None:
        await _end_session(request, before)
    set_cookie(request, answer, token)
    return public_id(token)


@router.post("/console/sign-out")
async def sign_out(request: Request, viewer: AnyViewer) -> Response:
    """End the session."""
    await _end_session(request, viewer)
    answer = redirect(SIGN_IN)
    set_cookie(request, answer, "", max_age=0)
    return answer


async def _end_session(request: Request, viewer: Viewer) -> None:
    token = request.cookies[cookie_name(request)]
    await service_of(request).tokens.revoke(public_id(token), viewer.principal.tenant)
    await record_token_event(request, viewer.caller, "session.ended", public_id(token))
