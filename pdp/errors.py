"""The errors that several layers raise, by whose fault it is; and how a fault in a file is shown.

Other errors stand beside what raises them. The codes of `EngineError`, `BundleError` and `StateError` are reason codes:
the enforcement point turns the error into a DENY with exactly that code.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

_SHOWN: Final = 160
_SHOWN_BEFORE: Final = 100


class PdpError(Exception):
    """Base of every error of this package. `code` is stable: logs and alerts key on it. `hint` says what to do."""

    code: ClassVar[str] = "pdp.error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message} ({self.hint})"


class UsageError(PdpError):
    """The user's input cannot be used: a bad option, or a file that is missing, too large or malformed."""

    code = "pdp.usage"


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a file as editors understand it; `line` and `column` count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        file = self.file.replace("\n", "\\n")  # a name must not look like a message of its own
        return f"{file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong at one place.

    `warning` marks what is legal yet likely a mistake. `source` is the line of the file, or empty where it cannot be
    shown.
    """

    place: Place
    message: str
    hint: str | None = None
    warning: bool = False
    source: str = ""

    def __str__(self) -> str:
        kind = "warning: " if self.warning else ""
        lines = [f"{self.place}: {kind}{self.message}"]
        start = max(self.place.column - _SHOWN_BEFORE, 0)
        part = self.source[start : start + _SHOWN]
        # Only what prints is shown: a file must not be able to steer the terminal.
        shown = "".join(letter if letter.isprintable() else " " for letter in part).rstrip()
        if shown:
            lines += [f"    {shown}", f"    {' ' * (self.place.column - 1 - start)}^"]
        if self.hint:
            lines.append(f"    hint: {self.hint}")
        return "\n".join(lines)


class FileFaultsError(UsageError):
    """A file is faulty. All of its faults are in `faults`, in the order of their places."""

    code = "pdp.file_faults"

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(sorted(faults, key=lambda fault: (fault.place.file, fault.place.line, fault.place.column)))
        super().__init__("\n".join(str(fault) for fault in self.faults))


class MissingExtraError(UsageError):
    """What is asked for needs an extra of this package, which is not installed."""

    code = "pdp.missing_extra"

    def __init__(self, extra: str) -> None:
        super().__init__(f"this needs the extra \"{extra}\": pip install 'tool-pdp[{extra}]'")


class EngineError(PdpError):
    """The engine gave no decision: it is not there, not ready, or refused the request."""

    code = "engine.unavailable"


class EngineTimeoutError(EngineError):
    """The engine gave no decision within its deadline."""

    code = "engine.timeout"


class AnswerInvalidError(EngineError):
    """The engine answered something that is not a decision."""

    code = "engine.answer_invalid"


class UndefinedDocumentError(AnswerInvalidError):
    """The policy leaves the document undefined that was asked for, or OPA does not have it."""


class RequestRefusedError(EngineError):
    """The request is too large for the engine, or no JSON. The policy gives this code to requests it cannot read."""

    code = "decision.request_invalid"


class BundleError(PdpError):
    """The bundle cannot be read, or must not be used."""

    code = "bundle.invalid"


class StateError(PdpError):
    """What a call needs beside its policy, such as audit or store, cannot be used. Before a run this is a DENY."""

    code = "pdp.state"


class AuditError(StateError):
    """An audit event could not be written. Before an execution this is a DENY."""

    code = "audit.write_failed"


class StoreError(StateError):
    """The store could not be read or written. What it was asked for counts as not done."""

    code = "store.unavailable"


class StoreFullError(StoreError):
    """A store in memory is full of what must not be forgotten."""

    code = "store.full"


class StoreSchemaError(UsageError):
    """The tables of the database are not those that this release works with."""

    code = "store.schema"
