"""Codex, 0.169.0 as run: no way to have the person asked; what it does not expect in an answer voids all of it.

Its hooks run only once their person has trusted them. Text that is sent to a program that runs asks no hook.
"""

from __future__ import annotations

from typing import Final

from pdp.hooks.call import BuiltIn, Kind, Moment
from pdp.hooks.dialects.client import ClientDialect

CODEX: Final = ClientDialect(
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
