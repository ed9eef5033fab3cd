"""The pages of the console: rendering, the route class that checks sessions and forms, and error pages."""

import hashlib
import hmac
import re
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

from fastapi import Depends
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pdp.client.client import is_this_machine
from pdp.manifest.fields import duration_seconds
from pdp.service.console.texts import text
from pdp.service.console.visible import ago, code_page, duration, json_text, left, shown_text, with_marks
from pdp.service.errors import HttpError
from pdp.service.requests import read_body
from pdp.service.security.principal import BrowserSession, Principal, Scope
from pdp.service.state import Caller, service_of

PREFIX: Final = "/console/"
SIGN_IN: Final = "/console/sign-in"
CSRF: Final = "csrf"
"""The name of the form field that proves that a page of this session sent the form."""

_COOKIE: Final = "pdp_console"
_MOST_FIELDS: Final = 1_000
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    # With `no-referrer`, browsers would send `Origin: null` with forms, so their origin could not be checked.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_PAGES: Final = (
    ("inbox", "/console/approvals", (Scope.APPROVE, Scope.PROPOSE)),
    ("decisions", "/console/decisions", (Scope.AUDIT,)),
    ("tools", "/console/tools", ()),
    ("grants", "/console/grants", (Scope.APPROVE, Scope.PROPOSE)),
    ("play", "/console/play", (Scope.DECIDE,)),
    ("releases", "/console/releases", (Scope.AUDIT, Scope.APPROVE)),
    ("help", "/console/help", ()),
)
"""The pages of the menu: name, address, and the scopes of which a session needs one."""

Form = ImmutableMultiDict[str, str]


class Viewer(NamedTuple):
    """The person who is signed in: the caller, and the CSRF token for the forms of their session."""

    caller: Caller
    csrf: str

    @property
    def principal(self) -> Principal:
        """The session's principal."""
        return self.caller.principal

    @property
    def name(self) -> str:
        """How the page addresses the person."""
        return str(self.principal.claims.get("sub") or self.principal.id)


class ViewerNeeds:
    """A FastAPI dependency: the viewer of a page, whose session must have one of the given scopes."""

    def __init__(self, *scopes: Scope) -> None:
        self.scopes = scopes

    async def __call__(self, request: Request) -> Viewer:
        """Return the viewer that `ConsoleRoute` authenticated."""
        viewer: Viewer = request.state.viewer
        return viewer


SIGNED_IN: Final = Depends(ViewerNeeds())
"""For `dependencies=[...]` of a page that anybody with a session may see."""

AnyViewer = Annotated[Viewer, Depends(ViewerNeeds())]
PlayViewer = Annotated[Viewer, Depends(ViewerNeeds(Scope.DECIDE))]
ReleaseViewer = Annotated[Viewer, Depends(ViewerNeeds(Scope.AUDIT, Scope.APPROVE))]
ApprovalViewer = Annotated[Viewer, Depends(ViewerNeeds(Scope.APPROVE, Scope.PROPOSE))]
AuditViewer = Annotated[Viewer, Depends(ViewerNeeds(Scope.AUDIT))]
MatrixViewer = Annotated[Viewer, Depends(ViewerNeeds(Scope.DECIDE, Scope.AUDIT))]


def sent_form(request: Request) -> Form:
    """Return the form that `ConsoleRoute` has read and checked. A FastAPI dependency."""
    form: Form = request.state.form
    return form


SentForm = Annotated[Form, Depends(sent_form)]


class ConsoleRoute(APIRoute):
    """A page or a form of the console. Checks the session, and the origin and the CSRF token of a form."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **{**options, "include_in_schema": False, "response_model": None})

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of the route's requests."""
        handle = super().get_route_handler()
        needs = next((each.call for each in self.dependant.dependencies if isinstance(each.call, ViewerNeeds)), None)

        async def handler(request: Request) -> Response:
            link = request.app.state.link
            if link is not None and not link.admits(request):
                raise HttpError(403, text("error.other_user"))
            request.state.viewer = viewer = await viewer_of(request)
            if request.method == "POST":
                check_origin(request)
                request.state.form = form = await _read_form(request)
                if viewer is not None and not hmac.compare_digest(form.get(CSRF, "").encode(), viewer.csrf.encode()):
                    raise HttpError(403, text("error.csrf"), hint=text("error.csrf_hint"))
            if needs is not None:
                if viewer is None:
                    return _sign_in_first(request)
                require_scope(viewer, *needs.scopes)
            return await handle(request)

        return handler


def cookie_name(request: Request, name: str = _COOKIE) -> str:
    """Return the name of a cookie, by default the session's. With TLS, a prefix keeps other hosts from setting it.

    Without TLS the name ends in the port, because the services of one machine share the cookies of their host.
    """
    if service_of(request).settings.url.startswith("https:"):
        return f"__Host-{name}"
    port = re.search(r":([0-9]{1,5})$", request.headers.get("host", ""))
    return f"{name}_{port[1]}" if port else name


