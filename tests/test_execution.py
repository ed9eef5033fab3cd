"""Running a tool: its result, its failure, or its time-out."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pdp.execution.running import Execution, arun, run
from pdp.proposal import Failure, FailureCode

_who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


def double(number: int) -> int:
    return number * 2


async def adouble(number: int) -> int:
    await asyncio.sleep(0)
    return number * 2


def failing(number: int) -> int:
    raise LookupError(f"no {number}")


async def afailing(number: int) -> int:
    raise LookupError(f"no {number}")


def timing_out_by_itself(number: int) -> int:
    raise TimeoutError(f"the hub took longer than {number} seconds")


async def atiming_out_by_itself(number: int) -> int:
    raise TimeoutError(f"the hub took longer than {number} seconds")


def executed(function: Callable[..., Any], timeout: float | None, asynchronous: bool) -> Execution:
    if asynchronous:
        return asyncio.run(arun(function, {"number": 21}, timeout))
    return run(function, {"number": 21}, timeout)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("timeout", [None, 30.0])
@pytest.mark.parametrize(
    ("function", "result", "message"),
    [
        pytest.param(double, 42, None, id="function"),
        pytest.param(adouble, 42, None, id="coroutine function"),
        pytest.param(failing, None, "no 21", id="failing function"),
        pytest.param(afailing, None, "no 21", id="failing coroutine function"),
        pytest.param(timing_out_by_itself, None, "the hub took longer than 21 seconds", id="its own time-out"),
        pytest.param(atiming_out_by_itself, None, "the hub took longer than 21 seconds", id="its own, asynchronous"),
    ],
)
def test_a_result_or_a_failure(
    function: Callable[..., Any], result: Any, message: str | None, timeout: float | None, asynchronous: bool
) -> None:
    execution = executed(function, timeout, asynchronous)

    assert (execution.result, execution.started) == (result, True)
    assert (execution.failure.message if execution.failure else None) == message
    assert (execution.failure.code if execution.failure else None) == (
        FailureCode.TOOL_EXECUTION_FAILED if message else None
    )
    assert (str(execution.error) if execution.error else None) == message


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_tool_that_takes_too_long(asynchronous: bool) -> None:
    released = threading.Event()

    def waiting(number: int) -> bool:
        return released.wait(60)

    try:
        if asynchronous:
            asyncio.run(_released_after(waiting, released))
            return
        execution = run(waiting, {"number": 1}, 0.05)
    finally:
        released.set()

    assert execution.failure == TIMED_OUT


TIMED_OUT = Failure(FailureCode.TOOL_TIMEOUT, "the tool gave no result within 0.05 seconds", {"effect": "unknown"})


async def _released_after(waiting: Callable[..., Any], released: threading.Event) -> None:
    execution = await arun(waiting, {"number": 1}, 0.05)
    released.set()

    assert execution.failure == TIMED_OUT


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_coroutine_that_takes_too_long_is_cancelled(asynchronous: bool) -> None:
    cancelled = []

    async def waiting(number: int) -> None:
        try:
            await asyncio.sleep(60 * number)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    assert executed(waiting, 0.05, asynchronous).failure == TIMED_OUT
    assert cancelled == [21]


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_a_tool_sees_its_callers_context(timeout: float | None) -> None:
    token = _who.set("officer-123")
    try:
        assert run(_who.get, {}, timeout).result == "officer-123"
        assert asyncio.run(arun(_who.get, {}, timeout)).result == "officer-123"
    finally:
        _who.reset(token)


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("not even that")


class AsynchronousTool:
    async def __call__(self, number: int) -> int:
        return number * 2


def returning_what_has_yet_to_run(number: int) -> Any:
    return (each for each in range(number))


def speechless(number: int) -> None:
    raise SpeechlessError


async def cancelling_itself(number: int) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        pytest.param(speechless, "SpeechlessError", id="an exception that cannot be shown"),
        pytest.param(cancelling_itself, "CancelledError", id="a tool that cancels itself"),
        pytest.param(
            returning_what_has_yet_to_run,
            "the tool returned something that has yet to run; make it an async function",
            id="a generator",
        ),
    ],
)
def test_odd_ends_are_failures(function: Callable[..., Any], message: str, asynchronous: bool) -> None:
    failure = executed(function, None, asynchronous).failure

    assert failure is not None
    assert failure.message == message


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_object_that_is_called_asynchronously(asynchronous: bool) -> None:
    assert executed(AsynchronousTool(), None, asynchronous).result == 42


async def test_a_coroutine_function_called_synchronously_inside_a_loop() -> None:
    assert run(adouble, {"number": 21}, None).result == 42


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_what_ends_the_program_is_not_a_failure_of_the_tool(timeout: float | None) -> None:
    def leaving() -> None:
        raise SystemExit(7)

    with pytest.raises(SystemExit, match="7"):
        run(leaving, {}, timeout)


def test_an_exception_without_words_is_named() -> None:
    def failing_silently() -> None:
        raise KeyError

    failure = run(failing_silently, {}, None).failure
    assert failure is not None
    assert failure.message == "KeyError"
