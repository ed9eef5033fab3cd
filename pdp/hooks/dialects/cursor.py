"""Cursor, as others have recorded its hooks (3.11 to 3.15): not run here.

Some of its versions read files without `preToolUse`, so `beforeReadFile` is read as well. `ask` is accepted there and
not enforced, and what becomes of other arguments is not known: both are denials.
"""

from dataclasses import replace
from typing import Any, Final

from pdp.hooks.call import BuiltIn, HookAnswer, HookCall, Kind, Moment, Output
from pdp.hooks.dialects.client import ClientDialect, printed, reason


class _Cursor(ClientDialect):
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
