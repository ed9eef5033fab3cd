"""Each answer is written in the output format of each client, for every moment at which the client asks the hook."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdp.hooks.call import Behaviour, HookAnswer, Moment, Output
from pdp.hooks.dialects import DIALECTS, http_body

ANSWERS = {
    Behaviour.PASS: HookAnswer(Behaviour.PASS),
    Behaviour.CORRECT: HookAnswer(Behaviour.CORRECT, "Too much.", {"limit": 5}),
    Behaviour.ASK: HookAnswer(Behaviour.ASK, "Your person decides."),
    Behaviour.DENY: HookAnswer(Behaviour.DENY, "Not allowed."),
}
PASSED = Output(0)
DENIED = Output(2, stderr="Not allowed.\n")
NOT_ASKED = Output(2, stderr="Your person decides.\n")
NOT_CORRECTED = Output(2, stderr='Too much. Call the tool again with exactly these arguments: {"limit": 5}\n')


def _json(**members: Any) -> Output:
    return Output(0, stdout=json.dumps(members) + "\n")


def _in_claude(event: str, **members: Any) -> Output:
    return _json(hookSpecificOutput={"hookEventName": event, **members})


def _refused(why: str) -> Output:
    return _in_claude("PermissionRequest", decision={"behavior": "deny", "message": why})


def _in_cursor(output: Output) -> Output:
    why = output.stderr.strip()
    said = {"permission": "deny", "user_message": why, "agent_message": why} if output.exit_code else {}
    return output._replace(stdout=_json(**said).stdout)


def _in_copilot(why: str) -> Output:
    return _json(permissionDecision="deny", permissionDecisionReason=why)


# The outputs for a client that understands only allow and deny. The outputs for the clients below override these
# outputs.
PLAIN = {
    **{(moment, behaviour): output for moment in Moment for behaviour, output in (
        (Behaviour.PASS, PASSED), (Behaviour.CORRECT, NOT_CORRECTED), (Behaviour.ASK, NOT_ASKED),
        (Behaviour.DENY, DENIED),
    )},
    (Moment.PERMISSION, Behaviour.ASK): PASSED,
}  # fmt: skip
CORRECTED = (Moment.BEFORE, Behaviour.CORRECT)
ASKED = (Moment.BEFORE, Behaviour.ASK)
WRITTEN: Mapping[str, Mapping[tuple[Moment, Behaviour], Output]] = {
    "claude-code": {
        **PLAIN,
        CORRECTED: _in_claude("PreToolUse", updatedInput={"limit": 5}),
        ASKED: _in_claude("PreToolUse", permissionDecision="ask", permissionDecisionReason="Your person decides."),
        (Moment.PERMISSION, Behaviour.DENY): _refused("Not allowed."),
        (Moment.PERMISSION, Behaviour.CORRECT): _refused(NOT_CORRECTED.stderr.strip()),
    },
    "codex": {
        **PLAIN,
        CORRECTED: _in_claude("PreToolUse", permissionDecision="allow", updatedInput={"limit": 5}),
    },
    "cursor": {key: _in_cursor(output) for key, output in PLAIN.items()},
    "gemini-cli": {**PLAIN, CORRECTED: _in_claude("BeforeTool", tool_input={"limit": 5})},
    "copilot-cli": {
        **PLAIN,
        CORRECTED: _in_claude("PreToolUse", updatedInput={"limit": 5}),
        ASKED: _in_copilot("Your person decides."),
        (Moment.BEFORE, Behaviour.DENY): _in_copilot("Not allowed."),
    },
}


@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("behaviour", Behaviour)
@pytest.mark.parametrize("client", sorted(DIALECTS))
def test_hook_answers_are_written_in_the_format_of_each_client(
    client: str, behaviour: Behaviour, moment: Moment
) -> None:
    assert DIALECTS[client].write(ANSWERS[behaviour], moment) == WRITTEN[client][moment, behaviour]


@pytest.mark.parametrize("client", sorted(DIALECTS))
@given(st.text(), st.sampled_from([Behaviour.ASK, Behaviour.DENY]), st.sampled_from([*Moment]))
def test_hook_denial_contains_only_a_printable_reason(
    client: str, message: str, behaviour: Behaviour, moment: Moment
) -> None:
    output = DIALECTS[client].write(HookAnswer(behaviour, message), moment)
    said = json.loads(output.stdout or "{}")
    assert (output.stdout + output.stderr).replace("\n", "").isprintable()
    if output.exit_code:
        assert output.exit_code == 2
        assert output.stderr.strip()
        assert said.get("permission", "deny") == "deny"
    elif not said:  # If the hook writes no output, the client asks its user, as if there were no hook.
        assert (behaviour, moment) == (Behaviour.ASK, Moment.PERMISSION)
    else:
        assert not output.stderr


@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("behaviour", Behaviour)
def test_http_hook_answer_equals_the_command_hook_answer_without_an_exit_code(
    behaviour: Behaviour, moment: Moment
) -> None:
    output = WRITTEN["claude-code"][moment, behaviour]
    why = output.stderr.strip()
    denied = {"hookSpecificOutput": {
        "hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": why,
    }}  # fmt: skip
    told = json.loads(output.stdout or "{}") if not output.exit_code else denied
    if output.exit_code and moment in (Moment.AFTER, Moment.END):
        told = {"decision": "block", "reason": why}
    assert http_body(ANSWERS[behaviour], moment) == told


def test_long_message_in_a_hook_answer_is_truncated() -> None:
    output = DIALECTS["codex"].write(HookAnswer(Behaviour.DENY, "a" * 100_000), Moment.BEFORE)
    assert output == Output(2, stderr="a" * 4000 + " ... (cut)\n")
