"""What each client is told: whole outputs, of every behaviour in every moment."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdp.hooks.call import Behaviour, HookAnswer, Moment, Output
from pdp.hooks.dialects import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Mapping

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


# Of a client that takes yes and no alone: what differs from that stands with the client.
PLAIN = {
    **{(moment, behaviour): output for moment in Moment for behaviour, output in (
        (Behaviour.PASS, PASSED), (Behaviour.CORRECT, NOT_CORRECTED), (Behaviour.ASK, NOT_ASKED),
        (Behaviour.DENY, DENIED),
    )},
    (Moment.PERMISSION, Behaviour.ASK): PASSED,
}  # fmt: skip
WRITTEN: Mapping[str, Mapping[tuple[Moment, Behaviour], Output]] = {
    "claude-code": {
        **PLAIN,
        (Moment.BEFORE, Behaviour.CORRECT): _in_claude("PreToolUse", updatedInput={"limit": 5}),
        (Moment.BEFORE, Behaviour.ASK): _in_claude(
            "PreToolUse", permissionDecision="ask", permissionDecisionReason="Your person decides."
        ),
        (Moment.PERMISSION, Behaviour.DENY): _refused("Not allowed."),
        (Moment.PERMISSION, Behaviour.CORRECT): _refused(NOT_CORRECTED.stderr.strip()),
    },
    "codex": {
        **PLAIN,
        (Moment.BEFORE, Behaviour.CORRECT): _in_claude(
            "PreToolUse", permissionDecision="allow", updatedInput={"limit": 5}
        ),
    },
}


@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("behaviour", Behaviour)
@pytest.mark.parametrize("client", sorted(DIALECTS))
def test_written(client: str, behaviour: Behaviour, moment: Moment) -> None:
    assert DIALECTS[client].write(ANSWERS[behaviour], moment) == WRITTEN[client][moment, behaviour]


@pytest.mark.parametrize("client", sorted(DIALECTS))
@given(st.text(), st.sampled_from([Behaviour.ASK, Behaviour.DENY]), st.sampled_from([*Moment]))
def test_a_denial_says_why_in_safe_letters_and_nothing_else(
    client: str, message: str, behaviour: Behaviour, moment: Moment
) -> None:
    output = DIALECTS[client].write(HookAnswer(behaviour, message), moment)
    if output.exit_code:
        assert (output.exit_code, output.stdout, output.stderr[-1]) == (2, "", "\n")
        assert output.stderr[:-1].strip()
        assert output.stderr[:-1].isprintable()
    elif output.stdout:
        assert json.loads(output.stdout)
        assert output.stdout[:-1].isprintable()
    else:  # the person is asked, as the client would by itself
        assert (behaviour, moment, output) == (Behaviour.ASK, Moment.PERMISSION, PASSED)


def test_a_long_message_is_cut() -> None:
    output = DIALECTS["codex"].write(HookAnswer(Behaviour.DENY, "a" * 100_000), Moment.BEFORE)
    assert output == Output(2, stderr="a" * 4000 + " ... (cut)\n")
