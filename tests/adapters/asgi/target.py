"""The conformance target for ASGI: a FastAPI application with one route for each tool of the suite."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import httpx
from fastapi import Body, FastAPI

from pdp import Pep
from pdp.adapters.asgi import AsgiMiddleware
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World, run_body
from tests.adapters.client import AdapterClient, AdapterTarget

TOOLS = ("read_note", "pay_bill", "wipe_disk", "fetch_page", "ping_host", "post_note", "open_shell")


def application(world: Any) -> FastAPI:
    """Return an application with one route for each tool. Only `fetch_page` gets its arguments from path and query."""
    app = FastAPI()

    def add(tool: str) -> None:
        async def body(arguments: dict[str, Any] = Body()) -> str:  # noqa: B008 - FastAPI's own style
            return run_body(world.record, tool, arguments)

        app.add_api_route(f"/{tool}", body, methods=["POST"])

    for tool in TOOLS:
        add(tool)

    @app.get("/pages/{url}")
    async def fetch_page(url: str, limit: int) -> str:
        return run_body(world.record, "fetch_page", {"url": url, "limit": limit})

    return app


class LetPass:
    """Middleware of the application that lets every request pass."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


def guarded(world: Any, pep: Pep) -> Any:
    routes = {f"POST /{tool}": tool for tool in TOOLS if tool != "fetch_page"} | {"GET /pages/{url}": "fetch_page"}
    app = application(world)
    if world.setting == "beside":
        return LetPass(AsgiMiddleware(LetPass(app), pep, World.session, routes))
    return AsgiMiddleware(app, pep, World.session, routes)


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://kit")


def observed(response: httpx.Response) -> Observed:
    answer = response.json()
    if response.is_success:
        return Observed(str(answer), is_error=False)
    held = answer.get("approval")
    return Observed(answer["detail"], is_error=True, held=held and held["approval_id"])


class AsgiClient(AdapterClient):
    http: httpx.AsyncClient

    @classmethod
    @contextmanager
    def opened(cls, world: World) -> Iterator[Self]:
        with super().opened(world) as own, own.portal.wrap_async_context_manager(own.connected()) as own.http:
            yield own

    def connected(self) -> httpx.AsyncClient:
        return client_of(guarded(self.world, self.pep))

    async def turn(self, tool: str, arguments: dict[str, Any], call_id: str) -> Observed:
        if tool == "fetch_page":
            response = await self.http.get(f"/pages/{arguments['url']}", params={"limit": arguments["limit"]})
        else:
            response = await self.http.post(f"/{tool}", json=arguments)
        return observed(response)

    async def alisted(self) -> Sequence[str]:
        raise NotImplementedError


TARGET = AdapterTarget(
    "ASGI",
    AsgiClient,
    "fastapi",
    why="In every request over HTTP, arguments have names.",
    others={"list filtering": "Plain HTTP has no list of tools."},
)
