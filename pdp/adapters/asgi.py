"""Middleware for ASGI applications, such as FastAPI or Starlette, whose routes are tools.

A tool is found by method and path, so the application has to route by method and path, too. The policy does not see
headers and cookies. Responses are buffered, because obligations may change them, so nothing is streamed.
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
    decided_request,
    local_path,
    read_arguments,
    tools_of_openapi,
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
    """Passes a request to `app` on ALLOW, with the decided arguments. Otherwise, answers with 403 and problem+json.

    A held call gets a problem document with its `approval`; the caller repeats the request later. Forms and uploads are
    not supported, and HEAD is denied. Middleware inside of `app` must not change the tool or its arguments.

    Args:
        app: the ASGI application.
        pep: decides the calls.
        session: one session for all callers, or a function of the ASGI scope. Take the caller from the values that your
            authentication put into the scope (`scope["user"]`, `scope["state"]`); a header alone proves nothing.
        tools: the tool name of each route, such as `{"POST /wires/{id}": "initiate_wire"}`; or an OpenAPI document,
            whose `operationId`s are the names, and whose schemas are compared with the manifest.
        is_open: routes that pass without a decision, such as `GET /health` or `WEBSOCKET /news`. Requests that match
            no route, or several, are denied.
        longest: the maximum size of a request's or a response's body, in bytes.

    Raises:
        UsageError: a route cannot be read, or a tool differs from the manifest; see also `ToolGuard`.

    Example::

        guarded = AsgiMiddleware(app, pep, lambda scope: scope["state"]["session"], {"GET /notes/{id}": "read_note"})
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
        """Handle one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["type"] == "http" else scope["type"].upper()
        match = self._routes.find(method, local_path(scope))
        if match is not None and match[0].tool == OPEN:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "no tool has this path"})
        elif scope["type"] == "http":
            await self._serve(scope, match, receive, send)

    async def _serve(
        self, scope: Any, match: tuple[Route, dict[str, str]] | None, receive: Receive, send: Send
    ) -> None:
        if match is None:
            await send_problem(send, 403, "INVALID_TOOL_NAME: no tool has this method and path")
            return
        entry = self._guard.manifest.tools.get(match[0].tool)
        body = await self._body(receive)
        if body is None:
            await send_problem(send, 413, f"INVALID_ARGUMENTS: the body is longer than {self._longest} bytes")
            return
        try:
            asked = read_arguments(scope, body, match[1], {} if entry is None else entry.schema_)
        except UsageError as error:
            await send_problem(send, 400, f"INVALID_ARGUMENTS: {error.message}")
            return
        await self._run_tool(scope, match[0], asked, receive, send)

    async def _run_tool(self, scope: Any, route: Route, asked: RequestArguments, receive: Receive, send: Send) -> None:
        responses: list[HeldResponse] = []
        disconnected = asyncio.ensure_future(receive())

        async def run(decided: dict[str, Any]) -> HeldResponse:
            if disconnected.done():
                raise ToolUnavailableError("the caller disconnected", details={"effect": "none"})
            own, body = decided_request(scope, route, asked, decided)
            messages = [{"type": "http.request", "body": body, "more_body": False}]

            async def next_message() -> Message:
                return messages.pop() if messages else await asyncio.shield(disconnected)

            responses.append(response := HeldResponse(self._longest))
            await self._app(own, next_message, response.take)
            response.check()
            return response

        try:
            call = FrameworkCall(route.tool, asked.all, context=scope, pauses=False)
            outcome = await self._guard.acall(call, run, lambda made: made.content)
        finally:
            disconnected.cancel()
        if outcome.own is not None:
            await outcome.own.send(send)
        elif outcome.kind is OutcomeKind.RAN:
            await send_json(send, 200, outcome.value)
        elif outcome.kind is OutcomeKind.FAILED:
            await send_problem(send, responses[-1].error if responses else 500, outcome.text)
        else:
            await send_problem(send, 403, outcome.text, outcome)

    async def _body(self, receive: Receive) -> bytes | None:
        body, more = bytearray(), True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if message["type"] == "http.disconnect" or len(body) > self._longest:
                return None
        return bytes(body)
