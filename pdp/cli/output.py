"""Output of commands: text without control characters, ASCII JSON, files, and the log."""

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


def print_line(text: str) -> None:
    """Print a text to standard output, unless standard output is closed."""
    print(text)  # noqa: T201 - the only print of a command's answer


def print_error(text: str) -> None:
    """Print lines to standard error, with unprintable characters as escapes."""
    if sys.stderr is None:
        return  # `print` would use standard output instead, so nothing is printed.
    with suppress(OSError):  # The exit code still reports the failure.
        print("\n".join(map(printable, text.split("\n"))), file=sys.stderr)  # noqa: T201 - the only print of messages


def print_json(value: Any) -> None:
    """Print JSON in plain ASCII, because names come from models and other characters could control the terminal."""
    print_line(json.dumps(value, indent=2))


def print_answer(value: Any, lines: Iterable[str] | Callable[[], None], *, as_json: bool) -> None:
    """Print a command's answer: `value` as JSON, or `lines` with escapes; `lines` may be a function that prints."""
    if as_json:
        print_json(value)
    elif callable(lines):
        lines()
    else:
        for line in lines:
            print_line(printable(line))


def fault_json(fault: Fault) -> dict[str, Any]:
    """Return a fault as JSON. The format is stable, because scripts read it."""
    place = fault.place
    return {
        "file": place.file, "line": place.line, "column": place.column,
        "kind": "warning" if fault.warning else "fault", "message": fault.message, "hint": fault.hint,
    }  # fmt: skip


def write_text(file: Path, text: str) -> None:
    """Write a text file for the user. If the folder is missing, create it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{file}: cannot be written: {error.strerror}", hint="choose a folder you can write to"
        ) from error


TRACEBACK: Final = "PDP_TRACEBACK"  # the environment variable that shows errors with tracebacks

_LOGS: Final = ("pdp", "mcp", "client")  # the loggers of this package and of the MCP SDK


@contextmanager
def brief_log() -> Iterator[None]:
    """Print log messages of `pdp` and the MCP SDK on standard error, one line each, without tracebacks."""
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
        print_error(text)
