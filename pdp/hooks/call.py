"""What a client asks and what it is answered, whatever its dialect."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

from pdp.errors import PdpError


class HookInputError(PdpError):
    """What a client sent is not a call in its dialect."""

    code: ClassVar[str] = "hook.input_invalid"


class HookLimitError(PdpError):
    """A call exceeds a bound. The message begins with the code, because clients show the message alone."""

    code: ClassVar[str] = "hook.limit_exceeded"

    def __init__(self, message: str) -> None:
        super().__init__(f"{self.code}: {message}", hint="make a smaller call")


class Moment(StrEnum):
    """When a client asks. BEFORE: a tool is about to run; PERMISSION: the person would be asked; AFTER: it has run."""

    BEFORE = "before"
    PERMISSION = "permission"
    AFTER = "after"


class Kind(StrEnum):
    """What a built-in tool does, whatever the client calls it: the manifest's entry for it, if nothing else is said."""

    READ = "read_file"
    WRITE = "write_file"
    SEARCH = "search_files"  # or their names
    FETCH = "fetch_url"
    WEB_SEARCH = "search_web"
    SHELL = "run_command"  # a command line
    DELEGATE = "delegate_task"  # to an agent below this one
    PLAN = "plan_work"  # notes, questions to the person: nothing is touched


class BuiltIn(NamedTuple):
    """A built-in tool of a client: what it does, and the arguments that name its path, command or URL.

    An argument that is absent in a call counts as the working folder for SEARCH, and makes any other call malformed.
    """

    kind: Kind
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HookCall:
    """A call of a tool, as a client tells it.

    Attributes:
        client: the dialect's name, such as `claude-code`.
        session_id, call_id: the client's own ids; a call has the same in every moment. None: the client gives none.
        tool, arguments: as the client spells them. `built_in`: what the tool is, None for one that is not the client's.
        cwd: the folder in which the client works, absolute.
        executed: AFTER alone: what the tool returned as JSON, or None with `failed` true.
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
    """What the client is to do. PASS: go on as without a hook; CORRECT: with other arguments; ASK: ask its person."""

    PASS = "pass"  # noqa: S105 - not a password
    CORRECT = "correct"
    ASK = "ask"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """An answer. `message`: never empty for ASK and DENY, safe for a model to read; `arguments`: of CORRECT."""

    behaviour: Behaviour
    message: str = ""
    arguments: Mapping[str, Any] | None = None


class Output(NamedTuple):
    """What the program that a client started ends with. A deny is exit 2 with standard error alone where that holds."""

    exit_code: int
    stdout: str = ""
    stderr: str = ""
