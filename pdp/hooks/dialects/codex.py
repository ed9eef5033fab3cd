"""Codex, 0.169.0 as run: no way to have the person asked; what it does not expect in an answer voids all of it.

Its hooks run only once their person has trusted them. Text that is sent to a program that runs asks no hook. A model
may say where a command runs, which looks as if the client worked there: its transcript says where it does.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pdp.hooks.call import BuiltIn, HookCall, Kind, Moment
from pdp.hooks.dialects.client import ClientDialect


class _Codex(ClientDialect):
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
