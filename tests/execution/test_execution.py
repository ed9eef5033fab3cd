"""Running a tool: results, failures and time-outs."""

import asyncio
import contextvars
import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdp.contract.sensitive import MASK, Mask, masked
from pdp.errors import UsageError
from pdp.execution import runner as running
from pdp.execution.failures import (
    MAX_MESSAGE,
    ToolArgumentError,
    ToolError,
    ToolResultError,
    ToolUnavailableError,
    failure_of,
    safe_text,
)
from pdp.execution.runner import ToolRunner, arun_once, run_once
from pdp.manifest.effective import effective_tool
from pdp.manifest.model import DeclaredTool, Tool
from pdp.proposal import Execution, Failure, FailureCode
from tests.support import PATIENCE

_who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


def double(number: int) -> int:
    return number * 2


async def adouble(number: int) -> int:
    await asyncio.sleep(0)
    return number * 2


class AsynchronousTool:
    async def __call__(self, number: int) -> int:
        return number * 2


def raising(error: Exception) -> Callable[..., Any]:
    def tool(**_: Any) -> None:
        raise error

    return tool


def araising(error: Exception) -> Callable[..., Any]:
    async def tool(**_: Any) -> None:
        raise error

    return tool


def executed(function: Callable[..., Any], timeout: float | None, asynchronous: bool) -> Execution:
    if asynchronous:
        return asyncio.run(arun_once(function, {"number": 21}, timeout))
    return run_once(function, {"number": 21}, timeout)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("timeout", [None, 30.0])
@pytest.mark.parametrize(
    ("function", "result", "message"),
    [
        pytest.param(double, 42, None, id="function"),
        pytest.param(adouble, 42, None, id="coroutine function"),
        pytest.param(AsynchronousTool(), 42, None, id="object with async __call__"),
        *[
            pytest.param(made(error), None, message, id=f"{type(error).__name__}, {made.__name__}")
            for made in (raising, araising)
            for error, message in (
                (LookupError("no 21"), "LookupError: no 21"),
                (TimeoutError("hub"), "TimeoutError: hub"),
            )
        ],
    ],
)
def test_run_returns_the_result_or_the_failure_of_a_tool(
    function: Callable[..., Any], result: Any, message: str | None, timeout: float | None, asynchronous: bool
) -> None:
    execution = executed(function, timeout, asynchronous)

    assert (execution.result, execution.started) == (result, True)
    # The message for the model names only the class of the exception. `error` has the whole exception, for the
    # developer.
    assert (execution.failure.message if execution.failure else None) == (
        message.partition(":")[0] if message else None
    )
    assert (execution.failure.code if execution.failure else None) == (
        FailureCode.TOOL_EXECUTION_FAILED if message else None
    )
    assert (f"{type(execution.error).__name__}: {execution.error}" if execution.error else None) == message


TIMED_OUT_SOON = Failure(FailureCode.TOOL_TIMEOUT, "the tool gave no result within 0.01 seconds", {"effect": "unknown"})
TIMED_OUT = Failure(FailureCode.TOOL_TIMEOUT, "the tool gave no result within 0.05 seconds", {"effect": "unknown"})


@pytest.mark.parametrize("asynchronous", [False, True])
def test_slow_tool_times_out(asynchronous: bool) -> None:
    released = threading.Event()
    try:
        assert executed(lambda number: released.wait(PATIENCE), 0.05, asynchronous).failure == TIMED_OUT
    finally:
        released.set()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_slow_coroutine_is_cancelled(asynchronous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "STOP_SECONDS", PATIENCE)
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
def test_tool_sees_context_variables_of_its_caller(timeout: float | None) -> None:
    token = _who.set("officer-123")
    try:
        assert run_once(_who.get, {}, timeout).result == "officer-123"
        assert asyncio.run(arun_once(_who.get, {}, timeout)).result == "officer-123"
    finally:
        _who.reset(token)


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("not even that")


def returning_what_has_yet_to_run(number: int) -> Any:
    return (each for each in range(number))


