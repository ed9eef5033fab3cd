"""The AuthZEN endpoints, and their metadata."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, get_args

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pdp.service.authzen.evaluation import evaluate, evaluate_all
from pdp.service.authzen.search import Searched, search
from pdp.service.models.access import Metadata
from pdp.service.requests import HttpError, ServiceRoute, caller, read_object, service_of
from pdp.service.security.principal import Scope
from pdp.service.settings import DEFAULT_TENANT

router = APIRouter(route_class=ServiceRoute, tags=["AuthZEN"])

_METADATA: Final = "/.well-known/authzen-configuration"


async def _answered(answer: Callable[..., Awaitable[Mapping[str, Any]]], request: Request) -> Response:
    asking, body = await caller(request, Scope.DECIDE), await read_object(request)
    answered = await answer(asking, body, request.state.request_id, service_of(request).settings)
    return Response(orjson.dumps(answered), media_type="application/json")


RAW: Final = (
    ("/access/v1/evaluation", partial(_answered, evaluate)),
    ("/access/v1/evaluations", partial(_answered, evaluate_all)),
    *((f"/access/v1/search/{kind}", partial(_answered, partial(search, kind))) for kind in get_args(Searched)),
)
"""Paths and endpoints that read the request themselves; `openapi` says which models they take and answer with."""


@router.head(_METADATA, include_in_schema=False)
@router.get(_METADATA)
async def read_metadata(request: Request) -> Metadata:
    """Return the URLs of the AuthZEN endpoints (section 9)."""
    return _metadata(request, DEFAULT_TENANT, "")


@router.head(f"{_METADATA}/{{tenant}}", include_in_schema=False)
@router.get(f"{_METADATA}/{{tenant}}")
async def read_tenant_metadata(request: Request, tenant: str) -> Metadata:
    """Return the URLs of the AuthZEN endpoints of one tenant."""
    if tenant not in service_of(request).tenants:
        raise HttpError(404, "there is no such tenant")
    return _metadata(request, tenant, f"/{tenant}")


def _metadata(request: Request, tenant: str, suffix: str) -> Metadata:
    url, known = service_of(request).settings.url, service_of(request).tenants.get(tenant)
    searches = [kind for kind in get_args(Searched) if known is None or known.access.can_search(kind)]
    return Metadata(
        policy_decision_point=f"{url}{suffix}",
        access_evaluation_endpoint=f"{url}/access/v1/evaluation",
        access_evaluations_endpoint=f"{url}/access/v1/evaluations",
        **{f"search_{kind}_endpoint": f"{url}/access/v1/search/{kind}" for kind in searches},
    )
