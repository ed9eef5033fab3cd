"""Ledgers of runs in memory, in SQLite and in PostgreSQL."""

import multiprocessing
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from pdp.errors import StoreError, StoreFullError
from pdp.ledger import ledger as ledger_module
from pdp.ledger.ledger import (
    LIFETIME,
    MOST_VALUES,
    REMEMBERED,
    RESERVED,
    LedgerStore,
    MemoryLedger,
    Origin,
    RunExpiredError,
    RunLabels,
    RunView,
    run_of,
)
from pdp.stores.sql.database import Database
from pdp.stores.sql.ledger import SqlLedger
from tests.support import PATIENCE, at_once, be_patient

NOW = 1_782_900_000.0
RUN, OTHER = "run-1", "run-2"
STRANGER = Origin("untrusted", "read_page", "call-1")
DIRECTORY = Origin("trusted", "get_contact", "call-2")
PAGE = RunLabels(frozenset({"read_page"}), frozenset({"account"}))
NOTHING = RunView(RunLabels(), {})


def write(
    ledger: LedgerStore,
    labels: RunLabels = PAGE,
    *ids: str,
    run: str = RUN,
    now: float = NOW,
    origin: Origin = STRANGER,
) -> None:
    ledger.write(run, labels, dict.fromkeys(ids, origin), now)


def read(ledger: LedgerStore, *ids: str, run: str = RUN, now: float = NOW) -> RunView:
    return ledger.read(run, ids, now)


def is_expired(ledger: LedgerStore, run: str = RUN, now: float = NOW) -> bool:
    """Return whether the ledger rejects reads and writes of the run, because the run has expired."""
    codes = set[str | None]()
    for step in (partial(read, ledger, run=run, now=now), partial(write, ledger, run=run, now=now)):
        try:
            step()
            codes.add(None)
        except RunExpiredError as error:
            codes.add(error.code)
    assert codes in ({None}, {"flow.expired"})
    return codes == {"flow.expired"}


def numbered(count: int, start: int = 0) -> list[str]:
    return [f"value-{number}" for number in range(start, start + count)]


def test_reading_a_ledger_returns_the_labels_and_the_sources_of_the_requested_values(ledger: LedgerStore) -> None:
    assert read(ledger, "a") == NOTHING
    write(ledger, PAGE, "a", "b")

    assert read(ledger, "b", "c") == RunView(PAGE, {"b": STRANGER})
    assert read(ledger, run=OTHER) == NOTHING


def test_unusual_characters_in_names_are_preserved(ledger: LedgerStore) -> None:
    names = ("tool \x00 \ud7ff 😀", "", '"quoted" \\ \n')
    labels = RunLabels(frozenset(names), frozenset(names), names)
    origin = Origin(*names)
    write(ledger, labels, "a", origin=origin)

    assert read(ledger, "a") == RunView(labels, {"a": origin})


def test_ledger_keeps_the_first_recorded_source_of_a_value(ledger: LedgerStore) -> None:
    write(ledger, PAGE, "a")
    write(ledger, RunLabels(), "a", "b", origin=DIRECTORY)

    assert read(ledger, "a", "b").sources == {"a": STRANGER, "b": DIRECTORY}


PLAN, OTHER_PLAN = RunLabels(plan=("look", "pay")), RunLabels(plan=("pay",))
CHAT = RunLabels(frozenset({"read_chat"}), frozenset({"health"}))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([PAGE, RunLabels()], PAGE),
        ([PAGE, CHAT], RunLabels(frozenset({"read_page", "read_chat"}), frozenset({"account", "health"}))),
        ([PLAN, OTHER_PLAN, PAGE], PAGE._replace(plan=PLAN.plan)),
        pytest.param([PAGE, PLAN], PAGE, id="no plan is pinned once a stranger's text was read"),
    ],
)
def test_writing_to_a_ledger_adds_labels_and_never_removes_labels(
    ledger: LedgerStore, steps: list[RunLabels], expected: RunLabels
) -> None:
    for labels in steps:
        write(ledger, labels)

    assert read(ledger).labels == expected


