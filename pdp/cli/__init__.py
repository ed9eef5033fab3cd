"""The command line: what others script against. Exit codes and JSON are stable (design.md, "Command line").

Exit 0 ALLOW (or done), 3 STEP_UP, 4 DENY or rejected, 2 bad usage or file, 1 anything else.
"""

from __future__ import annotations

import os
import sys
from enum import IntEnum

from pdp.errors import PdpError, UsageError


class Exit(IntEnum):
    """What the process answers to its caller."""

    OK = 0
    FAILED = 1
    USAGE = 2
    STEP_UP = 3
    DENY = 4


def main() -> None:
    """Run the command line and end the process with its exit code; no error leaves a traceback."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    from pdp.cli.app import app  # noqa: PLC0415 - typer is imported where it is used

    try:
        app(args=arguments, prog_name="pdp")
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else Exit.OK if error.code is None else Exit.FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except PdpError as error:
        print(_shown(error), file=sys.stderr)
        return Exit.USAGE if isinstance(error, UsageError) else Exit.FAILED
    except Exception as error:
        if os.environ.get("PDP_TRACEBACK"):
            raise
        print(
            f"error: this is a fault of pdp itself: {type(error).__name__}: {error}\n"
            "    hint: please report it; PDP_TRACEBACK=1 shows where it happened",
            file=sys.stderr,
        )
        return Exit.FAILED
    return Exit.OK


def _shown(error: PdpError) -> str:
    text = f"error: {error.message}"
    return text if error.hint is None else f"{text}\n    hint: {error.hint}"
