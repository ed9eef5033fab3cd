"""Retries: which tools and failures are retried, how often, and how long the pauses before each retry are."""

import asyncio
import threading
import time
from typing import Any

import pytest

from pdp.execution.failures import ToolArgumentError, ToolError, ToolExitError, ToolResultError, ToolUnavailableError
from pdp.execution.runner import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    ToolRunner,
    attempts,
    cut_short,
    is_retryable,
    pauses,
    run_once,
    unavailable,
)
from pdp.manifest.effective import effective_tool
from pdp.manifest.model import DeclaredTool, Tool
from pdp.proposal import Execution, Failure, FailureCode
from tests.support import PATIENCE, timely


def entry(**fields: Any) -> Tool:
    stated = {"name": "look_up", "schema": {"type": "object", "properties": {"key": {}}}, **fields}
    return effective_tool(DeclaredTool.model_validate(stated), None)


def raised(error: Exception) -> Execution:
    def raising() -> None:
        raise error

    return run_once(raising, {}, None)


DOWN = raised(ConnectionError("down"))
UP = Execution(result="up")


def tried(outcomes: list[Any], retries: int, asynchronous: bool) -> Execution:
    """Run a tool whose attempts return or raise the given outcomes in order."""

    def look_up() -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    runner = ToolRunner(entry(effect_class="pure", retries=retries), look_up)
    return asyncio.run(runner.arun({})) if asynchronous else runner.run({})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"effect_class": "pure"}, 4, id="only computes"),
        pytest.param({"effect_class": "read-internal"}, 4, id="only reads"),
        pytest.param({"effect_class": "read-external"}, 4, id="only reads elsewhere"),
        pytest.param({"effect_class": "stage"}, 1, id="stages"),
        pytest.param({"effect_class": "commit-low"}, 1, id="commits"),
        pytest.param({}, 1, id="no declared effect"),
        pytest.param({"safety": {"side_effects": "read"}}, 1, id="reads without idempotent"),
        pytest.param({"idempotency": {"required": True}}, 1, id="a key that the tool never sees"),
        pytest.param({"safety": {"idempotent": True}}, 4, id="declared idempotent"),
        pytest.param(
            {"effect_class": "commit-high", "safety": {"idempotent": True}}, 4, id="commits, declared idempotent"
        ),
        pytest.param({"effect_class": "pure", "safety": {"idempotent": False}}, 1, id="declared not idempotent"),
    ],
)
def test_only_idempotent_tools_are_retried(fields: dict[str, Any], expected: int) -> None:
    assert attempts(entry(retries=3, **fields)) == expected
    assert attempts(entry(**fields)) == 1


@pytest.mark.parametrize(
    ("execution", "expected"),
    [
        pytest.param(DOWN, True, id="an exception"),
        pytest.param(raised(ToolExitError("exit", 1)), True, id="an exit code"),
        pytest.param(UP, False, id="a result"),
        pytest.param(raised(ToolArgumentError("key", "is wrong")), False, id="a wrong argument"),
        pytest.param(raised(ToolResultError("is wrong")), False, id="a wrong result"),
        pytest.param(raised(ToolUnavailableError("closed")), False, id="unavailable now"),
        pytest.param(raised(ToolError("half done", details={"effect": "unknown"})), False, id="unknown effect"),
        pytest.param(unavailable("look_up"), False, id="no function"),
        pytest.param(cut_short(), False, id="cut short"),
        pytest.param(run_once(lambda: threading.Event().wait(0.2), {}, 0.001), False, id="time-out"),
        pytest.param(Execution(failure=Failure(FailureCode.TOOL_EXECUTION_FAILED, "?")), False, id="no exception"),
    ],
)
def test_only_temporary_failures_are_retried(execution: Execution, expected: bool) -> None:
    assert is_retryable(execution) is expected


GONE, HALF_DONE = ConnectionError("down"), ToolError("half done", details={"effect": "unknown"})


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("outcomes", "retries", "expected"),
    [
        pytest.param(["up"], 2, UP, id="first attempt succeeds"),
        pytest.param([GONE, GONE, "up"], 2, UP._replace(attempts=3), id="last attempt succeeds"),
        pytest.param([GONE, GONE, GONE], 2, raised(GONE)._replace(attempts=3), id="no attempt succeeds"),
        pytest.param([GONE], 0, raised(GONE), id="one attempt"),
        pytest.param([GONE, HALF_DONE], 2, raised(HALF_DONE)._replace(attempts=2), id="failure that is not retried"),
    ],
)
def test_retries_end_on_success_or_after_all_attempts(
    outcomes: list[Any], retries: int, expected: Execution, asynchronous: bool
) -> None:
    left = [*outcomes]

    assert tried(left, retries, asynchronous) == expected
    assert left == []


