"""Runs of tools: what a run stores, which versions a run pins, when a run ends, and to which run a tool belongs."""

import asyncio
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import pytest

from pdp.patterns import run as run_module
from pdp.patterns.exceptions import PatternFault, SourceUnavailableError
from pdp.patterns.run import LIFETIME, Deployment, Pin, Run, RunClosedError, Runs, RunsFullError, pinned, within_run
from tests.support import at_once


def marked(runs: Runs, run_id: str) -> Run:
    """Return a run with a stored marking, because a closed run is remembered only if it has stored something."""
    run = runs.open(run_id, "ann")
    run.mark("doc", "1", {"secret"})
    return run


def test_opening_a_run_id_again_returns_the_same_run_until_the_run_ends() -> None:
    runs = Runs()
    first = runs.open("run-1", "ann")

    assert runs.open("run-1", "ann") is first
    assert runs.open("run-2", "ann") is not first
    assert runs.open(None, "ann") is not runs.open(None, "ann")
    runs.end("run-1", "ann")
    runs.end("never opened", "ann")
    assert runs.open("run-1", "ann") is not first


def test_least_recently_used_run_is_closed_first_and_cannot_be_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_module, "MAX_RUNS", 2)
    runs = Runs()
    first, second = marked(runs, "run-1"), marked(runs, "run-2")
    runs.open("run-1", "ann")
    marked(runs, "run-3")

    hint = "use another run_id, or end this run; end finished runs"
    assert runs.open("run-1", "ann") is first
    with pytest.raises(RunClosedError) as caught:
        runs.open("run-2", "ann")
    assert (caught.value.code, str(caught.value)) == (
        "run.closed",
        f"run run-2 was closed to make room for others, and its memory is lost ({hint})",
    )
    runs.end("run-2", "ann")
    assert runs.open("run-2", "ann") is not second


def test_run_cannot_be_opened_if_no_other_run_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_RUNS", 1)
    monkeypatch.setattr(run_module, "MAX_CLOSED_RUNS", 1)
    runs = Runs()
    marked(runs, "run-1")
    second = marked(runs, "run-2")
    with pytest.raises(RunsFullError) as caught:
        runs.open("run-3", "ann")

    assert (caught.value.code, str(caught.value)) == (
        "run.too_many", "1 runs are open, and no more can be closed (end finished runs)",
    )  # fmt: skip
    assert runs.open("run-2", "ann") is second
    runs.end("run-1", "ann")
    assert runs.open("run-3", "ann").run_id == "run-3"


def test_closed_run_with_only_records_and_snapshots_can_be_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_RUNS", 1)
    monkeypatch.setattr(run_module, "MAX_CLOSED_RUNS", 1)
    runs = Runs()
    for number in range(100):
        run = runs.open(f"lookups-{number}", "ann")
        run.keep_record("key", b"{}")
        run.keep_snapshot("snap", ["doc"])

    assert runs.open("lookups-99", "ann").record("key") == b"{}"
    assert runs.open("lookups-98", "ann").record("key") is None


def test_run_closed_during_a_call_rejects_new_markings_answers_and_staged_actions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_module, "MAX_RUNS", 1)
    runs = Runs()
    going_on = runs.open("run-1", "ann")
    runs.open("run-2", "ann")
    remembering: list[Callable[[], object]] = [
        lambda: going_on.mark("doc", "1", {"secret"}), lambda: going_on.same_answer("key", 1),
        lambda: going_on.keep_staged("pay", "sha256:1", "act-1"),
    ]  # fmt: skip

    for remember in remembering:
        with pytest.raises(PatternFault) as caught:
            remember()
        assert caught.value.rule == "run.closed"
    assert runs.open("run-1", "ann") is not going_on


def test_run_ends_after_a_day_without_calls_even_if_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_RUNS", 2)
    now = 0.0
    runs = Runs(clock=lambda: now)
    closed, used, idle = (marked(runs, name) for name in ("closed", "used", "idle"))
    now = LIFETIME - 1
    runs.open("used", "ann")
    now = LIFETIME

    assert runs.open("used", "ann") is used
    assert runs.open("idle", "ann") is not idle
    assert runs.open("closed", "ann") is not closed


def test_closed_run_stays_closed_as_long_as_calls_still_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_RUNS", 1)
    now = 0.0
    runs = Runs(clock=lambda: now)
    marked(runs, "closed")
    marked(runs, "other")
    for days in (0.9, 1.8, 2.7):
        now = days * LIFETIME
        with pytest.raises(RunClosedError):
            runs.open("closed", "ann")


def test_callers_with_the_same_run_id_have_separate_runs() -> None:
    runs = Runs()
    ann, ben = runs.open("run-1", "ann"), runs.open("run-1", "ben")
    runs.end("run-1", "ben")

    assert ann is not ben
    assert runs.open("run-1", "ann") is ann
    assert runs.open("run-1", "ben") is not ben


