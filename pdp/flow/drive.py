"""Driving a flow: doing what a generator asks for, waiting or asynchronously, and sending back what came of it.

So that the flow itself stands once for both.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from pdp.execution.running import arun, run

if TYPE_CHECKING:
    from pdp.engine.protocol import Engine


class ToolRun(NamedTuple):
    """A tool that a flow wants to have run; see `pdp.execution.run`."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    timeout: float | None


Flow = Generator[bytes | ToolRun, Any, None]
"""Hands out canonical requests, for which it is sent decisions, and tools to run, for which it is sent executions."""


def drive(flow: Flow, engine: Engine) -> None:
    """Drive `flow` to its end, waiting for each step."""
    try:
        step = next(flow)
        while True:
            try:
                came = engine.decide_body(step) if isinstance(step, bytes) else run(*step)
            except BaseException as error:  # noqa: BLE001 - the flow says what becomes of it
                step = flow.throw(error)
            else:
                step = flow.send(came)
    except StopIteration:
        return


async def adrive(flow: Flow, engine: Engine) -> None:
    """Do as `drive`, without blocking the event loop."""
    try:
        step = next(flow)
        while True:
            try:
                came = await (engine.adecide_body(step) if isinstance(step, bytes) else arun(*step))
            except BaseException as error:  # noqa: BLE001 - the flow says what becomes of it
                step = flow.throw(error)
            else:
                step = flow.send(came)
    except StopIteration:
        return
