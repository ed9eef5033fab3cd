"""AuthZEN's mapping of MCP: which method is which request. One that is not passed, decided or filtered here is refused.

Source: AuthZEN, COAZ binding of MCP, draft of 2026-07-17, which has methods that MCP 2026-07-28 has removed, and none
of its new ones. A request's resource is what the manifest's `resource` makes of the arguments, else `{tool, NAME}`.
Mappings that a server declares (`x-authzen-mapping` in a schema) decide nothing: it is what is guarded.
"""

from typing import Any, Final

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError

NEW: Final = "2026-07-28"
"""The revision without a handshake; those before it compare as smaller."""

READ_RESOURCE: Final = "mcp_read_resource"
GET_PROMPT: Final = "mcp_get_prompt"
"""The tools of the manifest that stand for `resources/read` and `prompts/get`; no server's tool has these names."""

DECIDED: Final = {"tools/call": None, "resources/read": READ_RESOURCE, "prompts/get": GET_PROMPT}
"""Methods that are the call of a tool: of this one, else of the one that they name."""

FILTERED: Final = frozenset(("tools/list", "resources/list", "resources/templates/list", "prompts/list"))
"""Methods whose answer has what the policy could let this caller use."""

OF_TASKS: Final = frozenset(("tasks/get", "tasks/cancel"))
"""Methods about a call that waits, for who made it: since NEW. What the draft maps are those of the revision before."""

_OF_PROTOCOL: Final = "ping initialize server/discover notifications/initialized logging/setLevel subscriptions/listen"
PASSED: Final = frozenset(_OF_PROTOCOL.split())
"""Methods of the protocol itself, which the policy does not decide. The draft does not know `server/discover`."""


async def admit(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Let a message of such a method through; MCPError: it is a request of another one."""
    if ctx.method in PASSED | FILTERED | DECIDED.keys() or (ctx.method in OF_TASKS and ctx.protocol_version >= NEW):
        return await call_next(ctx)
    if ctx.request_id is None:
        return None
    raise MCPError(types.METHOD_NOT_FOUND, "Method not found", ctx.method)
