"""Guard the Claude Agent SDK: a `Pep` decides the tools of SDK servers, and a hook policy all other tools.

A held call is answered with text that names its approval, and the model repeats the call. The client's pause (`defer`)
is not used, because version 2.1.330 resumed only the last of several calls that were held in one turn.
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

    from pdp.adapters.mcp import check_before_call, client_result, content, listed_page, server_result, tool_runner
    from pdp.hooks.call import Behaviour, HookAnswer, Moment
    from pdp.hooks.decide import answer
    from pdp.hooks.dialects import CLAUDE_CODE, http_body


_EVENTS: Final = ("PreToolUse", "PostToolUse", "PostToolUseFailure")
_CALL_ID: Final = "claudecode/toolUseId"
# The maximum number of announced calls that are kept. Calls that the client's own rules reject never arrive.
_MOST_CALLS: Final = 1024
_UNKNOWN: Final = "pep.internal_error: the client did not announce this call, so the tool did not run"

_log = logging.getLogger("pdp.adapters")


async def guarded_claude_options(
    options: ClaudeAgentOptions, pep: Pep, session: SessionSource, policy: HookPolicy | None = None
) -> ClaudeAgentOptions:
    """Return options whose tools run on ALLOW only. The policy sees SDK tools by the name in `@tool`.

    Settings of the machine and of the repository are loaded only if `setting_sources` names them.

    If a tool needs an idempotency key, the key is derived from session and arguments, so equal calls of a session run
    once. `allowed_tools`, `can_use_tool` and modes can reject a call, but not allow it. If the engine is down when a
    session begins, the session has no tools.

    Args:
        options: the options to guard. They are not changed, and the result keeps their hooks.
        pep: decides the tools of SDK servers.
        session: one session for all calls, or a function of the input of the client's hook: `session_id`, `cwd`,
            `agent_type` and so on, without the model's arguments. The function gets `{}` when tools are listed.
        policy: decides the client's own tools and its other servers, as `pdp hook` does. Without `policy`, all are off.

    Raises:
        UsageError: a tool differs from the manifest; two servers have a tool of the same name; `extra_args` is set; or
            the client's own tools or other servers are used without `policy`.

    Example::

        async with ClaudeSDKClient(await guarded_claude_options(options, pep, session)) as client:
            ...
    """
    if not isinstance(options.mcp_servers, dict):
        raise UsageError("mcp_servers must be a dict, so that each server can be guarded", hint="pass a dict")
    if options.extra_args:
        raise UsageError(
            "`extra_args` is not allowed, because arguments such as `bare` disable the hooks",
            hint="remove `extra_args`; use the other fields of ClaudeAgentOptions",
        )
    servers: dict[str, Any] = dict(options.mcp_servers)
    sdk_servers = [name for name, each in servers.items() if each.get("type") == "sdk"]
    if policy is None and (options.tools or len(sdk_servers) < len(servers)):
        raise UsageError(
            "the client has its own tools or servers outside of this process, but no policy that decides their calls",
            hint="remove `tools` and these servers, or pass `policy`: open_policy(...) of pdp.files",
        )
    guard = _ClaudeTools(ToolGuard(pep, session), frozenset(sdk_servers), policy)
    for name in sdk_servers:
        servers[name] = {**servers[name], "instance": await guard.guarded(servers[name]["instance"])}
    hooks: dict[Any, list[HookMatcher]] = {**(options.hooks or {})}
    for event in _EVENTS:
        hooks[event] = [HookMatcher(hooks=[guard.on_hook], on_failure="block"), *hooks.get(event, ())]
    return replace(
        options,
        mcp_servers=servers,
        strict_mcp_config=True,
        tools=[] if policy is None else options.tools,
        setting_sources=options.setting_sources or [],
        # Any value of this variable disables the hooks, so it is set to an empty text.
        env={**options.env, "CLAUDE_CODE_SIMPLE": ""},
        hooks=hooks,
    )


class _ClaudeTools:
    def __init__(self, guard: ToolGuard, servers: frozenset[str], policy: HookPolicy | None) -> None:
        self._guard, self._servers, self._policy = guard, servers, policy
        self._names = set[str]()
        self._announced: OrderedDict[str, Mapping[str, Any]] = OrderedDict()

    async def guarded(self, server: Any) -> Any:
        async with Client(server) as client:
            pages = [await client.list_tools()]
            while pages[-1].next_cursor is not None:
                pages.append(await client.list_tools(cursor=pages[-1].next_cursor))
        schemas = {tool.name: tool.input_schema for page in pages for tool in page.tools}
        if twice := self._names & schemas.keys():
            raise UsageError(f"two servers have a tool of the same name: {sorted(twice)}", hint="rename one")
        self._names |= schemas.keys()
        self._guard.check(schemas)
        guarded_server = copy(server)
        guarded_server.middleware = [*server.middleware, self._served]
        return guarded_server

    async def on_hook(self, hook_input: Any, *_: Any) -> Any:
        """Answer the client's hook: note calls for SDK servers, and let the policy decide all other calls."""
        moment = Moment.BEFORE
        try:
            source = hook_input.get("mcp_server") or {}
            if source.get("source") == "sdk" and source.get("name") in self._servers:
                if hook_input["hook_event_name"] == "PreToolUse":
                    known = {name: value for name, value in hook_input.items() if name != "tool_input"}
                    self._announced[hook_input["tool_use_id"]] = known
                    if len(self._announced) > _MOST_CALLS:
                        self._announced.popitem(last=False)
                return {}
            call = CLAUDE_CODE.read(hook_input)
            moment = call.moment
            result = HookAnswer(Behaviour.DENY, f"{call.tool}: no policy decides calls of this tool")
            if self._policy is not None:
                result = await answer(call, self._policy)
        except Exception:  # noqa: BLE001 - the client continues if it cannot read an answer
            _log.exception("a hook failed, so the call is denied")
            result = HookAnswer(Behaviour.DENY, "the call could not be decided")
        return http_body(result, moment)

    async def _served(self, ctx: Any, call_next: Any) -> Any:
        if ctx.method == "tools/list":
            page = await listed_page(self._guard, ctx, call_next)
            shown = await self._guard.avisible([tool["name"] for tool in page["tools"]], {})
            return {**page, "tools": [tool for tool in page["tools"] if tool["name"] in shown]}
        if ctx.method != "tools/call":
            return await call_next(ctx)
        params = types.CallToolRequestParams.model_validate(ctx.params or {}, by_name=False)
        call_id = str((params.meta or {}).get(_CALL_ID))
        if (known := self._announced.pop(call_id, None)) is None:
            return client_result(CallOutcome(OutcomeKind.DENIED, _UNKNOWN), None, ctx, params)
        await check_before_call(self._guard, ctx, call_next, params.name)
        ids = (known.get("agent_type"), known.get("session_id"))
        call = FrameworkCall(params.name, params.arguments or {}, call_id, known, *ids, pauses=False)
        own = server_result(outcome := await self._guard.acall(call, tool_runner(ctx, call_next), content))
        return client_result(outcome, None, ctx, params) if own is None else own
