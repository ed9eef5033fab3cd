"""What several tests share: projects, servers, generated requests, scripted models."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

ROOT: Final = Path(__file__).parents[2]
"""The repository."""


def at_once(steps: Sequence[Callable[[], T]]) -> list[T]:
    """Take the steps, none before all threads are there, and return what they give, in their order."""
    together = threading.Barrier(len(steps))

    def take(step: Callable[[], T]) -> T:
        together.wait(60)
        return step()

    with ThreadPoolExecutor(len(steps)) as threads:
        return list(threads.map(take, steps))
