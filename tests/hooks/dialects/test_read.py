"""What each client sends: the call in it, or an error that says what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdp.hooks.call import BuiltIn, HookCall, HookInputError, Kind, Moment
from pdp.hooks.dialects import DIALECTS

SENT: dict[str, dict[str, Any]] = {
    # As 2.1.330 sent it.
    "claude-code": {
        "session_id": "14d1ba2a-d876-481c-92e2-cc443e8751e2", "transcript_path": "/home/a/.claude/projects/w/1.jsonl",
        "cwd": "/home/a/w", "prompt_id": "e5c0a1a9-e269-41ae-b966-40e444c758f0", "permission_mode": "default",
        "effort": {"level": "medium"}, "hook_event_name": "PreToolUse", "tool_name": "Bash",
        "tool_input": {"command": "ls", "description": "list"}, "tool_use_id": "toolu_1",
    },
    "codex": {
        "session_id": "0199-a", "turn_id": "1", "transcript_path": None, "cwd": "/home/a/w", "model": "m",
        "hook_event_name": "PreToolUse", "permission_mode": "default", "tool_name": "Bash",
        "tool_input": {"command": "ls"}, "tool_use_id": "call_1",
    },
}  # fmt: skip
CALLS = {
    "claude-code": HookCall(
        "claude-code", Moment.BEFORE, "14d1ba2a-d876-481c-92e2-cc443e8751e2", "toolu_1", "Bash",
        {"command": "ls", "description": "list"}, "/home/a/w", BuiltIn(Kind.SHELL, ("command",)),
    ),
    "codex": HookCall(
        "codex", Moment.BEFORE, "0199-a", "call_1", "Bash", {"command": "ls"}, "/home/a/w",
        BuiltIn(Kind.SHELL, ("command",)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("client", sorted(DIALECTS))
def test_a_call(client: str) -> None:
    assert DIALECTS[client].read(SENT[client]) == CALLS[client]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize("client", sorted(DIALECTS))
@given(data=st.data())
def test_any_json_is_a_call_or_an_error_of_its_own(client: str, data: st.DataObject) -> None:
    changes = st.dictionaries(st.sampled_from([*SENT[client], "mcp_server", "mcp_context"]), JSON)
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
def test_a_field_that_is_not_as_the_client_sends_it(key: str, value: Any) -> None:
    with pytest.raises(HookInputError, match=f"^claude-code: {key}: expected "):
        DIALECTS["claude-code"].read({**SENT["claude-code"], key: value})


@pytest.mark.parametrize("client", sorted(DIALECTS))
def test_an_unknown_event_names_the_known_ones(client: str) -> None:
    (key,) = (key for key, value in SENT[client].items() if value in ("PreToolUse", "BeforeTool", "preToolUse"))
    with pytest.raises(HookInputError) as caught:
        DIALECTS[client].read({**SENT[client], key: "SessionStart"})
    assert caught.value.message.startswith(f"{client}: {key}: expected one of ")
    assert caught.value.message.endswith(" but got 'SessionStart'")


def _claude(**members: Any) -> HookCall:
    return DIALECTS["claude-code"].read({**SENT["claude-code"], **members})


def test_claude_code_gives_no_id_where_the_person_is_asked() -> None:
    sent = {key: value for key, value in SENT["claude-code"].items() if key != "tool_use_id"}
    call = DIALECTS["claude-code"].read({**sent, "hook_event_name": "PermissionRequest"})
    assert (call.moment, call.call_id) == (Moment.PERMISSION, None)
    with pytest.raises(HookInputError, match=r"^claude-code: tool_use_id: expected "):
        DIALECTS["claude-code"].read(sent)


def test_claude_code_tells_what_came_of_a_call() -> None:
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
def test_a_server_of_a_repository_does_not_pass_for_the_persons_own(server: Any, name: str) -> None:
    call = _claude(tool_name="mcp__db__read", mcp_server=server)
    assert (call.tool, call.built_in) == (name, None)


def test_a_tool_of_a_server_is_not_the_clients_own_whatever_its_name() -> None:
    call = _claude(tool_name="Read", mcp_server={"name": "db", "source": "user"})
    assert (call.tool, call.built_in) == ("Read", None)