def test_pauses_between_attempts_grow_randomly_up_to_a_limit() -> None:
    first, *others = pauses(11, None)

    bounds = [min(FIRST_PAUSE * 2**number, LONGEST_PAUSE) for number in range(10)]
    assert first == 0
    assert all(0 <= pause <= bound for pause, bound in zip(others, bounds, strict=True))
    assert len(set(others)) == 10
    assert max(others) > FIRST_PAUSE


def test_retries_end_if_the_next_pause_would_exceed_the_time_out() -> None:
    assert list(pauses(2, time.monotonic())) == [0]


class Hub:
    """A tool that fails a few times and changes the arguments that it receives."""

    def __init__(self, down: int) -> None:
        self.down = down
        self.seen: list[Any] = []

    def look_up(self, key: list[str]) -> int:
        self.seen.append(list(key))
        key.append("spoilt")
        if len(self.seen) <= self.down:
            raise ConnectionError("down")
        return len(self.seen)

    async def alook_up(self, key: list[str]) -> int:
        return self.look_up(key)


@pytest.mark.parametrize("coroutine", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_attempt_gets_the_decided_arguments(coroutine: bool, asynchronous: bool) -> None:
    hub = Hub(down=1)
    runner = ToolRunner(entry(effect_class="pure", retries=2), hub.alook_up if coroutine else hub.look_up)
    arguments = {"key": ["a"]}

    execution = asyncio.run(runner.arun(arguments)) if asynchronous else runner.run(arguments)

    assert execution == Execution(result=2, attempts=2)
    assert (hub.seen, arguments) == ([["a"], ["a"]], {"key": ["a"]})


@pytest.mark.parametrize("asynchronous", [False, True])
def test_tool_that_is_not_idempotent_runs_once(asynchronous: bool) -> None:
    hub = Hub(down=1)
    runner = ToolRunner(entry(effect_class="commit-high", retries=2, idempotency={"required": True}), hub.look_up)

    execution = asyncio.run(runner.arun({"key": []})) if asynchronous else runner.run({"key": []})

    assert (execution.failure, execution.attempts, len(hub.seen)) == (
        Failure(
            FailureCode.TOOL_EXECUTION_FAILED, "ConnectionError", {"exception": "ConnectionError"}
        ),
        1,
        1,
    )  # fmt: skip


@pytest.mark.parametrize("asynchronous", [False, True])
def test_time_out_of_a_later_attempt_is_reported_and_not_retried(asynchronous: bool) -> None:
    release, stated = threading.Event(), list[float]()

    def run(seconds: float) -> Execution:
        stated.append(seconds)
        seen = []

        def look_up(key: str) -> None:
            seen.append(key)
            if len(seen) == 1:
                raise ConnectionError("down")
            release.wait(PATIENCE)

        runner = ToolRunner(entry(effect_class="pure", retries=5, timeout=f"PT{seconds}S"), look_up)
        return asyncio.run(runner.arun({"key": "a"})) if asynchronous else runner.run({"key": "a"})

    try:
        # A random pause or a slow machine may delay the second attempt, so `timely` also tries longer time-outs.
        execution = timely(run, lambda execution: execution.attempts > 1, 0.6)
    finally:
        release.set()

    assert execution == Execution(
        failure=Failure(
            FailureCode.TOOL_TIMEOUT, f"the tool gave no result within {stated[-1]:g} seconds", {"effect": "unknown"}
        ),
        attempts=2,
    )  # fmt: skip


async def test_call_can_be_cancelled_between_attempts() -> None:
    began = asyncio.Event()

    async def look_up() -> None:
        began.set()
        raise GONE

    runner = ToolRunner(entry(effect_class="pure", retries=10), look_up)
    calling = asyncio.create_task(runner.arun({}))
    await began.wait()
    calling.cancel()

    with pytest.raises(asyncio.CancelledError):
        await calling


def test_system_exit_of_a_tool_is_not_retried() -> None:
    left = [SystemExit(7), "up"]

    with pytest.raises(SystemExit, match="7"):
        tried(left, 2, asynchronous=False)
    assert left == ["up"]