def forgetting_to_wait(number: int) -> Any:
    return adouble(number)


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
            "the tool returned an unfinished coroutine or generator; make it an async function",
            id="a generator",
        ),
        pytest.param(
            forgetting_to_wait,
            "the tool returned an unfinished coroutine or generator; make it an async function",
            id="a coroutine",
        ),
    ],
)
def test_tool_that_cancels_itself_or_returns_an_unfinished_coroutine_fails(
    function: Callable[..., Any], message: str, asynchronous: bool
) -> None:
    failure = executed(function, None, asynchronous).failure

    assert failure is not None
    assert failure.message == message


async def test_coroutine_function_can_be_called_synchronously_inside_an_event_loop() -> None:
    assert run_once(adouble, {"number": 21}, None).result == 42


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_system_exit_is_not_a_failure_of_the_tool(timeout: float | None) -> None:
    def leaving() -> None:
        raise SystemExit(7)

    with pytest.raises(SystemExit, match="7"):
        run_once(leaving, {}, timeout)


# Cancellation and time-outs


async def test_cancelled_caller_cancels_the_tool() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def waiting() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    calling = asyncio.create_task(arun_once(waiting, {}, 30))
    await began.wait()
    calling.cancel()

    with pytest.raises(asyncio.CancelledError):
        await calling
    assert ended.is_set()


async def test_cancelled_caller_does_not_wait_for_a_plain_function() -> None:
    began, release, ended = threading.Event(), threading.Event(), threading.Event()

    def waiting() -> None:
        began.set()
        release.wait(PATIENCE)
        ended.set()

    calling = asyncio.create_task(arun_once(waiting, {}, None))
    await asyncio.to_thread(began.wait, PATIENCE)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling

    assert not ended.is_set()
    release.set()
    assert await asyncio.to_thread(ended.wait, PATIENCE)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_runner_stops_waiting_for_a_coroutine_that_ignores_cancellation(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "STOP_SECONDS", 0.05)
    release = threading.Event()

    async def stubborn(number: int) -> None:
        while not release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    async def stopped() -> Execution:
        execution = await arun_once(stubborn, {"number": 1}, 0.05)
        release.set()
        return execution

    try:
        execution = asyncio.run(stopped()) if asynchronous else run_once(stubborn, {"number": 1}, 0.05)
    finally:
        release.set()

    assert execution.failure == TIMED_OUT


def test_runner_stops_waiting_for_a_coroutine_that_blocks_its_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "STOP_SECONDS", 0.05)
    release = threading.Event()

    async def blocking() -> None:
        release.wait(PATIENCE)

    try:
        assert run_once(blocking, {}, 0.05).failure == TIMED_OUT
    finally:
        release.set()
        join_tools()


def join_tools() -> None:
    """Wait for the threads of hung tools, so that their log lines do not reach the next test."""
    for thread in threading.enumerate():
        if thread.name == "pdp-tool":
            thread.join(PATIENCE)


