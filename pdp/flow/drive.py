"""Drive a flow: do each step that the generator yields, waiting or asynchronously, and send it the result."""

import asyncio
import contextvars
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from pdp.engine.protocol import DECISION, Engine

if TYPE_CHECKING:  # only a tool that runs loads it
    from pdp.execution.runner import ToolRunner


class Question(NamedTuple):
    """A canonical request, or plan, for the engine. The result is a `Decision`."""

    body: bytes
    document: str = DECISION


class ToolRun(NamedTuple):
    """A run of a tool. The result is an `Execution`."""

    runner: "ToolRunner"
    arguments: dict[str, Any]


class Work(NamedTuple):
    """A function to call. The result is what it returns.

    A cancellation does not interrupt it: it is raised at the first later step that is not `Work`, or at the end, so
    that the flow always knows what it has reserved. `blocking` work waits for a disk or a network: an event loop hands
    it to a thread, or awaits `future` instead.
    """

    do: Callable[[], Any]
    blocking: bool
    future: Future[Any] | None = None


class Pause(NamedTuple):
    """Seconds to wait; 0: only raise a cancellation that has arrived."""

    seconds: float


CHECKPOINT: Final = Pause(0)

Step = Question | ToolRun | Work | Pause
"""One step of a flow."""

T = TypeVar("T")


def drive(flow: Generator[Step, Any, T], engine: Engine) -> T:
    """Drive `flow` to its end, waiting for each step, and return what it returns."""
    try:
        step = next(flow)
        while True:
            try:
                answer = engine.decide_body(step.body, step.document) if isinstance(step, Question) else _done(step)
            except BaseException as error:  # noqa: BLE001 - the flow says what becomes of it
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


async def adrive(flow: Generator[Step, Any, T], engine: Engine) -> T:
    """Async variant of `drive`: it does not block the event loop."""
    late: list[asyncio.CancelledError] = []
    try:
        step = next(flow)
        while True:
            try:
                answer = await _adone(step, engine, late)
            except GeneratorExit:
                _close(flow)
                raise
            except BaseException as error:  # noqa: BLE001 - the flow says what becomes of it
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as end:
        _raise_late(late)
        result: T = end.value
        return result


def _raise_late(late: list[asyncio.CancelledError]) -> None:
    if late:
        raise late.pop() from None


def _done(step: ToolRun | Work | Pause) -> Any:
    if isinstance(step, Work):
        return step.do()
    if isinstance(step, ToolRun):
        return step.runner.run(step.arguments)
    if step.seconds:
        time.sleep(step.seconds)
    return None


async def _adone(step: Step, engine: Engine, late: list[asyncio.CancelledError]) -> Any:
    if isinstance(step, Work) and not step.blocking:
        return step.do()
    if isinstance(step, Work):
        work = (
            asyncio.get_running_loop().run_in_executor(None, contextvars.copy_context().run, step.do)
            if step.future is None
            else asyncio.wrap_future(step.future)
        )
        while not work.done():
            try:
                await asyncio.wait((work,))
            except asyncio.CancelledError as error:
                late[:] = [error]
        return work.result()
    _raise_late(late)
    if isinstance(step, Question):
        return await engine.adecide_body(step.body, step.document)
    if isinstance(step, ToolRun):
        return await step.runner.arun(step.arguments)
    if step.seconds:
        await asyncio.sleep(step.seconds)
    return None


def _close(flow: Generator[Step, Any, object]) -> None:
    """Cancel a flow whose coroutine was closed; the flow still stores its outcome."""
    with suppress(StopIteration, asyncio.CancelledError):
        # Not GeneratorExit, upon which the flow's parts could do nothing more.
        step = flow.throw(asyncio.CancelledError())
        while isinstance(step, Work):
            try:
                answer = step.do()
            except Exception as error:  # noqa: BLE001 - the flow says what becomes of it
                step = flow.throw(error)
            else:
                step = flow.send(answer)
        flow.close()