def set_cookie(request: Request, answer: Response, value: str, **options: Any) -> None:
    """Set a cookie that scripts cannot read, by default the session's."""
    name = cookie_name(request, options.pop("name", _COOKIE))
    answer.set_cookie(
        name, value, **{"secure": name.startswith("__"), "httponly": True, "samesite": "strict", **options}
    )


async def viewer_of(request: Request) -> Viewer | None:
    """Return the viewer whose session the request's cookie names, or None. Raise `HttpError` 429 or StoreError."""
    service, token = service_of(request), request.cookies.get(cookie_name(request), "")
    principal = await service.holder(token, BrowserSession.CONSOLE)
    if principal is None:
        return None
    request.scope["state"]["principal"] = principal
    service.limiter.admit(principal)
    csrf = hmac.digest(token.encode(), b"console form", hashlib.sha256).hex()
    return Viewer(Caller(principal, service.tenants[principal.tenant]), csrf)


def require_scope(viewer: Viewer, *scopes: Scope) -> None:
    """Raise `HttpError` 403 unless the viewer's session has one of the scopes, if any are given."""
    if scopes and viewer.principal.scopes.isdisjoint(scopes):
        raise HttpError(403, text("error.scope", scope=" / ".join(scopes)), hint=text("error.scope_hint"))


async def current_viewer(request: Request, viewer: Viewer) -> Viewer:
    """Authenticate the viewer of a stream again. Raise `HttpError` 403 if the session has ended."""
    now = await viewer_of(request)
    if now is None or now.principal.id != viewer.principal.id:
        raise HttpError(403, text("error.session"))
    return now


def check_origin(request: Request) -> None:
    """Raise `HttpError` 403 unless a page of this service sent the request."""
    origin, host = request.headers.get("origin", ""), request.headers.get("host", "")
    own = urlsplit(service_of(request).settings.url)
    # A service of this machine may have several names. Other names may belong to an attacker's server which answers
    # with the address of this machine.
    is_local = is_this_machine(own.hostname or "") and is_this_machine(re.sub(r":[0-9]*$", "", host).strip("[]"))
    if origin != f"{own.scheme}://{host if is_local else own.netloc}":
        raise HttpError(403, text("error.origin"), hint=text("error.origin_hint", url=f"{own.scheme}://{own.netloc}"))


async def _read_form(request: Request) -> Form:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await read_body(request, service_of(request).settings.limits)
    if kind != "application/x-www-form-urlencoded":
        raise HttpError(400, text("error.form"))
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise HttpError(400, text("error.form")) from None
    return Form(fields)


def _sign_in_first(request: Request) -> Response:
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if request.method == "GET" and request.headers.get("sec-fetch-site") == "cross-site":
        # A browser sends the session's cookie only if a page of this service opens the page. So the page opens itself.
        return render(request, "continue.html", address=path)
    after = f"?next={quote(path, safe='')}" if request.method == "GET" else ""
    return redirect(SIGN_IN + after)


def redirect(address: str) -> Response:
    """Return the redirect to a page of the console after a form."""
    return RedirectResponse(address, status_code=HTTPStatus.SEE_OTHER, headers=_HEADERS)


def own_page(address: str) -> str:
    """Return an address that came with a request if it is a page of the console, else the first page."""
    return address if address.startswith(PREFIX) and "\\" not in address and address.isprintable() else PREFIX


_ENVIRONMENT: Final = Environment(
    loader=PackageLoader("pdp.service.console"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals["t"] = shown_text
_ENVIRONMENT.filters |= {
    "visible": with_marks,
    "ago": ago,
    "page": code_page,
    "left": left,
    "json": json_text,
    "duration": duration,
    "seconds": duration_seconds,
}


def render(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page. The template also gets `viewer`, which may be None, `menu` and `path`."""
    viewer: Viewer | None = getattr(request.state, "viewer", None)
    field = Markup('<input type="hidden" name="{}" value="{}">').format(CSRF, viewer.csrf) if viewer else ""
    shared = {"viewer": viewer, "menu": menu_of(viewer), "path": request.url.path, "csrf": lambda: field}
    page = _ENVIRONMENT.get_template(template).render({**shared, **values})
    return HTMLResponse(page, status, _HEADERS)


def menu_of(viewer: Viewer | None) -> list[tuple[str, str]]:
    """Return the name and address of each page of the menu that the viewer may open."""
    scopes = viewer.principal.scopes if viewer else frozenset[Scope]()
    return [(name, at) for name, at, needed in _PAGES if viewer and not (needed and scopes.isdisjoint(needed))]


def error_page(request: Request, error: HttpError) -> Response:
    """Return the page that shows an error."""
    page = render(request, "error.html", status=error.status, error=error)
    page.headers.update(error.headers or {})
    return page
