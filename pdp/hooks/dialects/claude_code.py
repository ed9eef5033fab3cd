"""Claude Code: command and http hooks, 2.1.330 as run."""

import json
from dataclasses import replace
from typing import Any, Final

from pdp.hooks.call import Behaviour, BuiltIn, HookAnswer, HookCall, Kind, Moment, Output
from pdp.hooks.dialects.client import ClientDialect, printed, reason

_PLANS: Final = (
    "AskUserQuestion", "EnterPlanMode", "ExitPlanMode", "ListAgents", "ReportFindings", "TaskCreate", "TaskGet",
    "TaskList", "TaskStop", "TaskUpdate", "TodoWrite", "ToolSearch",
)  # fmt: skip
# Whose word a server of tools is: its person's, or the organisation's. The rest a repository can bring along.
_TRUSTED_SOURCES: Final = ("user", "local", "dynamic", "managed", "enterprise", "claudeai", "sdk")
_OTHER_SOURCES: Final = ("project", "plugin", "agent")


class _ClaudeCode(ClientDialect):
    def read(self, body: Any) -> HookCall:
        """Return the call. A tool of a server that a repository can define has that source before its name."""
        call = super().read(body)
        server = body.get("mcp_server")
        if server is None and not call.tool.startswith("mcp__"):
            return call
        source = server.get("source") if isinstance(server, dict) else None
        prefix = "" if source in _TRUSTED_SOURCES else f"{source if source in _OTHER_SOURCES else 'unknown'}."
        return replace(call, tool=f"{prefix}{call.tool}", built_in=None)

    def write(self, answer: HookAnswer, moment: Moment) -> Output:
        """Return the answer. A correction decides nothing, so that the client's own rules see the new arguments."""
        if moment is Moment.BEFORE and answer.behaviour is Behaviour.ASK:
            return printed(hookSpecificOutput=_decision("ask", reason(answer)))
        output = super().write(answer, moment)
        if moment is Moment.PERMISSION and output.exit_code:  # this event takes no exit code for an answer
            decision = {"behavior": "deny", "message": reason(answer)}
            return printed(hookSpecificOutput={"hookEventName": "PermissionRequest", "decision": decision})
        return output


CLAUDE_CODE: Final = _ClaudeCode(
    name="claude-code",
    can_ask=True,
    events={"PreToolUse": Moment.BEFORE, "PermissionRequest": Moment.PERMISSION}
    | dict.fromkeys(("PostToolUse", "PostToolUseFailure"), Moment.AFTER),
    corrected=("updatedInput", {"hookEventName": "PreToolUse"}),
    built_in={
        "Read": BuiltIn(Kind.READ, ("file_path",)),
        **dict.fromkeys(("Write", "Edit", "MultiEdit"), BuiltIn(Kind.WRITE, ("file_path",))),
        "NotebookEdit": BuiltIn(Kind.WRITE, ("notebook_path",)),
        # A pattern may itself be a path out of the workspace.
        "Glob": BuiltIn(Kind.SEARCH, ("path", "pattern")),
        "Grep": BuiltIn(Kind.SEARCH, ("path",)),
        "WebFetch": BuiltIn(Kind.FETCH, ("url",)),
        "WebSearch": BuiltIn(Kind.WEB_SEARCH, ("query",)),
        "Bash": BuiltIn(Kind.SHELL, ("command",)),
        **dict.fromkeys(("Agent", "Task"), BuiltIn(Kind.DELEGATE)),
        **dict.fromkeys(_PLANS, BuiltIn(Kind.PLAN)),
    },
)


def http_body(answer: HookAnswer, moment: Moment) -> dict[str, Any]:
    """Return what an http hook of the client is answered: there is no exit code, so that the body says all."""
    output = CLAUDE_CODE.write(answer, moment)
    if not output.exit_code:
        return dict(json.loads(output.stdout or "{}"))
    if moment is Moment.AFTER:
        return {"decision": "block", "reason": reason(answer)}
    return {"hookSpecificOutput": _decision("deny", reason(answer))}


def _decision(decision: str, why: str) -> dict[str, Any]:
    return {"hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": why}
