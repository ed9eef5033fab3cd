"""The AuthZEN endpoints, and their metadata."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_args

import orjson
from starlette.responses import Response

from pdp.service.authzen.evaluation import evaluate, evaluate_all
from pdp.service.authzen.search import Searched, search
from pdp.service.requests import HttpError, caller, read_object, service_of
from pdp.service.routing import Routes
from pdp.service.security.principal import Scope
from pdp.service.settings import DEFAULT_TENANT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request

_METADATA: Final = "/.well-known/authzen-configuration"


async def _answered(answer: Callable[..., Awaitable[Mapping[str, Any]]], request: Request) -> Response:
    asking, body = await caller(request, Scope.DECIDE), await read_object(request)
    return _json(await answer(asking, body, request.scope["state"]["request_id"], service_of(request).settings))


async def _metadata(request: Request, tenant: str | None = None) -> Response:
    service = service_of(request)
    url, known = service.settings.url, service.tenants.get(DEFAULT_TENANT if tenant is None else tenant)
    if tenant is not None and known is None:
        raise HttpError(404, "there is no such tenant")
    return _json(
        {
            "policy_decision_point": url if tenant is None else f"{url}/{tenant}",
            "access_evaluation_endpoint": f"{url}/access/v1/evaluation",
            "access_evaluations_endpoint": f"{url}/access/v1/evaluations",
            **{
                f"search_{kind}_endpoint": f"{url}/access/v1/search/{kind}"
                for kind in get_args(Searched)
                if known is None or known.access.can_search(kind)
            },
        }
    )


def _json(value: Mapping[str, Any]) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


routes = Routes()
routes.at("/access/v1/evaluation", "POST")(partial(_answered, evaluate))
routes.at("/access/v1/evaluations", "POST")(partial(_answered, evaluate_all))
for _kind in get_args(Searched):
    routes.at(f"/access/v1/search/{_kind}", "POST")(partial(_answered, partial(search, _kind)))
for _path in (_METADATA, f"{_METADATA}/{{tenant}}"):
    routes.at(_path, "GET", "HEAD")(_metadata)
