"""Gemini CLI, 0.61.0 as run: no ids for calls, and nothing that makes it fail closed.

Its `ask` waits for ever where nobody can be asked. A reason that is JSON would be read as an answer: `pdp hook` writes
its own name before each.
"""

from dataclasses import replace
from typing import Any, Final

from pdp.hooks.call import BuiltIn, HookCall, Kind, Moment
from pdp.hooks.dialects.client import ClientDialect

_PLANS: Final = ("ask_user", "complete_task", "enter_plan_mode", "exit_plan_mode", "update_topic", "write_todos")


class _GeminiCli(ClientDialect):
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
        **dict.fromkeys(_PLANS, BuiltIn(Kind.PLAN)),
    },
)
