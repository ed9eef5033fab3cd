"""The Claude Agent SDK: tools of servers in this process run inside the decision; what the client runs is refused.

A held call is answered with the text that names its approval, and the model makes it again. The client's own pause
(`defer`) is not used: of several calls that it held in one turn only the last one came back, as was seen in 2.1.330.
"""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any, Final

from pdp.adapters.guard.guard import CallOutcome, FrameworkCall, OutcomeKind, SessionSource, ToolGuard
from pdp.errors import UsageError
from pdp.hooks.home import HookPolicy
from pdp.installed import extra
from pdp.pep import Pep

with extra("claude-agent-sdk"):
    import mcp_types as types
    from claude_agent_sdk import ClaudeAgentOptions, HookMatcher
    from mcp import Client

    from pdp.adapters.mcp import content, listed_page, look, own_of, running, told
    from pdp.hooks.call import Behaviour, HookAnswer, Moment
    from pdp.hooks.decide import answer
    from pdp.hooks.dialects import CLAUDE_CODE, http_body


_EVENTS: Final = ("PreToolUse", "PostToolUse", "PostToolUseFailure")
_CALL_ID: Final = "claudecode/toolUseId"
_MOST_CALLS: Final = 1024  # that were announced and have not come; the client's own rules refuse some
_UNKNOWN: Final = "pep.internal_error: the client did not announce this call, and nothing ran"

_log = logging.getLogger("pdp.adapters")


async def guarded_claude_options(
    options: ClaudeAgentOptions, pep: Pep, session: SessionSource, policy: HookPolicy | None = None
) -> ClaudeAgentOptions:
    """Return options whose tools run on ALLOW alone: those of SDK servers, by the names that their `@tool` has.

    Settings of the machine and of the repository are not loaded unless `setting_sources` names them.

    Args:
        options: the user's own, unchanged. Hooks of theirs stay.
        pep: who decides.
        session: whose calls these are. A function gets the input of the client's hook without the model's arguments:
            `session_id`, `cwd`, `agent_type` and so on; an empty one when tools are listed.
        policy: decides the client's own tools and its other servers, as `pdp hook` does. Without it there are none.

    Raises:
        UsageError: a tool is not as the manifest declares it, two servers have one of the same name, there are
            `extra_args`, or tools of the client or other servers that nothing would decide.
    """
    if not isinstance(options.mcp_servers, dict):
        raise UsageError("mcp_servers is a file or text", hint="give a dict, so that each server can be guarded")
    if options.extra_args:
        raise UsageError("extra_args may take the hooks away, as `bare` does", hint="use the options of the SDK")
    servers: dict[str, Any] = dict(options.mcp_servers)
    own = [name for name, each in servers.items() if each.get("type") == "sdk"]
    if policy is None and (options.tools or len(own) < len(servers)):
        raise UsageError(
            "nothing decides the client's own tools and servers outside of this process",
            hint="leave `tools` and such servers out, or give the policy of `pdp hook` (pdp.hooks.home.open_policy)",
        )
    guard = _ClaudeTools(ToolGuard(pep, session), frozenset(own), policy)
    for name in own:
        servers[name] = {**servers[name], "instance": await guard.guarded(servers[name]["instance"])}
    hooks: dict[Any, list[HookMatcher]] = {**(options.hooks or {})}
    for event in _EVENTS:
        hooks[event] = [HookMatcher(hooks=[guard.asked], on_failure="block"), *hooks.get(event, ())]
    return replace(
        options,
        mcp_servers=servers,
        strict_mcp_config=True,
        tools=[] if policy is None else options.tools,
        setting_sources=options.setting_sources or [],
        env={**options.env, "CLAUDE_CODE_SIMPLE": ""},  # set to anything, it takes the hooks away
        hooks=hooks,
    )


class _ClaudeTools:
    def __init__(self, guard: ToolGuard, servers: frozenset[str], policy: HookPolicy | None) -> None:
        self._guard, self._servers, self._policy = guard, servers, policy
        self._names = set[str]()
        self._announced: OrderedDict[str, Mapping[str, Any]] = OrderedDict()

    async def guarded(self, server: Any) -> Any:
        """Return the server with its tools inside of decisions; nothing stands between these and the tools."""
        async with Client(server) as client:
            pages = [await client.list_tools()]
            while pages[-1].next_cursor is not None:
                pages.append(await client.list_tools(cursor=pages[-1].next_cursor))
        schemas = {tool.name: tool.input_schema for page in pages for tool in page.tools}
        if twice := self._names & schemas.keys():
            raise UsageError(f"two servers have a tool of the same name: {sorted(twice)}", hint="rename one")
        self._names |= schemas.keys()
        self._guard.check(schemas)
        own = copy(server)
        own.middleware = [*server.middleware, self._served]
        return own

    async def asked(self, given: Any, *_: Any) -> Any:
        """Be the client's hook: note a call that a server of ours will get, and decide any other by the policy."""
        moment = Moment.BEFORE
        try:
            source = given.get("mcp_server") or {}
            if source.get("source") == "sdk" and source.get("name") in self._servers:
                if given["hook_event_name"] == "PreToolUse":
                    known = {name: value for name, value in given.items() if name != "tool_input"}
                    self._announced[given["tool_use_id"]] = known
                    if len(self._announced) > _MOST_CALLS:
                        self._announced.popitem(last=False)
                return {}
            call = CLAUDE_CODE.read(given)
            moment = call.moment
            said = HookAnswer(Behaviour.DENY, f"{call.tool}: nothing decides this tool here")
            if self._policy is not None:
                said = await answer(call, self._policy)
        except Exception:  # noqa: BLE001 - the client goes on after what it cannot read
            _log.exception("a hook could not be answered, which is a DENY")
            said = HookAnswer(Behaviour.DENY, "the call cannot be decided")
        return http_body(said, moment)

    async def _served(self, ctx: Any, call_next: Any) -> Any:
        """Be the middleware of a server."""
        if ctx.method == "tools/list":
            page = await listed_page(self._guard, ctx, call_next)
            shown = await self._guard.avisible([tool["name"] for tool in page["tools"]], {})
            return {**page, "tools": [tool for tool in page["tools"] if tool["name"] in shown]}
        if ctx.method != "tools/call":
            return await call_next(ctx)
        params = types.CallToolRequestParams.model_validate(ctx.params or {}, by_name=False)
        call_id = str((params.meta or {}).get(_CALL_ID))
        if (known := self._announced.pop(call_id, None)) is None:
            return told(CallOutcome(OutcomeKind.DENIED, _UNKNOWN), None, ctx, params)
        await look(self._guard, ctx, call_next, params.name)
        ids = (known.get("agent_type"), known.get("session_id"))
        call = FrameworkCall(params.name, params.arguments or {}, call_id, known, *ids, pauses=False)
        own = own_of(outcome := await self._guard.acall(call, running(ctx, call_next), content))
        return told(outcome, None, ctx, params) if own is None else own
