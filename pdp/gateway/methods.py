"""AuthZEN's mapping of MCP methods. All methods that this module does not list are rejected.

Source: AuthZEN, COAZ binding of MCP, draft of 2026-07-17. The draft has methods that MCP 2026-07-28 removed, and lacks
methods that this revision added. The resource of a request is the manifest's `resource`, or else `{tool, NAME}`.
Mappings that a server declares (`x-authzen-mapping` in a schema) are ignored, because servers are not trusted.
"""

from typing import Any, Final

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError

NEW: Final = "2026-07-28"
"""The first MCP revision without a handshake. Earlier revisions compare as smaller strings."""

READ_RESOURCE: Final = "mcp_read_resource"
GET_PROMPT: Final = "mcp_get_prompt"
"""The names of the manifest tools for `resources/read` and `prompts/get`. No server's tool can have these names."""

DECIDED: Final = {"tools/call": None, "resources/read": READ_RESOURCE, "prompts/get": GET_PROMPT}
"""Methods that are decided, each as a call of the given manifest tool; None means the tool that the request names."""

FILTERED: Final = frozenset(("tools/list", "resources/list", "resources/templates/list", "prompts/list"))
"""Methods whose results list only the items that the policy could allow this caller."""

OF_TASKS: Final = frozenset(("tasks/get", "tasks/cancel"))
"""Methods about a pending call since the revision NEW. The AuthZEN draft maps only those of the revision before."""

_OF_PROTOCOL: Final = "ping initialize server/discover notifications/initialized logging/setLevel subscriptions/listen"
PASSED: Final = frozenset(_OF_PROTOCOL.split())
"""Methods of the protocol itself, which the policy does not decide. AuthZEN's draft lacks `server/discover`."""


async def admit(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Pass on a message with a known method. Raise `MCPError` for a request with another method."""
    if ctx.method in PASSED | FILTERED | DECIDED.keys() or (ctx.method in OF_TASKS and ctx.protocol_version >= NEW):
        return await call_next(ctx)
    if ctx.request_id is None:
        return None
    raise MCPError(types.METHOD_NOT_FOUND, "Method not found", ctx.method)
