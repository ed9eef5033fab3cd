"""The formats in which each client writes calls and reads answers, with the versions that were tested."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pdp.hooks.call import Behaviour, BuiltIn, HookAnswer, HookCall, HookInputError, Kind, Moment, Output

_TOOL: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")
_ID: Final = re.compile(r"[A-Za-z0-9_.:|-]{1,256}")
_PATH: Final = re.compile(r"/[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{0,4095}")
_LONGEST: Final = 4000


def reason(answer: HookAnswer) -> str:
    """Return why a call does not run, and which call to make instead. The text has no control characters."""
    text = "".join(letter if letter.isprintable() else " " for letter in answer.message)
    text = " ".join(text.split()) or "The policy does not allow this call."
    if answer.behaviour is Behaviour.CORRECT:
        text = f"{text[:_LONGEST]} Call the tool again with exactly these arguments: {json.dumps(answer.arguments)}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... (cut)"


def printed(**members: Any) -> Output:
    """Return an output with one JSON object. Any other text on standard output would make the answer invalid."""
    return Output(0, stdout=f"{json.dumps(members)}\n")


@dataclass(slots=True, kw_only=True)
class ClientDialect:
    """The format of one client's calls and answers. `call` is the field of a call's id; None if calls have no ids.

    `can_ask` is true if the client really asks a person on ASK. `corrected` names the answer's field for other
    arguments, and its further fields; None if the client accepts no other arguments.
    """

    name: str
    events: Mapping[str, Moment]
    built_in: Mapping[str, BuiltIn]
    session: str = "session_id"
    call: str | None = "tool_use_id"
    result: str = "tool_response"
    can_ask: bool = False
    corrected: tuple[str, Mapping[str, str]] | None = None

    def read(self, body: Any) -> HookCall:
        """Return the call in the client's input. Raise `HookInputError`, which names a wrong field or unknown event."""
        if not isinstance(body, Mapping):
            raise HookInputError(f"{self.name}: expected a JSON object but got {type(body).__name__}")
        event, arguments = body.get("hook_event_name"), body.get("tool_input")
        if not isinstance(event, str) or event not in self.events:
            raise self._error("hook_event_name", f"one of {', '.join(self.events)}", event)
        if self.events[event] is Moment.END:
            session, cwd = self._text(body, self.session, _ID), self._text(body, "cwd", _PATH)
            return HookCall(self.name, Moment.END, session, None, "", {}, cwd)
        if not isinstance(arguments, dict):
            raise self._error("tool_input", "an object", arguments)
        moment, failed = self.events[event], event.endswith("Failure")
        # At the moment PERMISSION, a client may omit the call's id.
        key = self.call if moment is not Moment.PERMISSION or self.call in body else None
        tool, session = self._text(body, "tool_name", _TOOL), self._text(body, self.session, _ID)
        call_id = self._text(body, key, _ID) if key else None
        result = body.get(self.result) if moment is Moment.AFTER and not failed else None
        cwd, own = self._text(body, "cwd", _PATH), self.built_in.get(tool)
        return HookCall(self.name, moment, session, call_id, tool, arguments, cwd, own, result, failed)

    def write(self, answer: HookAnswer, moment: Moment) -> Output:
        """Return the answer in the client's format. If the client's input was no valid call, `moment` is BEFORE.

        At the moment PERMISSION, ASK is an empty output, because the client itself then asks the person.
        """
        is_asked = answer.behaviour is Behaviour.ASK and moment is Moment.PERMISSION
        if is_asked or answer.behaviour is Behaviour.PASS:
            return Output(0)
        if self.corrected and answer.behaviour is Behaviour.CORRECT and moment is Moment.BEFORE:
            name, members = self.corrected
            return printed(hookSpecificOutput={**members, name: answer.arguments})
        return Output(2, stderr=f"{reason(answer)}\n")

    def _text(self, body: Mapping[str, Any], key: str, pattern: re.Pattern[str]) -> str:
        value = body.get(key)
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise self._error(key, f"a text like {pattern.pattern}", value)
        return value

    def _error(self, key: str, expected: str, value: object) -> HookInputError:
        got = ascii(value[:80]) if isinstance(value, str) else type(value).__name__
        return HookInputError(f"{self.name}: {key}: expected {expected} but got {got}", hint="run `pdp hook check`")


