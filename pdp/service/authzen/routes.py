"""The AuthZEN endpoints, and their metadata."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_args

import orjson
from starlette.responses import Response
from starlette.routing import Route, Router

from pdp.service.authzen.evaluation import evaluate, evaluate_all
from pdp.service.authzen.search import Searched, search
from pdp.service.requests import HttpError, caller, read_object, service_of
from pdp.service.security.principal import Scope
from pdp.service.settings import DEFAULT_TENANT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request

_METADATA: Final = "/.well-known/authzen-configuration"


async def _answered(answer: Callable[..., Awaitable[Mapping[str, Any]]], request: Request) -> Response:
    asking, body = await caller(request, Scope.DECIDE), await read_object(request)
    return _json(await answer(asking, body, request.state.request_id, service_of(request).settings))


async def _metadata(request: Request) -> Response:
    service = service_of(request)
    url, name = service.settings.url, request.path_params.get("tenant")
    tenant = service.tenants.get(DEFAULT_TENANT if name is None else name)
    if name is not None and tenant is None:
        raise HttpError(404, "there is no such tenant")
    return _json(
        {
            "policy_decision_point": url if name is None else f"{url}/{name}",
            "access_evaluation_endpoint": f"{url}/access/v1/evaluation",
            "access_evaluations_endpoint": f"{url}/access/v1/evaluations",
            **{
                f"search_{kind}_endpoint": f"{url}/access/v1/search/{kind}"
                for kind in get_args(Searched)
                if tenant is None or tenant.access.can_search(kind)
            },
        }
    )


def _json(value: Mapping[str, Any]) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


# Of Starlette, as FastAPI's would look for parameters that there are not.
router = Router(
    [
        Route("/access/v1/evaluation", partial(_answered, evaluate), methods=["POST"]),
        Route("/access/v1/evaluations", partial(_answered, evaluate_all), methods=["POST"]),
        *(
            Route(f"/access/v1/search/{kind}", partial(_answered, partial(search, kind)), methods=["POST"])
            for kind in get_args(Searched)
        ),
        Route(_METADATA, _metadata, methods=["GET"]),
        Route(f"{_METADATA}/{{tenant}}", _metadata, methods=["GET"]),
    ]
)