async def test_late_result_is_accepted_if_the_coroutine_blocked_the_event_loop_of_its_caller() -> None:
    async def blocking() -> str:
        began = time.monotonic()
        while time.monotonic() < began + 0.05:
            pass
        return "late"

    assert await arun_once(blocking, {}, 0.01) == Execution(result="late")


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("patience", [0.0, 60.0], ids=["left alone", "waited for"])
async def test_outcome_of_a_coroutine_after_its_time_out_is_ignored(
    patience: float, raises: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(running, "STOP_SECONDS", patience)
    release, ended = asyncio.Event(), asyncio.Event()
    if patience:
        release.set()

    async def slow() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await release.wait()
        ended.set()
        if raises:
            raise ConnectionError("hub is down")
        return "too late"

    execution = await arun_once(slow, {}, 0.01)
    release.set()
    await asyncio.wait_for(ended.wait(), PATIENCE)
    await asyncio.sleep(0)
    gc.collect()

    assert execution == Execution(failure=TIMED_OUT_SOON)
    assert caplog.records == []


def test_tools_that_never_return_do_not_block_other_tools() -> None:
    release = threading.Event()

    async def many() -> list[Execution]:
        hanging = [arun_once(lambda: release.wait(PATIENCE), {}, 0.05) for _ in range(50)]
        late = await asyncio.gather(*hanging)
        return [*late, await arun_once(double, {"number": 21}, 30)]

    try:
        *late, last = asyncio.run(many())
    finally:
        release.set()

    assert [execution.failure for execution in late] == [TIMED_OUT] * 50
    assert last == Execution(result=42)


INTERRUPTED = """
import asyncio, sys
from pdp.execution import runner
from pdp.execution.runner import run_once
runner.STOP_SECONDS = 600
async def waiting():
    print("began", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("ended", flush=True)
try:
    run_once(waiting, {}, eval(sys.argv[1]))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.process
@pytest.mark.parametrize("timeout", [None, 60.0])
def test_keyboard_interrupt_ends_the_tool(timeout: float | None) -> None:
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED, repr(timeout)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"began\n"
        process.send_signal(signal.SIGINT)

        assert process.stdout.read() == b"ended\ninterrupted\n"


def test_late_end_of_a_plain_function_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    late: list[threading.Thread] = []

    def waiting() -> None:
        late.append(threading.current_thread())
        release.wait(PATIENCE)

    assert asyncio.run(arun_once(waiting, {}, 0.05)).failure == TIMED_OUT
    release.set()
    late[0].join(PATIENCE)

    assert caplog.records == []


# Failures that the model sees


class HubError(ToolError):
    """An application's subclass of `ToolError`."""


FAILED = FailureCode.TOOL_EXECUTION_FAILED


@pytest.mark.parametrize(
    ("error", "code", "message", "details"),
    [
        (ToolArgumentError("count", "must be 1 to 10, not 11"), FAILED, "argument count: must be 1 to 10, not 11",
         {"argument": "count", "effect": "none"}),
        (ToolUnavailableError("the hub is closed", hint="open 8 to 18"), FailureCode.TOOL_UNAVAILABLE,
         "the hub is closed (open 8 to 18)", {}),
        (HubError("busy", details={"queue": 7}), FAILED, "busy", {"queue": 7}),
        (FileNotFoundError(2, "No such file", "/srv/hub/my keys/private.pem"), FAILED, "FileNotFoundError", {}),
        (ValueError("\n  bad \x1b[31m thing \n  File '/a', line 3\n"), FAILED, "ValueError", {}),
        (KeyError(), FAILED, "KeyError", {}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)  # fmt: skip
def test_model_sees_only_safe_parts_of_an_exception(
    error: Exception, code: FailureCode, message: str, details: dict[str, Any]
) -> None:
    failure = Failure(code, message, {"exception": type(error).__name__, **details})

    assert run_once(raising(error), {}, None) == Execution(failure=failure, error=error, started=code is FAILED)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot open /etc/shadow: denied", "cannot open <path>: denied"),
        ("cannot open ~/keys.pem, ../up.txt and ./here", "cannot open <path>, <path> and <path>"),
        (r"cannot open C:\keys\private.pem now", "cannot open <path> now"),
        ('cannot open "/my keys/private.pem" now', "cannot open <path> now"),
        ("GET https://hub.example/v1/wires?id=7 said 503", "GET https://hub.example/v1/wires?id=7 said 503"),
        ("and/or 3/4 of a / b", "and/or 3/4 of a / b"),
        ("it's o'clock at /srv/x", "it's o'clock at <path>"),
        ("", ""),
        ("lone \ud800 surrogate", "lone surrogate"),
        ("x" * 301, "x" * 299 + "…"),
        ("x" * 300, "x" * 300),
    ],
)
def test_safe_text_hides_paths_and_control_characters(text: str, shown: str) -> None:
    assert safe_text(text) == shown


def test_message_of_a_tool_hides_passwords_in_urls() -> None:
    url = "postgresql://app:hunter2@db:5432/prod"
    failure = failure_of(ToolError(f"no answer of {url}", details={"tried": [url]}))

    shown = "postgresql://***@db:5432/prod"
    assert (failure.message, failure.details) == (f"no answer of {shown}", {"exception": "ToolError", "tried": [shown]})


class WordlessToolError(ToolError):
    __str__ = SpeechlessError.__str__


class DetailessToolError(ToolError):
    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)


ENDLESS: dict[str, Any] = {}
ENDLESS["more"] = ENDLESS


