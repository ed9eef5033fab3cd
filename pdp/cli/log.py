"""What the enforcement point logs while a command runs: a line each for people, a traceback only when asked for."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pdp.cli.output import complain
from pdp.errors import PdpError

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACEBACK: Final = "PDP_TRACEBACK"
"""The environment variable with which faults are shown with the place where they happened."""


@contextmanager
def brief_log() -> Iterator[None]:
    """Show what `pdp` logs as errors on standard error; without it, Python would show a traceback."""
    if os.environ.get(TRACEBACK):
        yield
        return
    log, handler = logging.getLogger("pdp"), _Brief(logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _Brief(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = f"error: {record.getMessage()}"
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, PdpError):
            text += f": {error.message}"
        elif error is not None:
            text += f": {type(error).__name__}: {error}\n    hint: {TRACEBACK}=1 shows where it happened"
        complain(text)