def test_run_with_the_maximum_number_of_entries_rejects_new_markings_actions_and_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_module, "MAX_ENTRIES", 2)
    run = Runs().open("run-1", "ann")
    for number in range(2):
        run.mark("doc", str(number), {"secret"})
        run.keep_staged("pay", str(number), f"action-{number}")
        assert run.same_answer(number, "yes")
    faults = []
    for more in (
        lambda: run.mark("doc", "2", {"secret"}), lambda: run.keep_staged("pay", "2", "action-2"),
        lambda: run.same_answer(2, "yes"),
    ):  # fmt: skip
        with pytest.raises(PatternFault) as caught:
            more()
        faults.append((caught.value.rule, caught.value.message))

    assert faults == [
        ("run.full", f"run.full: the run remembers 2 {what}, which is the maximum")
        for what in ("marked objects", "staged actions", "answers")
    ]
    run.mark("doc", "0", {"internal"})
    assert run.markings_of("doc", "0") == frozenset(("secret", "internal"))
    assert (run.staged_action("pay", "0"), run.same_answer(0, "no")) == ("action-0", False)


def test_staged_action_is_bound_to_the_first_call_that_uses_it() -> None:
    run = Runs().open("run-1", "ann")
    run.keep_staged("pay", "sha256:1", "action-1")
    bound = [run.bind_staged("pay", "sha256:1", call) for call in ("call-1", "call-2", "call-1")]

    assert bound == ["action-1", None, "action-1"]
    assert run.bind_staged("pay", "sha256:2", "call-1") is None


def test_run_keeps_the_newest_records_and_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_ENTRIES", 2)
    run = Runs().open("run-1", "ann")
    for number in range(3):
        run.keep_record(number, b"{}")
        run.keep_snapshot(f"snap-{number}", [f"doc-{number}"])

    assert [run.record(number) for number in range(3)] == [None, b"{}", b"{}"]
    assert [run.knows_snapshot(f"snap-{number}") for number in range(3)] == [False, True, True]


def test_evidence_names_the_newest_snapshot_that_contains_its_source() -> None:
    run = Runs().open("run-1", "ann")
    run.keep_snapshot("snap-1", ["a", "b"])
    run.keep_snapshot("snap-2", ["b"])
    run.keep_snapshot("snap-1", ["c"])

    assert [run.snapshot_of(source) for source in "abcd"] == ["snap-1", "snap-1", "snap-1", None]


def test_concurrent_openings_of_one_run_id_return_the_same_run() -> None:
    read: list[int] = []

    def source() -> Pin:
        read.append(1)
        return Pin(f"v-{len(read)}", {})

    runs = Runs(Deployment(sources={"ecb": source}))

    assert len({id(run) for run in at_once([lambda: runs.open("run-1", "ann")] * 8)}) == 1


def test_later_change_of_source_data_does_not_change_a_pin() -> None:
    rates = {"TRY": 47.5}
    run = Runs(Deployment(sources={"ecb": lambda: Pin("v-1", rates)})).open("run-1", "ann")
    rates["TRY"] = 50.0

    assert run.pin("ecb") == Pin("v-1", {"TRY": 47.5})


@pytest.mark.parametrize("pin", [Pin("", {}), Pin("v-1", object()), Pin("v-1", float("nan")), Pin(7, {}), None])  # type: ignore[arg-type]
def test_source_that_returns_an_invalid_pin_is_not_pinned(pin: Any) -> None:
    run = Runs(Deployment(sources={"ecb": lambda: pin, "fed": lambda: Pin("v-1", {})})).open("run-1", "ann")

    assert dict(run.pins) == {"fed": Pin("v-1", {})}
    with pytest.raises(SourceUnavailableError) as caught:
        run.pin("ecb")
    assert caught.value.message == "source_unavailable: ecb is not pinned in this run"


def test_pinned_called_in_a_tool_returns_the_pin_of_the_current_run() -> None:
    def tool() -> Any:
        return pinned("ecb").value

    async def slow_tool() -> Any:
        await asyncio.sleep(0)
        return pinned("ecb").value

    runs = Runs(Deployment(sources={"ecb": lambda: Pin("v-1", {"TRY": 47.5})}))
    run = runs.open("run-1", "ann")

    with within_run(run):
        assert tool() == asyncio.run(slow_tool()) == {"TRY": 47.5}
    with pytest.raises(SourceUnavailableError) as caught:
        tool()
    assert caught.value.message == "source_unavailable: ecb is not pinned, because no run is active"


async def test_tools_of_concurrent_runs_get_the_pins_of_their_own_run() -> None:
    async def tool(run: Run) -> str:
        with within_run(run):
            await asyncio.sleep(0)
            return pinned("ecb").version

    pins = [Pin(f"v-{number}", number) for number in range(5)]
    runs = [Runs(Deployment(sources={"ecb": partial(copy, pin)})).open("run-1", "ann") for pin in pins]

    assert await asyncio.gather(*map(tool, runs)) == [f"v-{number}" for number in range(5)]