@pytest.mark.parametrize("sensitive", [[], ["number"]])
@pytest.mark.parametrize(
    ("error", "message", "details"),
    [
        (ToolError("row 7 is locked", details={"rows": {7: "locked"}}), "row 7 is locked", {"rows": {7: "locked"}}),
        (WordlessToolError("x"), "WordlessToolError", {}),
        (DetailessToolError("x"), "DetailessToolError", {}),
        (ToolError("x", details=ENDLESS), "ToolError", {}),
    ],
    ids=["a key that is no text", "no text", "no details", "details without end"],
)
def test_tool_error_without_text_or_details_is_a_failure(
    error: ToolError, message: str, details: dict[str, Any], sensitive: list[str]
) -> None:
    execution = ToolRunner(entry(sensitive=sensitive), raising(error)).run({"number": 4711})

    failure = Failure(FAILED, message, {"exception": type(error).__name__, **details})
    assert execution == Execution(failure=failure, error=error)


SECRETS = {
    "pin": "12-34",
    "token": "a\n'b\"ü/",
    "amounts": [{"sum": 25000.5}, True, None],
    "share": "k\\v",
    "key": "-----BEGIN-----\nMIIE vQ/B\n}\n-----END-----",
    "note": "open",
}


def test_failure_message_masks_every_spelling_of_a_sensitive_value() -> None:
    names = ["pin", "token", "amounts", "share", "key", "absent"]
    words = "no 12-34 for 'a\\n\\'b\"ü/' as \"a\\n'b\\\"\\u00fc/\" (25000.5, sum) k\\v open"
    error = ToolError(words, details={"seen": ["12-34", 25000.5], "open": "open"})

    failure = failure_of(error, Mask(names, SECRETS))
    assert failure.message == f"no {MASK} for '{MASK}' as \"{MASK}\" ({MASK}, {MASK}) {MASK} open"
    assert failure.details == {"exception": "ToolError", "seen": [MASK, MASK], "open": "open"}
    lines = failure_of(ToolError("MIIE vQ/B at q=MIIE%20vQ/B, q=MIIE+vQ%2FB, {}"), Mask(names, SECRETS))
    assert lines.message == f"{MASK} at q={MASK}, q={MASK}, {{}}"
    assert masked(SECRETS, names) == {**dict.fromkeys(SECRETS, MASK), "note": "open"}


@settings(max_examples=60)
@given(secret=st.text("0123456789", min_size=4, max_size=30), before=st.text(max_size=310), after=st.text(max_size=30))
def test_secrets_never_appear_in_a_failure(secret: str, before: str, after: str) -> None:
    shown = failure_of(ToolError(f"{before}{secret}{after}"), Mask(["secret"], {"secret": secret})).message

    assert secret not in shown
    assert shown.isprintable() or not shown.isascii()
    assert len(shown) <= MAX_MESSAGE


# Results


def entry(**fields: Any) -> Tool:
    stated = {"name": "look_up", "schema": {"type": "object", "properties": {"number": {"type": "integer"}}}, **fields}
    return effective_tool(DeclaredTool.model_validate(stated), None)


def test_manifest_entry_can_permit_the_model_to_see_the_text_of_any_exception() -> None:
    """The entry shows the text of exceptions, but hides paths and sensitive values in the text, as in a `ToolError`."""
    shown = entry(safety={"error_text": True}, sensitive=["note"], schema={"properties": {"note": {}}})
    for error, message in (
        (ValueError("count must be 1-10, got 11"), "count must be 1-10, got 11"),
        (OSError(2, "No such file", "/srv/keys.pem"), "[Errno 2] No such file: <path>"),
        (ValueError("a hundred and one"), "***"),
        (ValueError(), "ValueError"),
    ):
        failure = Failure(FAILED, message, {"exception": type(error).__name__})
        assert ToolRunner(shown, raising(error)).run({"note": "a hundred and one"}).failure == failure


RESULT_SCHEMA = {
    "type": "object", "required": ["rows"], "properties": {"rows": {"type": "array", "items": {"type": "integer"}}},
}  # fmt: skip
DONE = {"exception": "ToolResultError", "result": "invalid", "effect": "done"}


