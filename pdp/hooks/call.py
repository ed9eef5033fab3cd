"""A client's call and the answer to the call, independent of the client's format."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

from pdp.errors import PdpError


class HookInputError(PdpError):
    """The input of a client is not a valid call in the client's format."""

    code: ClassVar[str] = "hook.input_invalid"


class HookLimitError(PdpError):
    """A call exceeds a limit. The message starts with the code, because clients show only the message."""

    code: ClassVar[str] = "hook.limit_exceeded"

    def __init__(self, message: str) -> None:
        super().__init__(f"{self.code}: {message}", hint="make a smaller call")


class Moment(StrEnum):
    """When a client runs the hook: BEFORE or AFTER a tool, before asking for PERMISSION, or at the END of a session."""

    BEFORE = "before"
    PERMISSION = "permission"
    AFTER = "after"
    END = "end"


class Kind(StrEnum):
    """The activity of a built-in tool. The value names the manifest tool that usually stands for the built-in tool."""

    READ = "read_file"
    WRITE = "write_file"
    SEARCH = "search_files"  # This entry also covers searches for file names.
    FETCH = "fetch_url"
    WEB_SEARCH = "search_web"
    SHELL = "run_command"  # Runs a command line.
    DELEGATE = "delegate_task"  # Starts a sub-agent.
    PLAN = "plan_work"  # Takes notes, asks the user, or looks after running tasks.


class BuiltIn(NamedTuple):
    """A client's built-in tool. `arguments` names its arguments with a path, command or URL; SEARCH may lack these."""

    kind: Kind
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HookCall:
    """A tool call as a client describes it. The client's ids are the same BEFORE and AFTER the call, or None.

    `cwd` is an absolute path. At the END of a session, `tool` is empty. `built_in` is None unless the tool belongs to
    the client itself. `executed` is the tool's result as JSON, AFTER the tool ran; None if the tool `failed`.
    """

    client: str
    moment: Moment
    session_id: str | None
    call_id: str | None
    tool: str
    arguments: dict[str, Any]
    cwd: str
    built_in: BuiltIn | None = None
    executed: Any = None
    failed: bool = False


class Behaviour(StrEnum):
    """The instruction to the client. PASS: continue as if there were no hook; CORRECT: use other arguments."""

    PASS = "pass"  # noqa: S105 - not a password
    CORRECT = "correct"
    ASK = "ask"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """An answer to a client. ASK and DENY need a `message`, which a model may read. CORRECT needs `arguments`."""

    behaviour: Behaviour
    message: str = ""
    arguments: Mapping[str, Any] | None = None


class Output(NamedTuple):
    """The exit code and outputs of the program that a client started. Most clients take exit code 2 as a denial."""

    exit_code: int
    stdout: str = ""
    stderr: str = ""
