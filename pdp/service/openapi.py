"""All routes, the OpenAPI document made from the routes, and a page that shows the document in a browser."""

import asyncio
import base64
import hashlib
from functools import cache
from typing import Any, Final

import orjson
from fastapi import APIRouter
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from pdp.service import health, hooks, proposals
from pdp.service.approvals import grants, inbox
from pdp.service.approvals import routes as approvals
from pdp.service.authzen import routes as authzen
from pdp.service.console import routes as console
from pdp.service.models import JsonObject
from pdp.service.models.operation import ErrorAnswer
from pdp.service.requests import ServiceRoute
from pdp.service.security import routes as tokens
from pdp.service.security.tokens import COOKIE
from pdp.service.state import service_of

TITLE: Final = "Policy decisions for tool calls"
DESCRIPTION: Final = """
An enforcement point proposes the tool call of an agent. The answer is ALLOW, DENY or STEP_UP (a person has to approve).
If the call has begun, the enforcement point runs it with exactly the arguments of the answer, and reports the result.

Requests need a token with one of the scopes under `security`; health, metadata and this document need none. Every
answer has an `X-Request-ID`: that of the request, or a new one. The `code` of an error is stable; its message is not.
"""
TAGS: Final = (
    ("proposals", "Calls of enforcement points that run the tool themselves"),
    ("approvals", "Approvals of calls that wait for a person"),
    ("AuthZEN", "The Authorization API 1.0. A denial is a 200"),
    ("tokens", "Access tokens and browser sessions"),
    ("operation", "Health, metrics and audit events"),
)

_MESSAGE: Final = {"type": "string", "description": "The reason why the request failed"}
_SECURITY: Final = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of the service (`pdp_...`), or an access token of a configured OpenID Connect provider",
    },
    "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "A read-only browser session"},
}
_ERRORS: Final = {
    400: "The request is not valid",
    401: "No valid token",
    403: "The token lacks the scope, or the caller is not allowed to take this step",
    404: "The resource does not exist, or belongs to another caller",
    408: "The body did not arrive in time",
    409: "The request conflicts with the present state",
    413: "The body is too long",
    429: "Too many requests; `Retry-After` says when to try again",
    503: "A store, the engine or the audit stream is unavailable",
}
_HEADERS: Final = {401: ("WWW-Authenticate",), 429: ("Retry-After",), 503: ("Retry-After",)}

router = APIRouter(route_class=ServiceRoute, tags=["operation"])


@cache
def openapi_document(page: int = 100) -> dict[str, Any]:
    """Return the OpenAPI document. `page` is the maximum page size, from the setting `limits.page`."""
    document = get_openapi(
        title=TITLE,
        version="1",
        description=DESCRIPTION,
        routes=ROUTES,
        tags=[{"name": name, "description": text} for name, text in TAGS],
        servers=[{"url": "/"}],
        license_info={"name": "Apache 2.0", "identifier": "Apache-2.0"},
    )
    components = document["components"]
    components["securitySchemes"] = _SECURITY
    error = ErrorAnswer.model_json_schema(ref_template="#/components/schemas/{model}")
    components["schemas"] |= {**error.pop("$defs"), "ErrorAnswer": error, "Message": _MESSAGE}
    # These schemas are unused, because the document describes answers with ErrorAnswer and PersonBody.
    for unused in ("HTTPValidationError", "Person", "ValidationError"):
        components["schemas"].pop(unused)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _complete(path, method, operation, page)
    return document


def _complete(path: str, method: str, operation: dict[str, Any], page: int) -> None:
    """Add the summary, the error answers and the maximum page size to an operation."""
    answers = operation["responses"]
    answers.pop("422", None)
    summary, _, rest = operation.pop("description").partition("\n\n")
    operation |= {"summary": summary.removesuffix("."), **({"description": rest} if rest else {})}
    parameters, body = operation.get("parameters", ()), operation.get("requestBody", {}).get("content", {})
    for part in (*parameters, *body.values()):
        kinds = part["schema"].get("anyOf", ())
        if {"type": "null"} in kinds:  # The parameter or body may be absent, but not null.
            part["schema"] = kinds[0]
        if part.get("name") == "limit":
            part["schema"]["maximum"] = page
    if {} in operation["security"]:  # Hook routes report failures in normal answers, so they have no error answers.
        return
    is_named, has_body = "{" in path, "requestBody" in operation
    errors = {400} if has_body or operation["security"] else set()
    errors |= {401, 403, 429, 503} if operation["security"] else set()
    errors |= {408, 413} if has_body else set()
    errors |= {404} if is_named or "/search/" in path else set()
    errors |= {409} if method == "post" and (is_named or path == "/v1/proposals") else set()
    name = "Message" if path.startswith(("/access/", "/.well-known/")) else "ErrorAnswer"
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    for status in sorted(errors):
        headers = {header: {"required": True, "schema": {"type": "string"}} for header in _HEADERS.get(status, ())}
        answers.setdefault(str(status), {"description": _ERRORS[status], "headers": headers, "content": content})


@cache
def _encoded(page: int) -> bytes:
    return orjson.dumps(openapi_document(page))


@router.get("/openapi.json", response_model=JsonObject)
async def read_openapi(request: Request) -> Response:
    """Return the OpenAPI document of this service."""
    encoded = await asyncio.to_thread(_encoded, service_of(request).settings.limits.page)
    return Response(encoded, media_type="application/json")


@router.get("/docs", include_in_schema=False)
async def show_api() -> HTMLResponse:
    """Show the API in a browser. The page loads files only from this service."""
    return HTMLResponse(_PAGE, headers={"Content-Security-Policy": _POLICY})


_PAGE: Final = get_swagger_ui_html(
    openapi_url="openapi.json",
    title=TITLE,
    swagger_js_url="docs/swagger-ui-bundle.js",
    swagger_css_url="docs/swagger-ui.css",
    swagger_favicon_url="docs/favicon.png",
    # No validator is configured, because the default would call an external one.
    swagger_ui_parameters={"validatorUrl": None},
).body
_SCRIPT: Final = hashlib.sha256(bytes(_PAGE).rpartition(b"<script>")[2].partition(b"</script>")[0]).digest()
_POLICY: Final = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'self'; "
    "img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    f"script-src 'self' 'sha256-{base64.b64encode(_SCRIPT).decode()}'"
)
router.routes.append(Mount("/docs", StaticFiles(packages=[("fastapi_offline", "static")])))

_PARTS: Final = (authzen, proposals, health, hooks, inbox, approvals, grants, tokens)
ROUTES: Final = [*(route for part in _PARTS for route in part.router.routes), *router.routes, *console.ROUTES]
"""All routes of the application. They are tried in order, so frequent routes come first."""
