"""Driving a flow: doing what a generator asks for, waiting or asynchronously, and sending back what came of it.

So that the flow itself stands once for both.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pdp.engine.protocol import Engine
    from pdp.execution.runner import ToolRunner


class ToolRun(NamedTuple):
    """A tool that a flow wants to have run; what comes back is an `Execution`."""

    runner: ToolRunner
    arguments: dict[str, Any]


class Work(NamedTuple):
    """Something that a flow wants to have done; what comes back is its result.

    `blocking`: it waits for a disk or a network, so that an event loop hands it to a thread.
    """

    do: Callable[[], Any]
    blocking: bool


class Pause(NamedTuple):
    """So many seconds that a flow wants to wait."""

    seconds: float


class PlanQuestion(NamedTuple):
    """A plan that a flow wants to have decided, canonical; what comes back is a `Decision`."""

    body: bytes


Step = bytes | ToolRun | Work | Pause | PlanQuestion
"""What a flow hands out. Bytes are a canonical request, for which it is sent a `Decision`."""

Flow = Generator[Step, Any, Any]


def drive(flow: Flow, engine: Engine) -> Any:
    """Drive `flow` to its end, waiting for each step, and return what it returns."""
    try:
        step = next(flow)
        while True:
            try:
                came = engine.decide_body(step) if isinstance(step, bytes) else _done(step, engine)
            except BaseException as error:  # noqa: BLE001 - the flow says what becomes of it
                step = flow.throw(error)
            else:
                step = flow.send(came)
    except StopIteration as end:
        return end.value


async def adrive(flow: Flow, engine: Engine) -> Any:
    """Do as `drive`, without blocking the event loop."""
    try:
        step = next(flow)
        while True:
            try:
                came = await (engine.adecide_body(step) if isinstance(step, bytes) else _adone(step, engine))
            except BaseException as error:  # noqa: BLE001 - the flow says what becomes of it
                step = flow.throw(error)
            else:
                step = flow.send(came)
    except StopIteration as end:
        return end.value


def _done(step: ToolRun | Work | Pause | PlanQuestion, engine: Engine) -> Any:
    match step:
        case ToolRun(runner, arguments):
            return runner.run(arguments)
        case Work(do, _):
            return do()
        case Pause(seconds):
            return time.sleep(seconds)
        case PlanQuestion(body):
            return engine.decide_plan(body)


async def _adone(step: ToolRun | Work | Pause | PlanQuestion, engine: Engine) -> Any:
    match step:
        case ToolRun(runner, arguments):
            return await runner.arun(arguments)
        case Work(do, blocking):
            return await asyncio.to_thread(do) if blocking else do()
        case Pause(seconds):
            return await asyncio.sleep(seconds)
        case PlanQuestion(body):
            return await engine.adecide_plan(body)