def returned(result: Any, schema: Any = None) -> Execution:
    return ToolRunner(entry(result_schema=schema), lambda: result).run({})


@pytest.mark.parametrize(
    ("result", "schema"),
    [
        ({"rows": []}, RESULT_SCHEMA),
        ({"rows": [1, 2], "more": None}, RESULT_SCHEMA),
        (object(), None),
        ("x" * (2**20 - 2), None),  # With the two quotes, the JSON text has exactly one mebibyte.
    ],
    ids=["as declared", "with more", "without schema any object", "a mebibyte"],
)
def test_tool_result_that_matches_its_schema_is_accepted(result: Any, schema: Any) -> None:
    assert returned(result, schema) == Execution(result=result)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, 'the result does not match its schema: result: null is not of type "object"'),
        ({}, 'the result does not match its schema: result: "rows" is a required property'),
        (
            {"rows": [1, "x", 2.5]},
            (
                'the result does not match its schema: result.rows[1]: "x" is not of type "integer"; '
                'result.rows[2]: 2.5 is not of type "integer"'
            ),
        ),
        ({"rows": (1,)}, "the result is not JSON: rows: tuple is not a type of JSON"),
        ({"rows": [float("nan")]}, "the result is not JSON: rows[0]: nan is not a number of JSON"),
        ({"rows": [], "at": object()}, "the result is not JSON: at: object is not a type of JSON"),
    ],
)
def test_result_that_does_not_match_its_declaration_is_a_failure(result: Any, message: str) -> None:
    execution = returned(result, RESULT_SCHEMA)

    assert (execution.result, execution.failure) == (
        None,
        Failure(FailureCode.TOOL_EXECUTION_FAILED, message, DONE),
    )
    assert isinstance(execution.error, ToolResultError)


@pytest.mark.parametrize(("result", "size"), [("x" * 98, 100), ("ü" * 49, 100), ([1] * 49, 99), (b"12345", 5)])
def test_result_above_the_maximum_size_is_a_failure(result: Any, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "MAX_RESULT", size)
    assert returned(result) == Execution(result=result)
    monkeypatch.setattr(running, "MAX_RESULT", size - 1)
    assert returned(result).failure == Failure(
        FailureCode.TOOL_EXECUTION_FAILED, f"the result has {size} bytes, but at most {size - 1} are allowed",
        {"exception": "ToolResultError", "result": "too_large", "effect": "done"},
    )  # fmt: skip


