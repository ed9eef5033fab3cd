"""The AuthZEN endpoints and their metadata."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, get_args

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pdp.service.authzen.evaluation import evaluate, evaluate_all
from pdp.service.authzen.search import Searched, search
from pdp.service.errors import HttpError
from pdp.service.models.access import (
    AccessDecision,
    AccessDecisions,
    ActionSearch,
    EvaluationRequest,
    EvaluationsRequest,
    Metadata,
    ResourceSearch,
    SearchAnswer,
    SubjectSearch,
)
from pdp.service.requests import ServiceRoute, caller, direct_endpoint, read_object
from pdp.service.security.principal import Scope
from pdp.service.settings import DEFAULT_TENANT
from pdp.service.state import service_of

router = APIRouter(route_class=ServiceRoute, tags=["AuthZEN"])

_METADATA: Final = "/.well-known/authzen-configuration"


async def _answer(answer: Callable[..., Awaitable[Mapping[str, Any]]], request: Request) -> Response:
    asking, body = await caller(request, Scope.DECIDE), await read_object(request)
    answered = await answer(asking, body, request.state.request_id, service_of(request).settings)
    return Response(orjson.dumps(answered), media_type="application/json")


@direct_endpoint(router, "/access/v1/evaluation", Scope.DECIDE, EvaluationRequest, AccessDecision)
async def _evaluate(request: Request) -> Response:
    """Decide one request.

    The policy decides as if no approval were granted, and nothing is reserved. Without the scope `assert`, the subject
    must be the holder of the token, and its properties come from the token. `resource` and `context.arguments` are
    checked as in a proposal. In a permit, `context.unchecked` names the inputs that the service did not verify.
    """
    return await _answer(evaluate, request)


@direct_endpoint(router, "/access/v1/evaluations", Scope.DECIDE, EvaluationsRequest, AccessDecisions | AccessDecision)
async def _evaluate_all(request: Request) -> Response:
    """Decide several requests, or a single request if `evaluations` is missing or empty."""
    return await _answer(evaluate_all, request)


@direct_endpoint(router, "/access/v1/search/subject", Scope.DECIDE, SubjectSearch, SearchAnswer)
async def _search_subjects(request: Request) -> Response:
    """Search the directory for subjects that may perform the action on the resource."""
    return await _answer(partial(search, "subject"), request)


@direct_endpoint(router, "/access/v1/search/resource", Scope.DECIDE, ResourceSearch, SearchAnswer)
async def _search_resources(request: Request) -> Response:
    """Search the directory for resources on which the subject may perform the action."""
    return await _answer(partial(search, "resource"), request)


@direct_endpoint(router, "/access/v1/search/action", Scope.DECIDE, ActionSearch, SearchAnswer)
async def _search_actions(request: Request) -> Response:
    """Search the manifest for actions that the subject may perform on the resource."""
    return await _answer(partial(search, "action"), request)


@router.head(_METADATA, include_in_schema=False)
@router.get(_METADATA)
async def read_metadata(request: Request) -> Metadata:
    """Return the URLs of the AuthZEN endpoints (section 9 of AuthZEN 1.0)."""
    return _metadata(request, DEFAULT_TENANT, "")


@router.head(f"{_METADATA}/{{tenant}}", include_in_schema=False)
@router.get(f"{_METADATA}/{{tenant}}")
async def read_tenant_metadata(request: Request, tenant: str) -> Metadata:
    """Return the URLs of the AuthZEN endpoints of one tenant."""
    if tenant not in service_of(request).tenants:
        raise HttpError(404, "unknown tenant")
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
