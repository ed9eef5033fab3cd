"""The command line. Exit codes and JSON are stable, because scripts use them (docs/explanation/compatibility.md).

The exit codes: 0 ALLOW or success, 3 STEP_UP, 4 DENY or rejected, 2 bad usage or file, 1 anything else.

app       the tree of commands
commands  a folder: one module for each command
options   options and arguments that several commands share
files     reading the files that commands use
output    printing, writing files, and the log
display   styled output on a terminal
findings  faults in the formats of CI
schemas   JSON Schemas of the files that users write
project   a folder: the files that `pdp init` copies
"""

import gc
import io
import os
import sys
from enum import IntEnum
from typing import Final

from pdp.cli.output import TRACEBACK, brief_log, print_error
from pdp.errors import BundleError, EngineTimeoutError, FileFaultsError, PdpError, UsageError
from pdp.workbench.shown_file import printable

INTERRUPTED: Final = 130  # the exit code of an interrupted process in shells (128 + SIGINT)

_MOST_FAULTS: Final = 100  # most faults shown: more are usually one mistake repeated, or the wrong file


class Exit(IntEnum):
    """The exit codes of all commands."""

    OK = 0
    FAILED = 1
    USAGE = 2
    STEP_UP = 3
    DENY = 4


def main() -> None:
    """Run the command line and exit with its code, without a traceback on errors."""
    # pydantic reads the metadata of every installed package to find plugins. No plugin is used here, so the slow search
    # is switched off.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # A command imports many modules. Searching all their objects for garbage again and again would take a fifth of the
    # time.
    gc.set_threshold(50_000, 20, 20)
    for stream in (sys.stdout, sys.stderr):
        # Characters that the terminal's encoding lacks are printed as escapes, because an encoding error would hide a
        # verdict.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = run_command(sys.argv[1:])
    try:
        _flush()
    except OSError:
        # `run_command` has already reported the failure. At exit, Python would flush again, print an error and exit
        # with 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def run_command(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = _command(arguments)
        # Flush the output before the exit code is returned, so that a verdict that cannot be written gives a failure.
        _flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe, so no message is printed.
        return Exit.FAILED
    except PdpError as error:
        text = shown_error(error)
        for argument in arguments:
            text = text.replace(argument, printable(argument)) if "\n" in argument else text
        print_error(text)
        return Exit.USAGE if isinstance(error, UsageError | BundleError | EngineTimeoutError) else Exit.FAILED
    except OSError as error:
        # Faults of the user's files are handled elsewhere, so this error is a full disk or a closed output.
        refusal, hint = error.strerror, "check the disk space, and the destination of the output"
        if error.filename:
            refusal, hint = f"{refusal}: {error.filename}", "check the permissions of the file and the folders above it"
        print_error(f"error: the system reports: {refusal}\n    hint: {hint}")
        return Exit.FAILED
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        print_error(
            f"error: internal error of pdp: {type(error).__name__}: {error}\n"
            f"    hint: please report it; {TRACEBACK}=1 shows where it happened"
        )
        return Exit.FAILED
    return code


def _command(arguments: list[str]) -> int:
    from pdp.cli.app import app  # noqa: PLC0415 - typer is imported only if needed

    try:
        with brief_log():
            app(args=arguments, prog_name="pdp")
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else Exit.OK if error.code is None else Exit.FAILED
    return Exit.OK


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def shown_error(error: PdpError) -> str:
    """Return the message of an error as commands print it, with its hint."""
    if isinstance(error, FileFaultsError):
        # Each line starts with the location, where editors and CI look for it.
        count = len(error.faults)
        files = dict.fromkeys(fault.place.file for fault in error.faults)
        total = f"error: {count} {'fault' if count == 1 else 'faults'} in {', '.join(map(printable, files))}"
        if count <= _MOST_FAULTS:
            return f"{error.message}\n{total}"
        return "\n".join([*map(str, error.faults[:_MOST_FAULTS]), f"{total}; the first {_MOST_FAULTS} are shown"])
    text = f"error: {error.message}"
    text = text if error.hint is None else f"{text}\n    hint: {error.hint}"
    code = getattr(error, "error_code", error.code)  # Some classes have a code for each error.
    return text if code.startswith("pdp.") else f"{text}\n    more: pdp explain {code}"
