"""What commands print or write: text that cannot steer a terminal, JSON for any encoding, reports, and the log."""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from pdp.errors import Fault, PdpError, UsageError
from pdp.workbench.shown_file import printable


def tell(text: str) -> None:
    """Print to standard output. Nothing happens when that is closed."""
    print(text)  # noqa: T201 - the one place where a command's answer is printed


def complain(text: str) -> None:
    """Print lines to standard error, with what does not print in them as escapes."""
    if sys.stderr is None:
        return  # `print` would take standard output
    with suppress(OSError):  # whoever cannot read it still has the exit code
        print("\n".join(map(printable, text.split("\n"))), file=sys.stderr)  # noqa: T201 - likewise, for complaints


def print_json(value: Any) -> None:
    """Print JSON in plain ASCII: names come from models, and as escapes they cannot steer a terminal."""
    tell(json.dumps(value, indent=2))


def print_answer(value: Any, lines: Iterable[str] | Callable[[], None], *, as_json: bool) -> None:
    """Print what a command answers: as JSON, or in lines, with what does not print in them as escapes, or by a call."""
    if as_json:
        print_json(value)
    elif callable(lines):
        lines()
    else:
        for line in lines:
            tell(printable(line))


def fault_json(fault: Fault) -> dict[str, Any]:
    """Return a fault of a file as JSON that is stable."""
    place = fault.place
    return {
        "file": place.file, "line": place.line, "column": place.column,
        "kind": "warning" if fault.warning else "fault", "message": fault.message, "hint": fault.hint,
    }  # fmt: skip


def write_text(file: Path, text: str) -> None:
    """Write a text into a file of the user's; its folder is made where it is not there."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{file}: cannot be written: {error.strerror}", hint="name a file in a folder of yours"
        ) from error


TRACEBACK: Final = "PDP_TRACEBACK"
"""The environment variable with which faults are shown with the place where they happened."""

_LOGS: Final = ("pdp", "mcp", "client")
"""Ours, and those of the SDK of MCP."""


@contextmanager
def brief_log() -> Iterator[None]:
    """Show what `pdp` logs on standard error, briefly; without it, Python would show a traceback."""
    if os.environ.get(TRACEBACK):
        yield
        return
    logs, handler = [logging.getLogger(name) for name in _LOGS], _Brief(logging.WARNING)
    for log in logs:
        log.addHandler(handler)
    try:
        yield
    finally:
        for log in logs:
            log.removeHandler(handler)


class _Brief(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = f"{'error' if record.levelno >= logging.ERROR else 'warning'}: {record.getMessage()}"
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, PdpError):
            text += f": {error.message}"
        elif error is not None:
            text += f": {type(error).__name__}: {error}\n    hint: {TRACEBACK}=1 shows where it happened"
        complain(text)
