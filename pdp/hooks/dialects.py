"""How each client spells its calls and reads its answers; docs/hooks.md says what was tried."""

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
    """Return why a call does not run, and what to call in its place; never empty, without control characters."""
    text = "".join(letter if letter.isprintable() else " " for letter in answer.message)
    text = " ".join(text.split()) or "The policy does not allow this call."
    if answer.behaviour is Behaviour.CORRECT:
        text = f"{text[:_LONGEST]} Call the tool again with exactly these arguments: {json.dumps(answer.arguments)}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... (cut)"


def printed(**members: Any) -> Output:
    """Return one JSON object on standard output, and nothing else: one more word there voids it."""
    return Output(0, stdout=f"{json.dumps(members)}\n")


@dataclass(slots=True, kw_only=True)
class ClientDialect:
    """A client that takes yes and no, and spells fields so; `call` None: its calls have no ids.

    `can_ask`: its person is really asked on ASK, and a refusal stops the call. `corrected`: how it calls other
    arguments in an answer, and what stands beside them; None: it takes none.
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
        """Return the call in what the client sent; HookInputError: which field is wrong, or an unknown event."""
        if not isinstance(body, Mapping):
            raise HookInputError(f"{self.name}: expected a JSON object but got {type(body).__name__}")
        event, arguments = body.get("hook_event_name"), body.get("tool_input")
        if not isinstance(event, str) or event not in self.events:
            raise self._error("hook_event_name", f"one of {', '.join(self.events)}", event)
        if not isinstance(arguments, dict):
            raise self._error("tool_input", "an object", arguments)
        moment, failed = self.events[event], event.endswith("Failure")
        # An id may be left out where nothing runs.
        key = self.call if moment is not Moment.PERMISSION or self.call in body else None
        tool, session = self._text(body, "tool_name", _TOOL), self._text(body, self.session, _ID)
        call_id = self._text(body, key, _ID) if key else None
        result = body.get(self.result) if moment is Moment.AFTER and not failed else None
        cwd, own = self._text(body, "cwd", _PATH), self.built_in.get(tool)
        return HookCall(self.name, moment, session, call_id, tool, arguments, cwd, own, result, failed)

    def write(self, answer: HookAnswer, moment: Moment) -> Output:
        """Return the answer as the client reads it; to what was no call, `moment` is BEFORE.

        In PERMISSION the person is asked by the client itself.
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
    "AskUserQuestion", "EnterPlanMode", "ExitPlanMode", "ListAgents", "ReportFindings", "TaskCreate", "TaskGet",
    "TaskList", "TaskStop", "TaskUpdate", "TodoWrite", "ToolSearch",
)  # fmt: skip
# Whose word a server of tools is: its person's, or the organisation's. The rest a repository can bring along.
_TRUSTED_SOURCES: Final = ("user", "local", "dynamic", "managed", "enterprise", "claudeai", "sdk")
_OTHER_SOURCES: Final = ("project", "plugin", "agent")


class _ClaudeCode(ClientDialect):
    """Claude Code 2.1.330, tried: command and http hooks."""

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


class _Codex(ClientDialect):
    """Codex 0.169.0, tried. It cannot ask a person, and an unexpected member voids the whole answer.

    Its hooks run only after their person trusted them. Text that is sent to a running program asks no hook. A model may
    name the folder of a command as if the client worked there; the transcript has the client's own folder.
    """

    def read(self, body: Any) -> HookCall:
        """Return the call; a command that runs elsewhere, or nobody knows where, has that as the argument `workdir`."""
        call = super().read(body)
        if call.tool != "Bash" or call.cwd == (folder := _folder(body.get("transcript_path"))):
            return call
        return replace(call, arguments={**call.arguments, "workdir": call.cwd}, cwd=folder or call.cwd)


CODEX: Final = _Codex(
    name="codex",
    events={"PreToolUse": Moment.BEFORE, "PermissionRequest": Moment.PERMISSION, "PostToolUse": Moment.AFTER},
    # Only with this decision are other arguments taken. Its own approvals still come after.
    corrected=("updatedInput", {"hookEventName": "PreToolUse", "permissionDecision": "allow"}),
    built_in={
        "Bash": BuiltIn(Kind.SHELL, ("command",)),
        "apply_patch": BuiltIn(Kind.WRITE, ("command",)),  # the whole patch, which names its files
        "view_image": BuiltIn(Kind.READ, ("path",)),
        "spawn_agent": BuiltIn(Kind.DELEGATE),
        **dict.fromkeys(("update_plan", "request_user_input"), BuiltIn(Kind.PLAN)),
    },
)


def _folder(transcript: Any) -> str | None:
    """Return the folder in which a session began, by the first line of its transcript; None: it does not say."""
    try:
        with Path(transcript if Path(transcript).is_file() else "").open("rb") as file:
            folder = str(json.loads(file.readline(2**20))["payload"]["cwd"])
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None
    return folder if folder.startswith("/") else None


