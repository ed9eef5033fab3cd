"""Claude Code: command and http hooks, 2.1.330 as run. Its tools, its servers, its PermissionRequest."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pdp.hooks.call import Behaviour, BuiltIn, HookAnswer, HookCall, Kind, Moment, Output
from pdp.hooks.dialects.hook_input import Event, read_call
from pdp.hooks.dialects.hook_output import plain, printed, reason

if TYPE_CHECKING:
    from collections.abc import Mapping

_EVENTS: Final[Mapping[str, Event]] = MappingProxyType(
    {
        "PreToolUse": Event(Moment.BEFORE),
        "PermissionRequest": Event(Moment.PERMISSION),
        "PostToolUse": Event(Moment.AFTER),
        "PostToolUseFailure": Event(Moment.AFTER, failed=True),
    }
)
_PLANS: Final = (
    "AskUserQuestion", "EnterPlanMode", "ExitPlanMode", "ListAgents", "ReportFindings", "TaskCreate", "TaskGet",
    "TaskList", "TaskStop", "TaskUpdate", "TodoWrite", "ToolSearch",
)  # fmt: skip
# Whose word a server of tools is: its person's, or the organisation's. The rest a repository can bring along.
_TRUSTED_SOURCES: Final = frozenset({"user", "local", "dynamic", "managed", "enterprise", "claudeai", "sdk"})
_OTHER_SOURCES: Final = ("project", "plugin", "agent")


class ClaudeCode:
    """Claude Code."""

    name = "claude-code"
    can_ask = True
    built_in: Mapping[str, BuiltIn] = MappingProxyType(
        {
            "Read": BuiltIn(Kind.READ, ("file_path",)),
            "Write": BuiltIn(Kind.WRITE, ("file_path",)),
            "Edit": BuiltIn(Kind.WRITE, ("file_path",)),
            "MultiEdit": BuiltIn(Kind.WRITE, ("file_path",)),
            "NotebookEdit": BuiltIn(Kind.WRITE, ("notebook_path",)),
            # A pattern may itself be a path out of the workspace.
            "Glob": BuiltIn(Kind.SEARCH, ("path", "pattern")),
            "Grep": BuiltIn(Kind.SEARCH, ("path",)),
            "WebFetch": BuiltIn(Kind.FETCH, ("url",)),
            "WebSearch": BuiltIn(Kind.WEB_SEARCH, ("query",)),
            "Bash": BuiltIn(Kind.SHELL, ("command",)),
            "Agent": BuiltIn(Kind.DELEGATE),
            "Task": BuiltIn(Kind.DELEGATE),
            **dict.fromkeys(_PLANS, BuiltIn(Kind.PLAN)),
        }
    )

    def read(self, body: Mapping[str, Any]) -> HookCall:
        """Return the call. A tool of a server that a repository can define has that source before its name."""
        call = read_call(self.name, body, _EVENTS, self.built_in)
        server = body.get("mcp_server")
        if server is None and not call.tool.startswith("mcp__"):
            return call
        source = server.get("source") if isinstance(server, dict) else None
        trusted = isinstance(source, str) and source in _TRUSTED_SOURCES
        prefix = "" if trusted else f"{source if source in _OTHER_SOURCES else 'unknown'}."
        return replace(call, tool=f"{prefix}{call.tool}", built_in=None)

    def write(self, answer: HookAnswer, moment: Moment) -> Output:
        """Return the answer. A correction decides nothing, so that the client's own rules see the new arguments."""
        if moment is Moment.BEFORE and answer.behaviour is Behaviour.CORRECT:
            return printed(hookSpecificOutput={"hookEventName": "PreToolUse", "updatedInput": answer.arguments})
        if moment is Moment.BEFORE and answer.behaviour is Behaviour.ASK:
            return printed(hookSpecificOutput=_decision("ask", reason(answer)))
        output = plain(answer, moment)
        if moment is Moment.PERMISSION and output.exit_code:  # this event takes no exit code for an answer
            return printed(hookSpecificOutput=_refusal(reason(answer)))
        return output

    def write_http(self, answer: HookAnswer, moment: Moment) -> dict[str, Any]:
        """Return the answer as the body of a response: there is no exit code, and a body says all."""
        output = self.write(answer, moment)
        if not output.exit_code:
            said: dict[str, Any] = json.loads(output.stdout or "{}")
            return said
        if moment is Moment.AFTER:
            return {"decision": "block", "reason": reason(answer)}
        return {"hookSpecificOutput": _decision("deny", reason(answer))}


def _decision(decision: str, why: str) -> dict[str, Any]:
    return {"hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": why}


def _refusal(why: str) -> dict[str, Any]:
    return {"hookEventName": "PermissionRequest", "decision": {"behavior": "deny", "message": why}}
