"""What the enforcement point logs while a scenario runs, kept for its report."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def captured_log() -> Iterator[list[str]]:
    """Yield a list that gets the warnings of `pdp`, which then go nowhere else.

    What fails in a scenario may be just what it expects.
    """
    log, handler = logging.getLogger("pdp"), _Lines(logging.WARNING)
    handlers, propagate = log.handlers, log.propagate
    log.handlers, log.propagate = [handler], False
    try:
        yield handler.lines
    finally:
        log.handlers, log.propagate = handlers, propagate


class _Lines(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self.lines.append(record.getMessage() + (f": {type(error).__name__}: {error}" if error else ""))