_PLANS: Final = (
    "AskUserQuestion", "BashOutput", "EnterPlanMode", "ExitPlanMode", "KillShell", "ListAgents", "ListMcpResourcesTool",
    "ReportFindings", "Skill", "StructuredOutput", "TaskCreate", "TaskGet", "TaskList", "TaskOutput", "TaskStop",
    "TaskUpdate", "TodoWrite", "ToolSearch", "WaitForMcpServers",
)  # fmt: skip
# The origins of MCP servers that the user or the organisation controls. The servers of other origins can be added by a
# repository.
_TRUSTED_SOURCES: Final = ("user", "local", "dynamic", "managed", "enterprise", "claudeai", "sdk")
_OTHER_SOURCES: Final = ("project", "plugin", "agent")


class _ClaudeCode(ClientDialect):
    """Claude Code, tested with the command and http hooks of version 2.1.330."""

    def read(self, body: Any) -> HookCall:
        """Return the call. If a repository can define the tool's server, the server's source precedes the tool name."""
        call = super().read(body)
        server = body.get("mcp_server")
        if server is None and not call.tool.startswith("mcp__"):
            return call
        source = server.get("source") if isinstance(server, dict) else None
        prefix = "" if source in _TRUSTED_SOURCES else f"{source if source in _OTHER_SOURCES else 'unknown'}."
        return replace(call, tool=f"{prefix}{call.tool}", built_in=None)

    def write(self, answer: HookAnswer, moment: Moment) -> Output:
        """Return the answer. A correction contains no decision, so the client's own rules see the new arguments."""
        if moment is Moment.BEFORE and answer.behaviour is Behaviour.ASK:
            return printed(hookSpecificOutput=_decision("ask", reason(answer)))
        output = super().write(answer, moment)
        # The client ignores the exit code of this event, so the denial is printed as JSON.
        if moment is Moment.PERMISSION and output.exit_code:
            decision = {"behavior": "deny", "message": reason(answer)}
            return printed(hookSpecificOutput={"hookEventName": "PermissionRequest", "decision": decision})
        return output


CLAUDE_CODE: Final = _ClaudeCode(
    name="claude-code",
    can_ask=True,
    events={"PreToolUse": Moment.BEFORE, "PermissionRequest": Moment.PERMISSION}
    | dict.fromkeys(("PostToolUse", "PostToolUseFailure"), Moment.AFTER)
    | {"SessionEnd": Moment.END},
    corrected=("updatedInput", {"hookEventName": "PreToolUse"}),
    built_in={
        "Read": BuiltIn(Kind.READ, ("file_path",)),
        "LSP": BuiltIn(Kind.READ, ("filePath",)),
        **dict.fromkeys(("Write", "Edit", "MultiEdit"), BuiltIn(Kind.WRITE, ("file_path",))),
        "NotebookEdit": BuiltIn(Kind.WRITE, ("notebook_path",)),
        # A search pattern may be a path that leaves the workspace, so it counts as a path.
        "Glob": BuiltIn(Kind.SEARCH, ("path", "pattern")),
        "Grep": BuiltIn(Kind.SEARCH, ("path",)),
        "WebFetch": BuiltIn(Kind.FETCH, ("url",)),
        "WebSearch": BuiltIn(Kind.WEB_SEARCH, ("query",)),
        # A resource of an MCP server, like a page, can tell the server what was read before.
        **dict.fromkeys(("ReadMcpResourceTool", "ReadMcpResourceDirTool"), BuiltIn(Kind.FETCH, ("uri",))),
        **dict.fromkeys(("Bash", "Monitor"), BuiltIn(Kind.SHELL, ("command",))),
        **dict.fromkeys(("Agent", "Task"), BuiltIn(Kind.DELEGATE)),
        **dict.fromkeys(_PLANS, BuiltIn(Kind.PLAN)),
    },
)


def http_body(answer: HookAnswer, moment: Moment) -> dict[str, Any]:
    """Return the body that answers an http hook. An http hook has no exit code, so the body contains the decision."""
    output = CLAUDE_CODE.write(answer, moment)
    if not output.exit_code:
        return dict(json.loads(output.stdout or "{}"))
    if moment in (Moment.AFTER, Moment.END):
        return {"decision": "block", "reason": reason(answer)}
    return {"hookSpecificOutput": _decision("deny", reason(answer))}


def _decision(decision: str, why: str) -> dict[str, Any]:
    return {"hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": why}