class _Cursor(ClientDialect):
    """Cursor 3.11 to 3.15, from what others recorded; not tried.

    Some versions read files without `preToolUse`, so `beforeReadFile` is read as well. The client accepts `ask` without
    enforcing it, and may ignore other arguments: both are denials.
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
        """Return the answer: an empty object decides nothing; nothing at all would be no answer to this client."""
        output, why = super().write(answer, moment), reason(answer)
        said = {"permission": "deny", "user_message": why, "agent_message": why} if output.exit_code else {}
        return output._replace(stdout=printed(**said).stdout)


CURSOR: Final = _Cursor(
    name="cursor",
    events=dict.fromkeys(("preToolUse", "beforeReadFile"), Moment.BEFORE)
    | dict.fromkeys(("postToolUse", "postToolUseFailure"), Moment.AFTER),
    session="conversation_id",
    result="tool_output",
    built_in={
        **dict.fromkeys(("Read", "ReadFile"), BuiltIn(Kind.READ, ("file_path",))),
        **dict.fromkeys(("Write", "Delete"), BuiltIn(Kind.WRITE, ("file_path",))),
        "Grep": BuiltIn(Kind.SEARCH, ("path",)),
        "Shell": BuiltIn(Kind.SHELL, ("command",)),
        "Task": BuiltIn(Kind.DELEGATE),
    },
)


_GEMINI_PLANS: Final = ("ask_user", "complete_task", "enter_plan_mode", "exit_plan_mode", "update_topic", "write_todos")


class _GeminiCli(ClientDialect):
    """Gemini CLI 0.61.0, tried. Its calls have no ids, and nothing makes it fail closed.

    Its `ask` waits for ever if there is no person. It would read a reason that is JSON as an answer, so `pdp hook`
    writes its own name before each reason.
    """

    def read(self, body: Any) -> HookCall:
        call = super().read(body)
        if body.get("mcp_context") is not None or call.tool.startswith("mcp_"):
            call = replace(call, built_in=None)
        is_error = isinstance(call.executed, dict) and call.executed.get("error") is not None
        return replace(call, executed=None, failed=True) if is_error else call


GEMINI_CLI: Final = _GeminiCli(
    name="gemini-cli",
    events={"BeforeTool": Moment.BEFORE, "AfterTool": Moment.AFTER},
    call=None,
    corrected=("tool_input", {"hookEventName": "BeforeTool"}),
    built_in={
        "read_file": BuiltIn(Kind.READ, ("file_path",)),
        **dict.fromkeys(("write_file", "replace"), BuiltIn(Kind.WRITE, ("file_path",))),
        **dict.fromkeys(("list_directory", "grep_search"), BuiltIn(Kind.SEARCH, ("dir_path",))),
        "glob": BuiltIn(Kind.SEARCH, ("dir_path", "pattern")),
        "google_web_search": BuiltIn(Kind.WEB_SEARCH, ("query",)),
        "run_shell_command": BuiltIn(Kind.SHELL, ("command",)),
        "invoke_agent": BuiltIn(Kind.DELEGATE),
        **dict.fromkeys(_GEMINI_PLANS, BuiltIn(Kind.PLAN)),
    },
)


class _CopilotCli(ClientDialect):
    """Copilot CLI 1.0.102, tried, with the capitalised events; the others do not name their event.

    A crash denies there; a time-out or garbage does not. Exit code 2 denies without its reason, so the denial is JSON.
    Its event for asking a person has other names and arguments than the call, and is not read.
    """

    def read(self, body: Any) -> HookCall:
        call = super().read(body)
        if call.tool != "Edit" or "input" not in call.arguments:
            return call
        # Two tools have this name; one of them takes a patch.
        return replace(call, built_in=BuiltIn(Kind.WRITE, ("path", "input")["path" not in call.arguments :]))

    def write(self, answer: HookAnswer, moment: Moment) -> Output:
        output = super().write(answer, moment)
        if moment is Moment.BEFORE and output.exit_code:
            return printed(permissionDecision="deny", permissionDecisionReason=reason(answer))
        return output


COPILOT_CLI: Final = _CopilotCli(
    name="copilot-cli",
    events={"PreToolUse": Moment.BEFORE, "PostToolUse": Moment.AFTER, "PostToolUseFailure": Moment.AFTER},
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
        **dict.fromkeys(("TodoWrite", "report_intent"), BuiltIn(Kind.PLAN)),
    },
)


DIALECTS: Final = MappingProxyType(
    {dialect.name: dialect for dialect in (CLAUDE_CODE, CODEX, CURSOR, GEMINI_CLI, COPILOT_CLI)}
)
"""The clients by name, such as `claude-code`."""
