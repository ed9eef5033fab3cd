"""Runs the steps of a call, blocking or async. A generator yields the steps and gets the result of each step back."""

import asyncio
import contextvars
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from pdp.engine.protocol import DECISION, Engine

if TYPE_CHECKING:  # Only a tool that runs loads this module.
    from pdp.execution.runner import ToolRunner


class Question(NamedTuple):
    """A step of a call: the engine decides a request or plan in canonical JSON. The step's result is a `Decision`."""

    body: bytes
    document: str = DECISION


class ToolRun(NamedTuple):
    """A step of a call: run a tool. The step's result is an `Execution`."""

    runner: "ToolRunner"
    arguments: dict[str, Any]


class Work(NamedTuple):
    """A step of a call: run a function. The step's result is the function's return value.

    Cancelling the caller does not interrupt this step, because the call must know what the function reserved. The
    cancellation is raised at the next step that is not a `Work`, or at the end. If `blocking`, the function waits for
    disk or network, so an event loop runs the function in a thread or, if set, awaits `future`.
    """

    do: Callable[[], Any]
    blocking: bool
    future: Future[Any] | None = None


class Pause(NamedTuple):
    """A step of a call: wait for some seconds. With 0 seconds, the step only raises a pending cancellation."""

    seconds: float


CHECKPOINT: Final = Pause(0)

Step = Question | ToolRun | Work | Pause
"""One step of a flow."""

T = TypeVar("T")


def drive(flow: Generator[Step, Any, T], engine: Engine) -> T:
    """Run all steps that a call's generator yields, blocking at each step. Return the generator's return value."""
    try:
        step = next(flow)
        while True:
            try:
                answer = engine.decide_body(step.body, step.document) if isinstance(step, Question) else _do(step)
            except BaseException as error:  # noqa: BLE001 - raised again inside the flow
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


async def adrive(flow: Generator[Step, Any, T], engine: Engine) -> T:
    """Run all steps that a call's generator yields, in an event loop. Return the generator's return value."""
    pending: list[asyncio.CancelledError] = []
    try:
        step = next(flow)
        while True:
            try:
                answer = await _ado(step, engine, pending)
            except GeneratorExit:
                _close(flow)
                raise
            except BaseException as error:  # noqa: BLE001 - raised again inside the flow
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as end:
        _raise_pending(pending)
        result: T = end.value
        return result


def _raise_pending(pending: list[asyncio.CancelledError]) -> None:
    if pending:
        raise pending.pop() from None


def _do(step: ToolRun | Work | Pause) -> Any:
    if isinstance(step, Work):
        return step.do()
    if isinstance(step, ToolRun):
        return step.runner.run(step.arguments)
    if step.seconds:
        time.sleep(step.seconds)
    return None


async def _ado(step: Step, engine: Engine, pending: list[asyncio.CancelledError]) -> Any:
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
                pending[:] = [error]
        return work.result()
    _raise_pending(pending)
    if isinstance(step, Question):
        return await engine.adecide_body(step.body, step.document)
    if isinstance(step, ToolRun):
        return await step.runner.arun(step.arguments)
    if step.seconds:
        await asyncio.sleep(step.seconds)
    return None


def _close(flow: Generator[Step, Any, object]) -> None:
    """Cancel the generator of a call whose coroutine was closed, but let it store the call's outcome."""
    with suppress(StopIteration, asyncio.CancelledError):
        # After `GeneratorExit` the flow could no longer yield the steps that store the call's outcome.
        step = flow.throw(asyncio.CancelledError())
        while isinstance(step, Work):
            try:
                answer = step.do()
            except Exception as error:  # noqa: BLE001 - raised again inside the flow
                step = flow.throw(error)
            else:
                step = flow.send(answer)
        flow.close()
