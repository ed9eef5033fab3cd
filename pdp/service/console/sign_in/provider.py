"""Sign-in at an identity provider, also again before a call with heavy effects is granted."""

import base64
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pdp.service.console.page import (
    PREFIX,
    AnyViewer,
    ConsoleRoute,
    SentForm,
    cookie_name,
    error_page,
    own_page,
    render,
    set_cookie,
    viewer_of,
)
from pdp.service.console.sign_in.session import begin_session, is_fresh
from pdp.service.console.texts import text
from pdp.service.errors import HttpError
from pdp.service.security.authorization_code import CodeSignIn, PendingSignIn
from pdp.service.security.principal import Principal
from pdp.service.state import service_of

router = APIRouter(route_class=ConsoleRoute)

_CALLBACK: Final = "/console/callback"
_COOKIE: Final = "pdp_console_sign_in"
_COOKIE_SECONDS: Final = 600
_LONGEST_ADDRESS: Final = 2_000  # A longer address does not fit into the cookie.


@router.post("/console/sign-in/provider")
async def sign_in_at_provider(request: Request, form: SentForm) -> Response:
    """Send the browser to the provider that the form names."""
    return await _sent(request, form.get("provider"), form.get("next", PREFIX), again=False)


@router.post("/console/sign-in/again")
async def sign_in_again(request: Request, viewer: AnyViewer, form: SentForm) -> Response:
    """Send the browser to the provider of the session, which must ask the person to sign in once more."""
    return await _sent(request, viewer.principal.provider, form.get("next", PREFIX), again=True)


async def _sent(request: Request, key: str | None, after: str, *, again: bool) -> Response:
    sign_in, after = _sign_in(request, key), own_page(after)
    after = after if len(after) <= _LONGEST_ADDRESS else PREFIX
    session = request.cookies[cookie_name(request)] if request.state.viewer is not None else ""
    pending = PendingSignIn(provider=key or "", after=after, again=again, session=session)
    # The page opens the provider's page: a redirect after a form may lead only to this service (CSP form-action).
    answer = render(request, "continue.html", address=await sign_in.address(pending, _redirect_uri(request)))
    value = base64.urlsafe_b64encode(pending.model_dump_json().encode()).decode()
    # The provider's redirect is from another site, so the browser would not send a cookie with SameSite=Strict.
    set_cookie(request, answer, value, name=_COOKIE, samesite="lax", max_age=_COOKIE_SECONDS)
    return answer


@router.get(_CALLBACK)
async def come_back(request: Request) -> Response:
    """Open a session for the person who comes back from the provider, and open the page on which they began."""
    try:
        principal, pending = await _signed_in(request)
        answer: Response = render(request, "continue.html", address=own_page(pending.after))
        # The browser keeps back the cookie of the session before, which ends now.
        request.cookies.setdefault(cookie_name(request), pending.session)
        request.state.viewer = await viewer_of(request)
        await begin_session(request, principal, answer)
    except HttpError as error:
        answer = error_page(request, error)
    set_cookie(request, answer, "", name=_COOKIE, samesite="lax", max_age=0)
    return answer


async def _signed_in(request: Request) -> tuple[Principal, PendingSignIn]:
    pending = _pending(request)
    sign_in = _sign_in(request, pending.provider)
    principal = await sign_in.principal(pending, request.query_params, _redirect_uri(request))
    if pending.again and not is_fresh(principal):
        raise HttpError(403, text("sign_in.not_again", name=sign_in.name), hint=text("sign_in.not_again_hint"))
    return principal, pending


def _pending(request: Request) -> PendingSignIn:
    value = request.cookies.get(cookie_name(request, _COOKIE), "")
    try:
        return PendingSignIn.model_validate_json(base64.b64decode(value, b"-_", validate=True))
    except ValueError:
        raise HttpError(403, text("sign_in.not_begun"), hint=text("sign_in.not_begun_hint")) from None


def _sign_in(request: Request, key: str | None) -> CodeSignIn:
    found = service_of(request).sign_ins.get(key or "")
    if found is None:
        raise HttpError(403, text("sign_in.no_provider"), hint=text("sign_in.no_provider_hint"))
    return found


def _redirect_uri(request: Request) -> str:
    return service_of(request).settings.url + _CALLBACK