@pytest.mark.parametrize(
    ("known", "new"),
    [
        (RunLabels(), PAGE),
        (PAGE, RunLabels()),
        (PAGE.joined(CHAT), RunLabels()),
        (CHAT, PAGE),
        (PLAN, PAGE),
    ],
)
def test_beyond_returns_only_the_labels_that_the_given_labels_lack(known: RunLabels, new: RunLabels) -> None:
    assert PAGE.beyond(known) == new
    assert PLAN.beyond(known).plan == (None if known == PLAN else PLAN.plan)


def test_run_with_the_maximum_number_of_values_stores_trusted_but_no_untrusted_values(ledger: LedgerStore) -> None:
    ids, own, full = numbered(MOST_VALUES), numbered(RESERVED, MOST_VALUES), PAGE._replace(full=True)
    write(ledger, PAGE, *ids[:-1])
    # Values that the ledger already has do not count towards the maximum.
    write(ledger, RunLabels(), *ids)
    write(ledger, RunLabels(), *ids)
    assert read(ledger, *ids) == RunView(PAGE, dict.fromkeys(ids, STRANGER))

    write(ledger, RunLabels(), ids[0], "one more")
    assert read(ledger, ids[0], "one more") == RunView(full, {ids[0]: STRANGER})
    ledger.write(RUN, RunLabels(), {"two more": STRANGER, **dict.fromkeys(own, DIRECTORY)}, NOW)
    assert read(ledger, "two more", *own) == RunView(full, dict.fromkeys(own, DIRECTORY))
    write(ledger, CHAT, "beyond", origin=DIRECTORY)
    assert read(ledger, "beyond", ids[0]) == RunView(full.joined(CHAT), {ids[0]: STRANGER})

    assert read(ledger, run=OTHER) == NOTHING
    ledger.end(RUN)
    assert read(ledger, "one more") == NOTHING


@pytest.mark.parametrize("count", [MOST_VALUES + 1, 40_000])
def test_result_with_too_many_values_brings_the_run_to_its_maximum_number_of_values(
    ledger: LedgerStore, count: int
) -> None:
    write(ledger, PAGE, *numbered(count))

    assert read(ledger, "value-0") == RunView(PAGE._replace(full=True), {})


def test_run_expires_a_day_after_its_last_call(ledger: LedgerStore) -> None:
    write(ledger)
    for hours in (20, 40):  # A read also prolongs the life of the run.
        assert read(ledger, now=NOW + hours * 3600) == RunView(PAGE, {})
    write(ledger, now=NOW + 60 * 3600)

    assert not is_expired(ledger, now=NOW + 83 * 3600)
    assert is_expired(ledger, now=NOW + 83 * 3600 + LIFETIME)
    assert is_expired(ledger, now=NOW + 83 * 3600 + LIFETIME)


def test_expired_run_cannot_be_used_again_for_a_month(ledger: LedgerStore) -> None:
    write(ledger, PAGE, "a")
    write(ledger, run=OTHER, now=NOW + LIFETIME - 1)

    assert [ledger.prune(NOW + LIFETIME) for _ in range(2)] == [1, 0]
    # The run stays expired even if the clock goes back.
    assert is_expired(ledger, now=NOW)
    assert read(ledger, run=OTHER, now=NOW + LIFETIME) == RunView(PAGE, {})
    assert ledger.prune(NOW + REMEMBERED - 1) == 1
    assert is_expired(ledger, now=NOW + REMEMBERED - 1)
    assert ledger.prune(NOW + REMEMBERED) == 0
    assert read(ledger, "a", now=NOW + REMEMBERED) == NOTHING
    assert is_expired(ledger, OTHER, now=NOW + REMEMBERED)


