"""Where progress is drawn: on a terminal's standard error, beside whatever is printed, and nowhere else."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress, ProgressColumn


def is_drawn(*, quiet: bool) -> bool:
    """Return whether there is a terminal to draw on, and nobody wants quiet."""
    return not quiet and sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def drawn(*columns: ProgressColumn) -> Iterator[Progress]:
    """Draw columns until the end, and take them away then."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield bar