class _Codex(ClientDialect):
    """Codex, tested with 0.169.0. Codex cannot ask a person, and an unexpected field makes the whole answer invalid.

    A command's `cwd` may be a folder that the model named, so the client's own folder is read from the transcript.
    """

    def read(self, body: Any) -> HookCall:
        """Return the call. If a command runs in another folder than the client, `workdir` names that folder."""
        call = super().read(body)
        if call.tool != "Bash" or call.cwd == (folder := _folder(body.get("transcript_path"))):
            return call
        return replace(call, arguments={**call.arguments, "workdir": call.cwd}, cwd=folder or call.cwd)


_CODEX_PLANS: Final = (
    "close_agent", "list_mcp_resource_templates", "list_mcp_resources", "request_user_input", "update_plan",
    "wait_agent",
)  # fmt: skip
CODEX: Final = _Codex(
    name="codex",
    events={"PreToolUse": Moment.BEFORE, "PermissionRequest": Moment.PERMISSION, "PostToolUse": Moment.AFTER},
    # Codex accepts changed arguments only together with this decision. Codex still asks for its own approvals.
    corrected=("updatedInput", {"hookEventName": "PreToolUse", "permissionDecision": "allow"}),
    built_in={
        "Bash": BuiltIn(Kind.SHELL, ("command",)),
        # The argument is the whole patch, and the patch names its files.
        "apply_patch": BuiltIn(Kind.WRITE, ("command",)),
        "view_image": BuiltIn(Kind.READ, ("path",)),
        "read_mcp_resource": BuiltIn(Kind.FETCH, ("uri",)),
        **dict.fromkeys(("spawn_agent", "send_input", "resume_agent"), BuiltIn(Kind.DELEGATE)),
        **dict.fromkeys(_CODEX_PLANS, BuiltIn(Kind.PLAN)),
    },
)


def _folder(transcript: Any) -> str | None:
    """Return the folder in which a session began, from the first line of its transcript, or None."""
    try:
        with Path(transcript if Path(transcript).is_file() else "").open("rb") as file:
            folder = str(json.loads(file.readline(2**20))["payload"]["cwd"])
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None
    return folder if folder.startswith("/") else None


class _Cursor(ClientDialect):
    """Cursor 3.11 to 3.15, written from recordings that others published; not tested.

    Some versions read files without the event `preToolUse`, so `beforeReadFile` is handled as well. The client accepts
    `ask` without enforcing it, and may ignore corrected arguments, so ASK and CORRECT are sent as denials.
    """

    def read(self, body: Any) -> HookCall:
        if not isinstance(body, dict):
            return super().read(body)
        roots = body.get("workspace_roots")
        known = {**body, "cwd": roots[0] if isinstance(roots, list) and roots else body.get("cwd")}
        if body.get("hook_event_name") == "beforeReadFile":
            file = {"file_path": body.get("file_path")}
            known |= {"tool_name": "Read", "tool_input": file, "tool_use_id": "none"}
            return replace(super().read(known), call_id=None)
        return super().read(known)

    def write(self, answer: HookAnswer, moment: Moment) -> Output:
        """Return the answer. An empty object decides nothing, but Cursor takes an empty output as a missing answer."""
        output, why = super().write(answer, moment), reason(answer)
        said = {"permission": "deny", "user_message": why, "agent_message": why} if output.exit_code else {}
        return output._replace(stdout=printed(**said).stdout)


CURSOR: Final = _Cursor(
    name="cursor",
    events=dict.fromkeys(("preToolUse", "beforeReadFile"), Moment.BEFORE)
    | dict.fromkeys(("postToolUse", "postToolUseFailure"), Moment.AFTER)
    | {"sessionEnd": Moment.END},
    session="conversation_id",
    result="tool_output",
    built_in={
        **dict.fromkeys(("Read", "ReadFile"), BuiltIn(Kind.READ, ("file_path",))),
        **dict.fromkeys(("Write", "Delete"), BuiltIn(Kind.WRITE, ("file_path",))),
        "Grep": BuiltIn(Kind.SEARCH, ("path",)),
        "Shell": BuiltIn(Kind.SHELL, ("command",)),
        "Task": BuiltIn(Kind.DELEGATE),
        **dict.fromkeys(("AskQuestion", "TodoWrite"), BuiltIn(Kind.PLAN)),
    },
)


_GEMINI_PLANS: Final = (
    "activate_skill", "ask_user", "complete_task", "enter_plan_mode", "exit_plan_mode", "list_mcp_resources",
    "update_topic", "write_todos",
)  # fmt: skip