def test_new_run_prunes_expired_runs(ledger: LedgerStore) -> None:
    old = [f"old-{number}" for number in range(4)]
    for run in old:
        write(ledger, PAGE, "a", run=run)
    for number in range(2):
        write(ledger, run=f"new-{number}", now=NOW + LIFETIME)
    # `is_expired` uses a time before the expiry. So the runs are expired because the writes of new runs marked them as
    # expired.
    assert [is_expired(ledger, run) for run in old] == [True] * 4

    for number in range(2):
        write(ledger, run=f"late-{number}", now=NOW + REMEMBERED)
    assert [read(ledger, run=run) for run in old] == [NOTHING] * 4


def test_clock_that_goes_back_does_not_expire_a_run(ledger: LedgerStore) -> None:
    write(ledger, now=NOW + LIFETIME)
    write(ledger, CHAT)

    assert read(ledger).labels == PAGE.joined(CHAT)
    assert not is_expired(ledger, now=NOW + 2 * LIFETIME - 1)


def test_ending_a_run_deletes_its_values_and_frees_the_run_id(ledger: LedgerStore) -> None:
    write(ledger, PAGE, "a")
    write(ledger, PAGE, "a", run=OTHER)
    write(ledger, run="over")
    ledger.prune(NOW + LIFETIME)
    for run in (RUN, "over", "never begun"):
        ledger.end(run)

    assert [read(ledger, "a", run=run) for run in (RUN, "over")] == [NOTHING] * 2
    assert is_expired(ledger, OTHER)


def test_stored_run_ids_differ_by_caller_and_ledger_key() -> None:
    key = MemoryLedger().key
    callers = ['["https://id","ann"]', '["https://id","bob"]', '["https://other","ann"]']

    assert len({run_of(key, caller, run_id) for caller in callers for run_id in ("run-1", "run-2")}) == 6
    assert run_of(key, callers[0], "run-1") != run_of(MemoryLedger().key, callers[0], "run-1")


@pytest.mark.parametrize(("writers", "is_full"), [(4, False), (5, True)])
def test_concurrent_writes_keep_all_labels_and_values(ledger: LedgerStore, writers: int, is_full: bool) -> None:
    share = MOST_VALUES // 4

    def work(number: int) -> None:
        labels = RunLabels(frozenset({f"tool-{number}"}), frozenset({f"marking-{number}"}))
        write(ledger, labels, *numbered(share, number * share))

    at_once([partial(work, number) for number in range(writers)])

    if is_full:
        assert read(ledger).labels.full
        return
    untrusted, markings = (frozenset(f"{name}-{number}" for number in range(writers)) for name in ("tool", "marking"))
    ids = numbered(writers * share)
    assert read(ledger, *ids) == RunView(RunLabels(untrusted, markings), dict.fromkeys(ids, STRANGER))


MEMORY_BOUNDS: list[tuple[str, int]] = [("MOST_RUNS", 2), ("MOST_IN_MEMORY", 5)]


