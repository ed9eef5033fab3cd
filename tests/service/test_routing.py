"""Which endpoint answers: paths with parameters and without, and what is no path or no method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from starlette.responses import Response

from pdp.service.requests import HttpError
from pdp.service.routing import Routes

if TYPE_CHECKING:
    from starlette.requests import Request

one, two = Routes(), Routes()


@one.at("/calls/{call_id}", "GET")
@one.at("/calls/{call_id}/steps/{step}", "GET", "POST")
async def call(_: Request, **parameters: str) -> Response:
    return Response(repr(parameters))


@two.at("/calls/new", "POST", "GET")
@two.at("/calls/{call_id}", "DELETE")
async def other(_: Request, **parameters: str) -> Response:
    return Response(repr(parameters))


ROUTES = Routes(one, two)


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        pytest.param("GET", "/calls/7", ("/calls/{call_id}", call, {"call_id": "7"}), id="parameter"),
        pytest.param("DELETE", "/calls/7", ("/calls/{call_id}", other, {"call_id": "7"}), id="method of another part"),
        pytest.param("GET", "/calls/new", ("/calls/new", other, {}), id="no parameter"),
        pytest.param(
            "POST", "/calls/a b/steps/x", ("/calls/{call_id}/steps/{step}", call, {"call_id": "a b", "step": "x"}),
            id="two parameters",
        ),
        pytest.param("GET", "/calls/{call_id}", ("/calls/{call_id}", call, {"call_id": "{call_id}"}), id="template"),
    ],
)  # fmt: skip
def test_a_path_has_an_endpoint(method: str, path: str, found: tuple[Any, ...]) -> None:
    assert ROUTES.find(method, path) == found


@pytest.mark.parametrize(
    ("method", "path", "status", "headers"),
    [
        pytest.param("PUT", "/calls/7", 405, {"Allow": "DELETE, GET"}, id="method"),
        pytest.param("PUT", "/calls/new", 405, {"Allow": "GET, POST"}, id="method of a path without parameters"),
        pytest.param("GET", "/calls", 404, {}, id="part of a path"),
        pytest.param("GET", "/calls/", 404, {}, id="empty parameter"),
        pytest.param("GET", "/calls/7/", 404, {}, id="slash at the end"),
        pytest.param("GET", "/calls/7/8", 404, {}, id="slash in a parameter"),
    ],
)
def test_another_one_has_none(method: str, path: str, status: int, headers: dict[str, str]) -> None:
    with pytest.raises(HttpError) as caught:
        ROUTES.find(method, path)

    assert (caught.value.status, caught.value.headers) == (status, headers)
