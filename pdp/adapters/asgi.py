"""Tools behind plain HTTP: a middleware for ASGI applications, such as those of FastAPI or Starlette.

`session` is one for all callers, or a function of the ASGI scope: who calls is what the application's own
authentication, in front of this, has put there (`scope["user"]`, `scope["state"]`). A header by itself says nothing.

A route is decided by its method and path; the application has to route alike. What it takes from headers and cookies
is not decided on. A response is held back until it is whole, so that obligations hold: nothing is streamed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import Any, Final

from pdp.adapters.guard.guard import FrameworkCall, OutcomeKind, SessionSource, ToolGuard
from pdp.adapters.http.request import (
    OPEN,
    RequestArguments,
    Route,
    ToolRoutes,
    local_path,
    read_arguments,
    tools_of_openapi,
    written,
)
from pdp.adapters.http.response import HeldResponse, send_json, send_problem
from pdp.errors import UsageError
from pdp.execution.failures import ToolUnavailableError
from pdp.pep import Pep

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

_LONGEST: Final = 1_048_576


class AsgiMiddleware:
    """Passes a request on to `app` on ALLOW alone, with exactly the decided arguments; else 403 as problem+json.

    Args:
        tools: by route, as `POST /wires/{id}`, the name of its tool; or an OpenAPI document, whose `operationId`s they
            are, and whose schemas are held against the manifest.
        is_open: routes that are no tools and pass undecided, as `GET /health` or `WEBSOCKET /news`. Any other request
            is denied, as one of which two routes could be meant.
        longest: bytes of a request's or a response's body at most.

    Raises:
        UsageError: a route cannot be read, or a tool is not as declared; else as of `ToolGuard`.
    """

    def __init__(
        self,
        app: App,
        pep: Pep,
        session: SessionSource,
        tools: Mapping[str, Any],
        *,
        is_open: Collection[str] = (),
        longest: int = _LONGEST,
    ) -> None:
        self._app, self._guard, self._longest = app, ToolGuard(pep, session), longest
        routes, schemas = tools_of_openapi(tools) if "openapi" in tools else (tools, {})
        self._guard.check(schemas)
        self._routes = ToolRoutes({route: tool for route, tool in routes.items() if route not in is_open}, is_open)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["type"] == "http" else scope["type"].upper()
        found = self._routes.find(method, local_path(scope))
        if found is not None and found[0].tool == OPEN:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "no tool is behind this"})
        elif scope["type"] == "http":
            await self._answered(scope, found, receive, send)

    async def _answered(
        self, scope: Any, found: tuple[Route, dict[str, str]] | None, receive: Receive, send: Send
    ) -> None:
        if found is None:
            await send_problem(send, 403, "INVALID_TOOL_NAME: no tool is behind this method and path")
            return
        entry = self._guard.manifest.tools.get(found[0].tool)
        body = await self._body(receive)
        if body is None:
            await send_problem(send, 413, f"INVALID_ARGUMENTS: the body is longer than {self._longest} bytes")
            return
        try:
            asked = read_arguments(scope, body, found[1], {} if entry is None else entry.schema_)
        except UsageError as error:
            await send_problem(send, 400, f"INVALID_ARGUMENTS: {error.message}")
            return
        await self._made(scope, found[0], asked, receive, send)

    async def _made(self, scope: Any, route: Route, asked: RequestArguments, receive: Receive, send: Send) -> None:
        responses: list[HeldResponse] = []
        gone = asyncio.ensure_future(receive())

        async def run(decided: dict[str, Any]) -> HeldResponse:
            if gone.done():
                raise ToolUnavailableError("the caller is gone", details={"effect": "none"})
            own, body = written(scope, route, asked, decided)
            messages = [{"type": "http.request", "body": body, "more_body": False}]

            async def given() -> Message:
                return messages.pop() if messages else await asyncio.shield(gone)

            responses.append(response := HeldResponse(self._longest))
            await self._app(own, given, response.take)
            response.check()
            return response

        try:
            call = FrameworkCall(route.tool, asked.all, context=scope, pauses=False)
            outcome = await self._guard.acall(call, run, lambda made: made.content)
        finally:
            gone.cancel()
        if outcome.own is not None:
            await outcome.own.send(send)
        elif outcome.kind is OutcomeKind.RAN:
            await send_json(send, 200, outcome.value)
        elif outcome.kind is OutcomeKind.FAILED:
            await send_problem(send, responses[-1].error if responses else 500, outcome.text)
        else:
            await send_problem(send, 403, outcome.text, outcome)

    async def _body(self, receive: Receive) -> bytes | None:
        """Return a request's body; None: it is too long, or its client is gone."""
        body, more = bytearray(), True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if message["type"] == "http.disconnect" or len(body) > self._longest:
                return None
        return bytes(body)
