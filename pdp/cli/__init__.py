"""The command line: what others script against. Exit codes and JSON are stable (design.md, "Command line").

Exit 0 ALLOW (or done), 3 STEP_UP, 4 DENY or rejected, 2 bad usage or file, 1 anything else.

app       the tree of commands
commands  a folder: one module for each command
options   options and arguments that several commands have
files     the files that commands are given
output    what is printed or written, and the log
display   what people see on a terminal
project   a folder: what `pdp init` copies
"""

import io
import os
import sys
from enum import IntEnum
from typing import Final

from pdp.cli.output import TRACEBACK, brief_log, complain
from pdp.errors import BundleError, EngineTimeoutError, FileFaultsError, PdpError, UsageError
from pdp.workbench.shown_file import printable

INTERRUPTED: Final = 130
"""What shells call a process that was interrupted (128 + SIGINT)."""

_MOST_FAULTS: Final = 100
"""More than a person reads: one mistake repeated, or not the right file."""


class Exit(IntEnum):
    """What the process answers to its caller."""

    OK = 0
    FAILED = 1
    USAGE = 2
    STEP_UP = 3
    DENY = 4


def main() -> None:
    """Run the command line and end the process with its exit code; no error leaves a traceback."""
    # Looking for plugins of pydantic reads what every installed distribution says of itself, and none is wanted here.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    for stream in (sys.stdout, sys.stderr):
        # What an encoding does not have is shown as an escape; an error instead would hide a verdict.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = run_command(sys.argv[1:])
    try:
        _flush()
    except OSError:
        # It failed in `run_command` already. At its end, Python would try once more, complain, and answer 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def run_command(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = _command(arguments)
        # Before the code is given: a verdict that could not be written is none.
        _flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Who closes a pipe has seen enough.
        return Exit.FAILED
    except PdpError as error:
        text = _shown(error)
        for argument in arguments:
            text = text.replace(argument, printable(argument)) if "\n" in argument else text
        complain(text)
        return Exit.USAGE if isinstance(error, UsageError | BundleError | EngineTimeoutError) else Exit.FAILED
    except OSError as error:
        # Files that the user named have errors of their own; this is a full disk, or output that nobody takes.
        refusal, hint = error.strerror, "check disk space, and where the output goes"
        if error.filename:
            refusal, hint = f"{refusal}: {error.filename}", "check its permissions, and those of the folders above it"
        complain(f"error: the system refuses: {refusal}\n    hint: {hint}")
        return Exit.FAILED
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        complain(
            f"error: this is a fault of pdp itself: {type(error).__name__}: {error}\n"
            f"    hint: please report it; {TRACEBACK}=1 shows where it happened"
        )
        return Exit.FAILED
    return code


def _command(arguments: list[str]) -> int:
    from pdp.cli.app import app  # noqa: PLC0415 - typer is imported where it is used

    try:
        with brief_log():
            app(args=arguments, prog_name="pdp")
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else Exit.OK if error.code is None else Exit.FAILED
    return Exit.OK


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _shown(error: PdpError) -> str:
    if isinstance(error, FileFaultsError):
        # Places stand first in their lines, where editors and CI look for them.
        count = len(error.faults)
        files = dict.fromkeys(fault.place.file for fault in error.faults)
        total = f"error: {count} {'fault' if count == 1 else 'faults'} in {', '.join(map(printable, files))}"
        if count <= _MOST_FAULTS:
            return f"{error.message}\n{total}"
        return "\n".join([*map(str, error.faults[:_MOST_FAULTS]), f"{total}; the first {_MOST_FAULTS} are shown"])
    text = f"error: {error.message}"
    return text if error.hint is None else f"{text}\n    hint: {error.hint}"
