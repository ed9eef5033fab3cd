"""Codex: command hooks. No way to have the person asked; what it does not expect in an answer voids all of it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pdp.hooks.call import Behaviour, BuiltIn, HookAnswer, HookCall, Kind, Moment, Output
from pdp.hooks.dialects.hook_input import Event, read_call
from pdp.hooks.dialects.hook_output import plain, printed

if TYPE_CHECKING:
    from collections.abc import Mapping

_EVENTS: Final[Mapping[str, Event]] = MappingProxyType(
    {
        "PreToolUse": Event(Moment.BEFORE),
        "PermissionRequest": Event(Moment.PERMISSION),
        "PostToolUse": Event(Moment.AFTER),
    }
)


class Codex:
    """Codex."""

    name = "codex"
    can_ask = False
    built_in: Mapping[str, BuiltIn] = MappingProxyType(
        {
            "Bash": BuiltIn(Kind.SHELL, ("command",)),
            "apply_patch": BuiltIn(Kind.WRITE, ("command",)),  # the whole patch, which names its files
            "update_plan": BuiltIn(Kind.PLAN),
        }
    )

    def read(self, body: Mapping[str, Any]) -> HookCall:
        """Return the call."""
        return read_call(self.name, body, _EVENTS, self.built_in)

    def write(self, answer: HookAnswer, moment: Moment) -> Output:
        """Return the answer. Only with `allow` are other arguments taken; its own approvals come after that."""
        if moment is Moment.BEFORE and answer.behaviour is Behaviour.CORRECT:
            return printed(hookSpecificOutput={
                "hookEventName": "PreToolUse", "permissionDecision": "allow", "updatedInput": answer.arguments,
            })  # fmt: skip
        return plain(answer, moment)
