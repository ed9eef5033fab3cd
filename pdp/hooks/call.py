"""What a client asks and what it is answered, whatever its dialect."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from pdp.errors import PdpError

if TYPE_CHECKING:
    from collections.abc import Mapping


class HookInputError(PdpError):
    """What a client sent is not a call in its dialect."""

    code: ClassVar[str] = "hook.input_invalid"


class Moment(StrEnum):
    """When a client asks. BEFORE: a tool is about to run; PERMISSION: the person would be asked; AFTER: it has run."""

    BEFORE = "before"
    PERMISSION = "permission"
    AFTER = "after"


class Kind(StrEnum):
    """What a built-in tool does, whatever the client calls it."""

    READ = "read"  # a file
    WRITE = "write"  # a file
    SEARCH = "search"  # in files, or their names
    FETCH = "fetch"  # a URL
    WEB_SEARCH = "web_search"
    SHELL = "shell"  # a command line
    DELEGATE = "delegate"  # to an agent below this one
    PLAN = "plan"  # notes, questions to the person: nothing is touched


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


class Dialect(Protocol):
    """A client. `can_ask`: its person is really asked on ASK, and a refusal stops the call."""

    name: str
    can_ask: bool
    built_in: Mapping[str, BuiltIn]

    def read(self, body: Mapping[str, Any]) -> HookCall:
        """Return the call in what the client sent; HookInputError: it is none, or of an unknown event."""
        ...

    def write(self, answer: HookAnswer, moment: Moment) -> Output:
        """Return the answer as the client reads it; to input that was no call, `moment` is BEFORE."""
        ...
