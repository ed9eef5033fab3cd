"""The JSON that each client sends to a hook is read as a call, or rejected with an error that names the fault."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdp.hooks.call import BuiltIn, HookCall, HookInputError, Kind, Moment
from pdp.hooks.dialects import DIALECTS

SENT: dict[str, dict[str, Any]] = {
    # Recorded from Claude Code 2.1.330.
    "claude-code": {
        "session_id": "14d1ba2a-d876-481c-92e2-cc443e8751e2", "transcript_path": "/home/a/.claude/projects/w/1.jsonl",
        "cwd": "/home/a/w", "prompt_id": "e5c0a1a9-e269-41ae-b966-40e444c758f0", "permission_mode": "default",
        "effort": {"level": "medium"}, "hook_event_name": "PreToolUse", "tool_name": "Bash",
        "tool_input": {"command": "ls", "description": "list"}, "tool_use_id": "toolu_1",
    },
    # Recorded from Codex 0.169.0.
    "codex": {
        "session_id": "01a208d7-c5d3-7ff0-947e-9ca9cb91ab39", "turn_id": "01a208d7-c5e9-7e83-b397-c8468ef6c10b",
        "transcript_path": "/home/a/.codex/sessions/1.jsonl", "cwd": "/home/a/w", "hook_event_name": "PreToolUse",
        "model": "gpt-5.5", "permission_mode": "bypassPermissions", "tool_name": "apply_patch",
        "tool_input": {"command": "*** Begin Patch\n*** End Patch"}, "tool_use_id": "call_0",
    },
    # Recorded from Cursor 3.11 and published by others.
    "cursor": {
        "conversation_id": "c-1", "generation_id": "g-1", "model": "composer-2.5", "hook_event_name": "preToolUse",
        "session_id": "c-1", "cursor_version": "3.11.25", "workspace_roots": ["/home/a/w", "/home/a/v"],
        "tool_name": "Delete", "tool_input": {"file_path": "/home/a/w/f"}, "tool_use_id": "t-1",
    },
    # Recorded from Gemini CLI 0.61.0.
    "gemini-cli": {
        "session_id": "734e66ba-cc52-4357-babb-79d3742d54b5", "transcript_path": "/home/a/.gemini/tmp/w/chats/1.jsonl",
        "cwd": "/home/a/w", "hook_event_name": "BeforeTool", "timestamp": "2026-11-23T14:40:39.793Z",
        "tool_name": "run_shell_command", "tool_input": {"command": "ls"},
    },
    # Recorded from Copilot CLI 1.0.102.
    "copilot-cli": {
        "hook_event_name": "PreToolUse", "session_id": "15be3d2e-8d26-44e9-88c9-58d2ea9c1d6c",
        "timestamp": "2026-11-23T14:34:48.049Z", "cwd": "/home/a/w", "tool_name": "Write",
        "tool_input": {"path": "/home/a/w/f", "file_text": "x"},
    },
}  # fmt: skip
CALLS = {
    "claude-code": HookCall(
        "claude-code", Moment.BEFORE, "14d1ba2a-d876-481c-92e2-cc443e8751e2", "toolu_1", "Bash",
        {"command": "ls", "description": "list"}, "/home/a/w", BuiltIn(Kind.SHELL, ("command",)),
    ),
    "codex": HookCall(
        "codex", Moment.BEFORE, "01a208d7-c5d3-7ff0-947e-9ca9cb91ab39", "call_0", "apply_patch",
        {"command": "*** Begin Patch\n*** End Patch"}, "/home/a/w", BuiltIn(Kind.WRITE, ("command",)),
    ),
    "cursor": HookCall(
        "cursor", Moment.BEFORE, "c-1", "t-1", "Delete", {"file_path": "/home/a/w/f"}, "/home/a/w",
        BuiltIn(Kind.WRITE, ("file_path",)),
    ),
    "gemini-cli": HookCall(
        "gemini-cli", Moment.BEFORE, "734e66ba-cc52-4357-babb-79d3742d54b5", None, "run_shell_command",
        {"command": "ls"}, "/home/a/w", BuiltIn(Kind.SHELL, ("command",)),
    ),
    "copilot-cli": HookCall(
        "copilot-cli", Moment.BEFORE, "15be3d2e-8d26-44e9-88c9-58d2ea9c1d6c", None, "Write",
        {"path": "/home/a/w/f", "file_text": "x"}, "/home/a/w", BuiltIn(Kind.WRITE, ("path",)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("client", sorted(DIALECTS))
def test_hook_input_in_the_format_of_each_client_is_parsed_as_a_call(client: str) -> None:
    assert DIALECTS[client].read(SENT[client]) == CALLS[client]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize("client", sorted(DIALECTS))
@settings(max_examples=10)
@given(data=st.data())
def test_arbitrary_json_is_parsed_as_a_hook_call_or_raises_an_input_error(client: str, data: st.DataObject) -> None:
    changes = st.dictionaries(
        st.sampled_from([*SENT[client], "mcp_server", "mcp_context", "file_path", "tool_response"]), JSON
    )
    sent: Any = data.draw(JSON | changes.map(lambda changed: {**SENT[client], **changed}))
    call: HookCall | HookInputError
    try:
        call = DIALECTS[client].read(sent)
    except HookInputError as error:
        call = error
    if isinstance(call, HookInputError):
        assert str(call).isprintable()
    else:
        assert call.client == client
        assert call.tool.isascii()
        assert call.tool.isprintable()
        assert call.cwd.startswith("/")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tool_name", "Bash\nallow"), ("tool_name", ""), ("tool_name", "a" * 201), ("tool_name", 1),
        ("tool_name", "\u202eBash"), ("cwd", "w"), ("cwd", "/w\n"), ("cwd", "/" + "w" * 4096), ("cwd", None),
        ("session_id", "a b"), ("session_id", None), ("tool_use_id", ""), ("tool_use_id", 7), ("tool_input", "ls"),
        ("tool_input", None), ("hook_event_name", "pretooluse"), ("hook_event_name", "Stop"), ("hook_event_name", []),
    ],
)  # fmt: skip
def test_malformed_hook_field_raises_an_error_that_names_the_field(key: str, value: Any) -> None:
    with pytest.raises(HookInputError, match=f"^claude-code: {key}: expected "):
        DIALECTS["claude-code"].read({**SENT["claude-code"], key: value})


@pytest.mark.parametrize("client", sorted(DIALECTS))
def test_error_for_an_unknown_hook_event_lists_the_known_events(client: str) -> None:
    with pytest.raises(HookInputError) as caught:
        DIALECTS[client].read({**SENT[client], "hook_event_name": "SessionStart"})
    assert caught.value.message.startswith(f"{client}: hook_event_name: expected one of ")
    assert caught.value.message.endswith(" but got 'SessionStart'")


@pytest.mark.parametrize("client", ["claude-code", "cursor", "gemini-cli", "copilot-cli"])
def test_end_of_a_session_is_read_without_a_tool(client: str) -> None:
    (event,) = (event for event, moment in DIALECTS[client].events.items() if moment is Moment.END)
    fields = {name: value for name, value in SENT[client].items() if not name.startswith("tool_")}
    before = CALLS[client]
    assert DIALECTS[client].read({**fields, "hook_event_name": event, "reason": "exit"}) == HookCall(
        client, Moment.END, before.session_id, None, "", {}, before.cwd
    )


def _claude(**members: Any) -> HookCall:
    return DIALECTS["claude-code"].read({**SENT["claude-code"], **members})


def test_permission_request_of_claude_code_is_read_without_a_call_id() -> None:
    sent = {key: value for key, value in SENT["claude-code"].items() if key != "tool_use_id"}
    call = DIALECTS["claude-code"].read({**sent, "hook_event_name": "PermissionRequest"})
    assert (call.moment, call.call_id) == (Moment.PERMISSION, None)
    with pytest.raises(HookInputError, match=r"^claude-code: tool_use_id: expected "):
        DIALECTS["claude-code"].read(sent)


def test_results_and_failures_reported_by_claude_code_are_read() -> None:
    done = _claude(hook_event_name="PostToolUse", tool_response={"stdout": "hi"})
    failed = _claude(hook_event_name="PostToolUseFailure", error="Exit code 1", tool_response={"stdout": "hi"})
    assert (done.moment, done.executed, done.failed) == (Moment.AFTER, {"stdout": "hi"}, False)
    assert (failed.moment, failed.executed, failed.failed) == (Moment.AFTER, None, True)


@pytest.mark.parametrize(
    ("server", "name"),
    [
        ({"name": "db", "source": "user"}, "mcp__db__read"), ({"name": "db", "source": "managed"}, "mcp__db__read"),
        ({"name": "db", "source": "project"}, "project.mcp__db__read"),
        ({"name": "db", "source": "plugin"}, "plugin.mcp__db__read"),
        ({"name": "db", "source": "new\nkind"}, "unknown.mcp__db__read"),
        ({"name": "db", "source": ["user"]}, "unknown.mcp__db__read"), ({"name": "db"}, "unknown.mcp__db__read"),
        ("user", "unknown.mcp__db__read"), (None, "unknown.mcp__db__read"),
    ],
)  # fmt: skip
def test_tool_name_is_prefixed_with_the_source_of_its_server(server: Any, name: str) -> None:
    call = _claude(tool_name="mcp__db__read", mcp_server=server)
    assert (call.tool, call.built_in) == (name, None)


def test_server_tool_with_the_name_of_a_built_in_tool_is_not_built_in() -> None:
    call = _claude(tool_name="Read", mcp_server={"name": "db", "source": "user"})
    assert (call.tool, call.built_in) == ("Read", None)


def test_failure_that_gemini_cli_reports_in_a_result_is_read_as_a_failure() -> None:
    sent = {**SENT["gemini-cli"], "hook_event_name": "AfterTool"}
    done = DIALECTS["gemini-cli"].read({**sent, "tool_response": {"llmContent": "hi"}})
    failed = DIALECTS["gemini-cli"].read({**sent, "tool_response": {"error": {"message": "File not found"}}})
    assert (done.executed, done.failed) == ({"llmContent": "hi"}, False)
    assert (failed.executed, failed.failed) == (None, True)


@pytest.mark.parametrize("changed", [{"mcp_context": {"server_name": "a"}}, {"tool_name": "mcp_a_read_file"}])
def test_server_tools_of_gemini_cli_are_not_built_in(changed: dict[str, Any]) -> None:
    assert DIALECTS["gemini-cli"].read({**SENT["gemini-cli"], **changed}).built_in is None


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"path": "f", "old_str": "a"}, ("path",)), ({"input": "*** Begin Patch"}, ("input",)),
        ({"path": "f", "input": "*** Begin Patch"}, ("path", "input")), ({}, ("path",)),
    ],
)  # fmt: skip
def test_calls_of_both_edit_tools_of_copilot_cli_are_parsed(arguments: dict[str, Any], named: tuple[str, ...]) -> None:
    call = DIALECTS["copilot-cli"].read({**SENT["copilot-cli"], "tool_name": "Edit", "tool_input": arguments})
    assert call.built_in == BuiltIn(Kind.WRITE, named)


def test_before_read_file_event_of_cursor_is_parsed_as_a_read_call() -> None:
    sent = {key: SENT["cursor"][key] for key in ("conversation_id", "workspace_roots")}
    file = {"hook_event_name": "beforeReadFile", "file_path": "/home/a/w/f", "content": "x", "tool_name": "Task"}
    assert DIALECTS["cursor"].read({**sent, **file}) == HookCall(
        "cursor", Moment.BEFORE, "c-1", None, "Read", {"file_path": "/home/a/w/f"}, "/home/a/w",
        BuiltIn(Kind.READ, ("file_path",)),
    )  # fmt: skip


CODEX_BASH = {**SENT["codex"], "tool_name": "Bash", "tool_input": {"command": "ls"}}


@pytest.mark.parametrize(
    ("first", "cwd", "known"),
    [
        ('{"type": "session_meta", "payload": {"cwd": "/home/a/w"}}', "/home/a/w", {}),
        ('{"payload": {"cwd": "/home/a/v"}}', "/home/a/v", {"workdir": "/home/a/w"}),
        ('{"payload": {"cwd": 7}}', "/home/a/w", {"workdir": "/home/a/w"}),
        ('{"payload": []}', "/home/a/w", {"workdir": "/home/a/w"}), ("[]", "/home/a/w", {"workdir": "/home/a/w"}),
        ("{", "/home/a/w", {"workdir": "/home/a/w"}),
        pytest.param("[" * 100_000, "/home/a/w", {"workdir": "/home/a/w"}, id="deep"),
        ("", "/home/a/w", {"workdir": "/home/a/w"}),
    ],
)  # fmt: skip
def test_working_folder_of_codex_is_read_from_its_transcript(
    tmp_path: Path, first: str, cwd: str, known: dict[str, str]
) -> None:
    (tmp_path / "transcript").write_text(f"{first}\n{{}}\n", encoding="utf-8")
    call = DIALECTS["codex"].read({**CODEX_BASH, "transcript_path": str(tmp_path / "transcript")})
    assert (call.cwd, call.arguments) == (cwd, {"command": "ls", **known})


@pytest.mark.parametrize("transcript", [None, 0, "", "/none", "/dev/zero", "\0", {}])
def test_working_folder_of_codex_is_unknown_without_a_transcript(transcript: Any) -> None:
    call = DIALECTS["codex"].read({**CODEX_BASH, "transcript_path": transcript})
    assert call.arguments == {"command": "ls", "workdir": "/home/a/w"}


def test_reading_a_codex_transcript_that_is_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "transcript")
    call = DIALECTS["codex"].read({**CODEX_BASH, "transcript_path": str(tmp_path / "transcript")})
    assert call.arguments == {"command": "ls", "workdir": "/home/a/w"}