@pytest.mark.parametrize(("bound", "most"), MEMORY_BOUNDS)
def test_memory_ledger_at_its_maximum_size_expires_the_least_recently_used_run(
    monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(ledger_module, bound, most)
    ledger = MemoryLedger()
    write(ledger, PAGE, "a", "b")
    write(ledger, PAGE, "a", "b", run=OTHER)
    read(ledger)
    write(ledger, PAGE, "a", "b", run="run-3")

    assert [is_expired(ledger, run) for run in (RUN, OTHER, "run-3")] == [False, True, False]


@pytest.mark.parametrize(("bound", "most"), MEMORY_BOUNDS)
def test_ending_a_run_twice_frees_its_memory_only_once(monkeypatch: pytest.MonkeyPatch, bound: str, most: int) -> None:
    monkeypatch.setattr(ledger_module, bound, most)
    ledger = MemoryLedger()
    for run in (RUN, OTHER):
        write(ledger, PAGE, "a", "b", run=run)
    for run in (OTHER, OTHER, "never begun"):
        ledger.end(run)
    write(ledger, PAGE, "a", "b", run="run-3")
    assert [is_expired(ledger, run) for run in (RUN, "run-3")] == [False, False]

    # `OTHER` was ended twice. The second end must not free memory again, so the next run must replace the oldest run.
    write(ledger, PAGE, "a", "b", run="run-4")
    assert [is_expired(ledger, run) for run in (RUN, "run-3", "run-4")] == [True, False, False]


def test_memory_ledger_counts_expired_runs_for_a_month(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MOST_EXPIRED", 1)
    ledger = MemoryLedger()
    write(ledger)

    with pytest.raises(StoreFullError, match="it keeps 1 expired runs"):
        write(ledger, run=OTHER, now=NOW + LIFETIME)
    write(ledger, run=OTHER, now=NOW + REMEMBERED)
    assert read(ledger, run=OTHER, now=NOW + REMEMBERED).labels == PAGE


def test_database_deletes_the_rows_of_ended_and_expired_runs(database: Database) -> None:
    def rows(table: str) -> int:
        with database.read() as connection:
            return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())  # noqa: S608

    ledger = SqlLedger(database)
    for run in (RUN, OTHER):
        write(ledger, PAGE, "a", "b", run=run)
    assert (rows("pdp_runs"), rows("pdp_run_values")) == (2, 4)
    ledger.end(RUN)
    assert (rows("pdp_runs"), rows("pdp_run_values")) == (1, 2)
    ledger.prune(NOW + LIFETIME)
    assert (rows("pdp_runs"), rows("pdp_run_values")) == (1, 0)
    ledger.prune(NOW + REMEMBERED)
    assert rows("pdp_runs") == 0


def test_ledgers_on_one_database_use_the_same_key(database: Database) -> None:
    with Database.open(database.url.render_as_string(hide_password=False)) as again:
        keys = {SqlLedger(each).key for each in (database, database, again)}

    (key,) = keys
    assert len(key) == 32


@pytest.mark.parametrize(
    ("statement", "step", "message"),
    [
        ("UPDATE pdp_runs SET labels = '[1]'", read, "a run of pdp_runs cannot be read"),
        ("UPDATE pdp_runs SET labels = '{'", write, "a run of pdp_runs cannot be read"),
        ("DELETE FROM pdp_ledger_key", lambda ledger: ledger.key, "the key of the run ledger is missing"),
        ("DROP TABLE pdp_runs", read, "database "),
    ],
)
def test_damaged_ledger_raises_an_error(
    database: Database, statement: str, step: Callable[[SqlLedger], Any], message: str
) -> None:
    ledger = SqlLedger(database)
    write(ledger)
    with database.write() as connection:
        connection.execute(text(statement))

    with pytest.raises(StoreError) as failure:
        step(ledger)
    assert failure.value.message.startswith(message)


_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.stores.test_ledger"])


def _write_much(url: str, number: int) -> None:
    """Write values that only this process writes, and values that all processes write."""
    be_patient()
    with Database.open(url) as database:
        ledger = SqlLedger(database)
        for step in range(8):
            labels = RunLabels(frozenset({f"tool-{number}-{step}"}))
            write(
                ledger, labels, f"{number}-{step}", f"common-{step}", origin=Origin("trusted", str(number), str(step))
            )


@pytest.mark.process
def test_concurrent_processes_lose_no_labels_or_values(database: Database) -> None:
    url = database.url.render_as_string(hide_password=False)
    processes = [_context.Process(target=_write_much, args=(url, number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [0] * 3

    own = [f"{number}-{step}" for number in range(3) for step in range(8)]
    common = [f"common-{step}" for step in range(8)]
    labels, sources = read(SqlLedger(database), *own, *common)
    assert labels == RunLabels(frozenset(f"tool-{name}" for name in own))
    assert {name: sources[name] for name in own} == {name: Origin("trusted", *name.split("-")) for name in own}
    assert {sources[name].call for name in common} == {str(step) for step in range(8)}