class _GeminiCli(ClientDialect):
    """Gemini CLI, tested with 0.61.0. Its calls have no ids, and no setting makes the client fail closed.

    Its `ask` waits forever without a person, so ASK is a denial. JSON would be taken as an answer, so reasons are text.
    """

    def read(self, body: Any) -> HookCall:
        call = super().read(body)
        if body.get("mcp_context") is not None or call.tool.startswith("mcp_"):
            call = replace(call, built_in=None)
        is_error = isinstance(call.executed, dict) and call.executed.get("error") is not None
        return replace(call, executed=None, failed=True) if is_error else call


GEMINI_CLI: Final = _GeminiCli(
    name="gemini-cli",
    events={"BeforeTool": Moment.BEFORE, "AfterTool": Moment.AFTER, "SessionEnd": Moment.END},
    call=None,
    corrected=("tool_input", {"hookEventName": "BeforeTool"}),
    built_in={
        "read_file": BuiltIn(Kind.READ, ("file_path",)),
        **dict.fromkeys(("write_file", "replace"), BuiltIn(Kind.WRITE, ("file_path",))),
        **dict.fromkeys(("list_directory", "grep_search"), BuiltIn(Kind.SEARCH, ("dir_path",))),
        "glob": BuiltIn(Kind.SEARCH, ("dir_path", "pattern")),
        "read_mcp_resource": BuiltIn(Kind.FETCH, ("uri",)),
        "google_web_search": BuiltIn(Kind.WEB_SEARCH, ("query",)),
        "run_shell_command": BuiltIn(Kind.SHELL, ("command",)),
        "invoke_agent": BuiltIn(Kind.DELEGATE),
        **dict.fromkeys(_GEMINI_PLANS, BuiltIn(Kind.PLAN)),
    },
)


class _CopilotCli(ClientDialect):
    """Copilot CLI, tested with 1.0.102. Only capitalised events are read, because the rest lack the event's name.

    The client denies a call after a crash of the hook, but not after a time-out or invalid output. Exit code 2 shows no
    reason, so a denial is JSON. The event for asking a person is not read, because it names tools differently.
    """

    def read(self, body: Any) -> HookCall:
        call = super().read(body)
        if call.tool != "Edit" or "input" not in call.arguments:
            return call
        # This client has two tools of this name. One takes a path, the other takes a patch.
        return replace(call, built_in=BuiltIn(Kind.WRITE, ("path", "input")["path" not in call.arguments :]))

    def write(self, answer: HookAnswer, moment: Moment) -> Output:
        output = super().write(answer, moment)
        if moment is Moment.BEFORE and output.exit_code:
            return printed(permissionDecision="deny", permissionDecisionReason=reason(answer))
        return output


_COPILOT_PLANS: Final = (
    "TodoWrite", "ask_user", "exit_plan_mode", "list_agents", "list_bash", "read_agent", "read_bash", "report_intent",
    "skill", "stop_bash", "task_complete",
)  # fmt: skip
COPILOT_CLI: Final = _CopilotCli(
    name="copilot-cli",
    events={"PreToolUse": Moment.BEFORE}
    | dict.fromkeys(("PostToolUse", "PostToolUseFailure"), Moment.AFTER)
    | {"SessionEnd": Moment.END},
    call=None,
    result="tool_result",
    corrected=("updatedInput", {"hookEventName": "PreToolUse"}),
    built_in={
        "Read": BuiltIn(Kind.READ, ("path",)),
        **dict.fromkeys(("Write", "Edit"), BuiltIn(Kind.WRITE, ("path",))),
        "Glob": BuiltIn(Kind.SEARCH, ("paths", "pattern")),
        "Grep": BuiltIn(Kind.SEARCH, ("paths",)),
        "WebFetch": BuiltIn(Kind.FETCH, ("url",)),
        "Bash": BuiltIn(Kind.SHELL, ("command",)),
        "Agent": BuiltIn(Kind.DELEGATE),
        **dict.fromkeys(_COPILOT_PLANS, BuiltIn(Kind.PLAN)),
    },
)


DIALECTS: Final = MappingProxyType(
    {dialect.name: dialect for dialect in (CLAUDE_CODE, CODEX, CURSOR, GEMINI_CLI, COPILOT_CLI)}
)
"""The dialects by client name, such as `claude-code`."""