def doubled(value: Any, times: int) -> Any:
    """Return nested lists that contain `value` 2 to the power of `times` times, but share the memory."""
    for _ in range(times):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    "result",
    [
        pytest.param([0] * 100_000, id="many values"),
        pytest.param(doubled(0, 30), id="shared, as aliases of YAML"),
        pytest.param({"rows": doubled("x" * 60_000, 12)}, id="shared text"),
        pytest.param([{"x" * 1_000_000: 1}] * 60_000, id="shared keys"),
        pytest.param("x" * 8_000_000, id="a long text"),
        pytest.param("\U0001f600" * 8_000_000, id="a long text that is not ASCII"),
    ],
)
@pytest.mark.parametrize("schema", [None, {"type": ["object", "array", "string"]}], ids=["no schema", "a schema"])
def test_oversized_result_is_not_serialized(result: Any, schema: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Serialization would use much memory, so the size is checked before serialization.
    monkeypatch.setattr(running, "canonical", lambda _: pytest.fail("it was written"))

    assert returned(result, schema).failure == Failure(
        FailureCode.TOOL_EXECUTION_FAILED,
        "the result is too large: value: more than 65536 values, or more than 1048576 bytes of text",
        {"exception": "ToolResultError", "result": "too_large", "effect": "done"},
    )


def test_long_failure_message_contains_no_part_of_a_sensitive_value() -> None:
    lengths = []

    class Measured(Mask):
        """A mask that records the length of each text that it masks."""

        def text(self, text: str) -> str:
            lengths.append(len(text))
            return super().text(text)

    value = "".join(f"{number:04x}" for number in range(1000))[:3999]
    mask = Measured(["x"], {"x": value})

    # The message is cut to 20,000 characters, in the middle of the sixth sensitive value, and then masked.
    failure = failure_of(ToolError(value * 100), mask)

    assert (failure.message, lengths) == ("***" * 4, [20_000])


# Settings of the manifest entry


def run_by(runner: ToolRunner, arguments: dict[str, Any], asynchronous: bool) -> Execution:
    return asyncio.run(runner.arun(arguments)) if asynchronous else runner.run(arguments)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_runner_applies_the_settings_of_the_manifest_entry(asynchronous: bool) -> None:
    checked = ToolRunner(entry(result_schema={"type": "integer"}), double)
    capped = ToolRunner(entry(), lambda number: "x" * 2**number)

    def refusing(number: int) -> None:
        raise ToolArgumentError("number", f"{number} is taken")

    sensitive = ToolRunner(entry(sensitive=["number"]), refusing)

    assert run_by(checked, {"number": 21}, asynchronous) == Execution(result=42)
    wrong = run_by(checked, {"number": "x"}, asynchronous)
    large = run_by(capped, {"number": 21}, asynchronous)
    secret = run_by(sensitive, {"number": 4711}, asynchronous)
    failed = run_by(ToolRunner(entry(result_schema=RESULT_SCHEMA), raising(LookupError())), {}, asynchronous)
    assert [execution.failure and execution.failure.message for execution in (wrong, large, secret, failed)] == [
        'the result does not match its schema: result: "xx" is not of type "integer"',
        "the result has 2097154 bytes, but at most 1048576 are allowed",
        "argument number: *** is taken",
        "LookupError",
    ]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_runner_uses_the_time_out_of_the_manifest_entry(asynchronous: bool) -> None:
    async def waiting(number: int) -> None:
        await asyncio.Event().wait()

    runner = ToolRunner(entry(timeout="PT0.05S"), waiting)

    assert run_by(runner, {"number": 1}, asynchronous) == Execution(failure=TIMED_OUT)


def test_runner_without_function_or_program_is_rejected() -> None:
    with pytest.raises(UsageError) as caught:
        ToolRunner(entry())

    assert str(caught.value) == (
        "tool look_up has no allowed program "
        "(set `type: cli` and `cli: {argv: [...]}` in the manifest, and list the program in the governance file)"
    )


def test_argument_outside_the_schema_cannot_set_a_parameter() -> None:
    runner = ToolRunner(entry(), lambda number, clearance=None: (number, clearance))

    refused = runner.refused({"number": 1, "clearance": "top"})

    assert refused is not None
    assert refused.failure == Failure(
        FailureCode.TOOL_EXECUTION_FAILED, "argument clearance: is not an argument of this tool",
        {"exception": "ToolArgumentError", "argument": "clearance", "effect": "none"},
    )  # fmt: skip
    assert not refused.started
    assert runner.refused({"number": 1, "other": 2}) is None


@pytest.mark.parametrize("coroutine", [False, True])
def test_tool_is_unavailable_if_too_many_threads_are_stuck_in_tools(
    coroutine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "STOP_SECONDS", 0.0)
    hold = threading.Event()

    async def blocking() -> None:
        hold.wait(PATIENCE)

    function = blocking if coroutine else lambda: hold.wait(PATIENCE)
    runner = ToolRunner(entry(effect_class="read-internal", timeout="PT0.01S"), function)
    try:
        executions = [runner.refused({}) or runner.run({}) for _ in range(65)]
    finally:
        hold.set()
        join_tools()

    codes = [execution.failure and execution.failure.code for execution in executions]
    assert codes == [FailureCode.TOOL_TIMEOUT] * 64 + [FailureCode.TOOL_UNAVAILABLE]


@pytest.mark.parametrize(
    ("details", "started", "effect"), [(None, True, "unknown"), ({"effect": "none"}, False, "none")]
)
def test_effect_is_unknown_if_a_running_tool_with_effects_becomes_unavailable(
    details: Any, started: bool, effect: str
) -> None:
    pay = raising(ToolUnavailableError("the hub went away", details=details))
    execution = ToolRunner(entry(effect_class="commit-low", compensation="look_up"), pay).run({})

    assert execution.failure is not None
    assert (execution.started, execution.failure.details["effect"]) == (started, effect)
