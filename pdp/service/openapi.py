"""The OpenAPI document of the HTTP API: the file beside this module, as JSON."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import yaml
from starlette.responses import Response

from pdp.service.requests import caller, service_of
from pdp.service.routing import Routes

if TYPE_CHECKING:
    from typing import Any

    from starlette.requests import Request

routes = Routes()


@cache
def openapi_document() -> dict[str, Any]:
    """Return the document, without what its parts share by YAML's anchors alone."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    return {name: part for name, part in yaml.safe_load(text).items() if not name.startswith("x-")}


@cache
def _encoded(page: int) -> bytes:
    document = openapi_document()
    for path in ("/v1/audit", "/v1/approvals"):
        limit = next(each for each in document["paths"][path]["get"]["parameters"] if each["name"] == "limit")
        limit["schema"]["maximum"] = page
    return orjson.dumps(document)


@routes.at("/openapi.json", "GET")
async def document(request: Request) -> Response:
    """Answer with the document, to whoever has a valid token."""
    await caller(request)
    return Response(_encoded(service_of(request).settings.limits.page), media_type="application/json")
