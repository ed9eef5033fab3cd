"""Copilot CLI, 1.0.102 as run, with the events that have capital letters: the others do not say which they are.

A crash denies there, but a time-out and garbage do not. Exit code 2 denies without its reason, so the denial is JSON.
What it sends when it would ask its person has other names and arguments than the call: that event is not read.
"""

from dataclasses import replace
from typing import Any, Final

from pdp.hooks.call import BuiltIn, HookAnswer, HookCall, Kind, Moment, Output
from pdp.hooks.dialects.client import ClientDialect, printed, reason


class _CopilotCli(ClientDialect):
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
