"""The run that a tool is running in, so that a conversion gets at the rates that were pinned when it started."""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from pdp.patterns.exceptions import SourceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdp.patterns.deployment import Pin
    from pdp.patterns.run import Run

_RUN: ContextVar[Run | None] = ContextVar("pdp_run", default=None)


def pinned(source: str) -> Pin:
    """Return what a source was pinned to when the run started; for use in a tool.

        def convert_currency(value, target):
            rates = pinned("ecb").value
            return {"amount": round(value["amount"] * rates[target["currency"]], 2), ...}

    Raises:
        SourceUnavailableError: no such source is declared, it could not be read then, or no run is going on.
    """
    run = _RUN.get()
    if run is None:
        raise SourceUnavailableError(f"{source} is not pinned: no run is going on")
    return run.pin(source)


@contextmanager
def within_run(run: Run) -> Iterator[None]:
    """Let `pinned` find this run meanwhile, in this thread or task and in those that it starts."""
    before = _RUN.set(run)
    try:
        yield
    finally:
        _RUN.reset(before)


def within(run: Run, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, to be called within `run`; a coroutine function stays one."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):

        @functools.wraps(function, updated=())
        async def call_async(*given: Any, **named: Any) -> Any:
            with within_run(run):
                return await function(*given, **named)

        return call_async

    @functools.wraps(function, updated=())
    def call(*given: Any, **named: Any) -> Any:
        with within_run(run):
            return function(*given, **named)

    return call
