"""Trying again: which tools, what failures, how often, and with which pauses."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pdp.execution.failures import ToolArgumentError, ToolError, ToolExitError, ToolResultError, ToolUnavailableError
from pdp.execution.retry import FIRST_PAUSE, LONGEST_PAUSE, aretried, retried, worth_repeating
from pdp.execution.runner import ToolRunner, attempts, cut_short, run_once, unavailable, unrecorded
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


class Flaky:
    """An attempt that comes to each of these in turn."""

    def __init__(self, *executions: Execution) -> None:
        self.executions = list(executions)
        self.pauses: list[float] = []

    def attempt(self) -> Execution:
        return self.executions.pop(0)

    async def aattempt(self) -> Execution:
        return self.attempt()

    async def apause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def tried(self, times: int, timeout: float | None, asynchronous: bool) -> Execution:
        if asynchronous:
            return asyncio.run(aretried(self.aattempt, times, timeout, sleep=self.apause))
        return retried(self.attempt, times, timeout, sleep=self.pauses.append)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"effect_class": "pure"}, 4, id="only computes"),
        pytest.param({"effect_class": "read-internal"}, 4, id="only reads"),
        pytest.param({"effect_class": "read-external"}, 4, id="only reads elsewhere"),
        pytest.param({"effect_class": "stage"}, 1, id="stages"),
        pytest.param({"effect_class": "commit-low"}, 1, id="commits"),
        pytest.param({}, 1, id="nobody says what it does"),
        pytest.param({"safety": {"side_effects": "read"}}, 1, id="reads, and does not say idempotent"),
        pytest.param({"idempotency": {"required": True}}, 1, id="a key that the tool never sees"),
        pytest.param({"safety": {"idempotent": True}}, 4, id="says so"),
        pytest.param({"effect_class": "commit-high", "safety": {"idempotent": True}}, 4, id="commits, and says so"),
        pytest.param({"effect_class": "pure", "safety": {"idempotent": False}}, 1, id="says that it is not"),
    ],
)
def test_only_what_does_no_harm_twice_is_tried_again(fields: dict[str, Any], expected: int) -> None:
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
        pytest.param(raised(ToolUnavailableError("closed")), False, id="not there now"),
        pytest.param(
            raised(ToolError("half done", details={"effect": "unknown"})), False, id="a tool that does not know how far"
        ),
        pytest.param(unavailable("look_up"), False, id="not there at all"),
        pytest.param(cut_short(), False, id="cut short"),
        pytest.param(unrecorded(), False, id="unrecorded"),
        pytest.param(run_once(lambda: threading.Event().wait(0.2), {}, 0.001), False, id="late"),
        pytest.param(Execution(failure=Failure(FailureCode.TOOL_EXECUTION_FAILED, "?")), False, id="nobody knows why"),
    ],
)
def test_only_what_could_come_to_something_else_is_tried_again(execution: Execution, expected: bool) -> None:
    assert worth_repeating(execution) is expected


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("executions", "times", "expected"),
    [
        pytest.param([UP], 3, UP, id="at once"),
        pytest.param([DOWN, DOWN, UP], 3, UP._replace(attempts=3), id="at last"),
        pytest.param([DOWN, DOWN, DOWN], 3, DOWN._replace(attempts=3), id="never"),
        pytest.param([DOWN], 1, DOWN, id="one attempt"),
        pytest.param([DOWN, cut_short()], 3, cut_short()._replace(attempts=2), id="no longer worth it"),
    ],
)
def test_until_it_succeeds_or_the_attempts_are_over(
    executions: list[Execution], times: int, expected: Execution, asynchronous: bool
) -> None:
    flaky = Flaky(*executions)

    assert flaky.tried(times, None, asynchronous) == expected
    assert (flaky.executions, len(flaky.pauses)) == ([], len(executions) - 1)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_pauses_grow_and_vary_and_are_bounded(asynchronous: bool) -> None:
    flaky = Flaky(*[DOWN] * 11)

    flaky.tried(11, None, asynchronous)

    bounds = [min(FIRST_PAUSE * 2**number, LONGEST_PAUSE) for number in range(10)]
    assert all(0 <= pause <= bound for pause, bound in zip(flaky.pauses, bounds, strict=True))
    assert len(set(flaky.pauses)) == 10
    assert max(flaky.pauses) > FIRST_PAUSE


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_pause_that_does_not_fit_into_the_time_out_ends_it(asynchronous: bool) -> None:
    """Pauses are not slept here; real time is that of the attempts alone."""
    flaky = Flaky(DOWN, DOWN)

    assert (flaky.tried(2, 1e-9, asynchronous), flaky.pauses) == (DOWN, [])


class Hub:
    """A tool that is down for a while, and spoils the arguments that it gets."""

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
def test_each_attempt_gets_the_decided_arguments(coroutine: bool, asynchronous: bool) -> None:
    hub = Hub(down=1)
    runner = ToolRunner(entry(effect_class="pure", retries=2), hub.alook_up if coroutine else hub.look_up)
    arguments = {"key": ["a"]}

    execution = asyncio.run(runner.arun(arguments)) if asynchronous else runner.run(arguments)

    assert execution == Execution(result=2, attempts=2)
    assert (hub.seen, arguments) == ([["a"], ["a"]], {"key": ["a"]})


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_is_not_idempotent_runs_once_and_its_failure_goes_to_the_caller(asynchronous: bool) -> None:
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
def test_a_late_attempt_is_reported_with_the_entrys_time_out_and_not_repeated(asynchronous: bool) -> None:
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
        # The pause before the second attempt is a matter of chance, and the first one of the machine.
        execution = timely(run, lambda execution: execution.attempts > 1, 0.6)
    finally:
        release.set()

    assert execution == Execution(
        failure=Failure(
            FailureCode.TOOL_TIMEOUT, f"the tool gave no result within {stated[-1]:g} seconds", {"effect": "unknown"}
        ),
        attempts=2,
    )  # fmt: skip


async def test_a_caller_that_is_cancelled_in_a_pause_or_an_attempt_is_cancelled() -> None:
    began = asyncio.Event()

    async def attempt() -> Execution:
        return DOWN

    async def pause(seconds: float) -> None:
        began.set()
        await asyncio.Event().wait()

    calling = asyncio.create_task(aretried(attempt, 3, None, sleep=pause))
    await began.wait()
    calling.cancel()

    with pytest.raises(asyncio.CancelledError):
        await calling


def test_what_ends_the_program_ends_the_attempts() -> None:
    tried = []

    def attempt() -> Execution:
        tried.append(1)
        raise SystemExit(7)

    with pytest.raises(SystemExit, match="7"):
        retried(attempt, 3, None)
    assert len(tried) == 1
