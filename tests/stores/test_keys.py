"""Idempotency keys in memory, in SQLite and in PostgreSQL: the state of a key when a call begins."""

import math
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from pdp.errors import StoreError, StoreFullError
from pdp.manifest.fields import EffectClass
from pdp.proposal import Execution, Failure, FailureCode
from pdp.stores.approvals import Transaction
from pdp.stores.keys import (
    ApprovalUse,
    Begun,
    Conflict,
    Fresh,
    IdempotencyKey,
    IdempotencyStore,
    KeyRecord,
    KeyState,
    NotBegunError,
    Running,
    Stored,
    Unknown,
)
from pdp.stores.memory import MemoryIdempotency
from pdp.stores.sql.database import Database
from pdp.stores.sql.keys import SqlIdempotency
from tests.support import PATIENCE, at_once, payments
from tests.support.postgres import made_database

NOW = 1_782_900_000.0
KEY = IdempotencyKey("https://id", "officer-123", "initiate_wire", "2", "idm-4a2b")
ARGUMENTS, OTHERS = "sha256:a", "sha256:b"
FAILED = FailureCode.TOOL_EXECUTION_FAILED


def begin(
    keys: IdempotencyStore,
    key: IdempotencyKey = KEY,
    arguments: str = ARGUMENTS,
    *,
    ttl: float | None = None,
    now: float = NOW,
    **more: Any,
) -> Begun:
    return keys.begin(key, arguments, ttl=ttl, now=now, **more)


def begun(keys: IdempotencyStore, **more: Any) -> KeyRecord:
    fresh = begin(keys, **more)
    assert isinstance(fresh, Fresh)
    return fresh.record


def failed(**details: str) -> Execution:
    return Execution(failure=Failure(FAILED, "the hub is down", dict(details)))


def replayed(execution: Execution) -> Execution:
    return execution._replace(started=False, error=None)


def test_repeated_call_with_a_used_key_returns_the_stored_result(keys: IdempotencyStore) -> None:
    assert keys.look(KEY, ARGUMENTS, NOW) is None
    keys.finish(begun(keys), Execution(result={"id": "w-1"}), now=NOW + 1)

    stored = Stored(Execution(result={"id": "w-1"}, started=False), None)
    assert begin(keys, now=NOW + 1e9) == stored
    assert keys.look(KEY, ARGUMENTS, NOW) == stored


def test_stored_result_keeps_types_characters_and_key_order(keys: IdempotencyStore) -> None:
    result = [None, 1, 1.0, -0.5, 2**53 - 1, True, "", {"b": {"text": "\x00 \ud7ff 😀"}, "a": []}]
    keys.finish(begun(keys), Execution(result=result), now=NOW)

    stored = begin(keys)
    assert isinstance(stored, Stored)
    assert repr(stored.execution.result) == repr(result)


@pytest.mark.parametrize(
    ("result", "why"),
    [
        pytest.param({"at": {1}}, "it is not JSON (at: set is not a type of JSON)", id="not JSON"),
        pytest.param((1, 2), "it is not JSON (value: tuple is not a type of JSON)", id="would come back as a list"),
        pytest.param(math.nan, "it is not JSON (value: nan is not a number of JSON)", id="NaN"),
        pytest.param("x" * 1024 * 1024, "it is larger than 1048576 bytes", id="too large"),
    ],
)
def test_result_that_cannot_be_stored_is_stored_as_a_failure(result: Any, why: str) -> None:
    keys = MemoryIdempotency()
    keys.finish(begun(keys), Execution(result=result), now=NOW)

    message = f"the tool already ran with this idempotency key, but its result could not be stored: {why}"
    failure = Failure(FAILED, message, {"effect": "done"})
    assert begin(keys) == Stored(Execution(failure=failure, started=False), None)


def test_used_key_with_other_arguments_is_a_conflict(keys: IdempotencyStore) -> None:
    token = begun(keys)
    assert begin(keys, arguments=OTHERS) == Conflict()
    keys.finish(token, Execution(), now=NOW)
    assert begin(keys, arguments=OTHERS) == Conflict()
    assert keys.look(KEY, OTHERS, NOW) == Conflict()


def test_keys_differ_by_tenant_subject_tool_and_major_version(keys: IdempotencyStore) -> None:
    keys.finish(begun(keys), Execution(), now=NOW)

    for part in IdempotencyKey._fields:
        assert isinstance(begin(keys, KEY._replace(**{part: "\x00 ' another"})), Fresh)


def test_keys_that_differ_in_any_field_have_different_ids() -> None:
    parts = [["a", "bc", "d", "e", "f"], ["ab", "c", "d", "e", "f"], ["", "abc", "d", "e", "f"], ['a","bc', "d"]]
    ids = {IdempotencyKey(*(part + [""] * (5 - len(part)))).id for part in parts}

    assert len(ids) == len(parts)


def test_key_contains_the_tool_and_its_major_version() -> None:
    entry = payments.effective().tools["initiate_wire"]

    def major(version: str | None) -> str:
        changed = entry.model_copy(update={"version": version})
        return IdempotencyKey.of(changed, tenant="t", subject="s", key="k").major

    assert IdempotencyKey.of(entry, tenant="t", subject="s", key="k")._replace(major="") == (
        "t", "s", "initiate_wire", "", "k",
    )  # fmt: skip
    assert [major(version) for version in ("2.1.0", "12.0.0-rc.1", "0.3.0", None)] == ["2", "12", "0", ""]


@pytest.mark.parametrize("effect_class", [None, *EffectClass])
def test_effect_class_tells_whether_a_tool_has_effects(effect_class: EffectClass | None) -> None:
    entry = payments.effective().tools["initiate_wire"].model_copy(update={"effect_class": effect_class})

    assert entry.has_effects == (effect_class in {None, "stage", "commit-low", "commit-high"})


def test_unfinished_key_is_unknown_after_the_time_limit(keys: IdempotencyStore) -> None:
    begun(keys, lasting=30.0)

    assert begin(keys, now=NOW + 29) == Running(None)
    for later in (30, 1e9):
        assert begin(keys, now=NOW + later, ttl=1.0) == Unknown(None, None)


def test_outcome_of_a_key_reported_after_the_time_limit_is_stored(keys: IdempotencyStore) -> None:
    token = begun(keys, lasting=1.0)
    assert begin(keys, now=NOW + 5) == Unknown(None, None)
    keys.finish(token, Execution(result=1), now=NOW + 9)

    assert begin(keys, now=NOW + 9) == Stored(Execution(result=1, started=False), None)


def test_time_to_live_of_a_result_begins_when_its_run_ends(keys: IdempotencyStore) -> None:
    keys.finish(begun(keys, ttl=10.0), Execution(result=1), now=NOW + 5)

    assert isinstance(begin(keys, now=NOW + 14.9), Stored)
    assert keys.look(KEY, ARGUMENTS, NOW + 15) is None
    assert isinstance(begin(keys, arguments=OTHERS, now=NOW + 15), Fresh)
    assert begin(keys, arguments=OTHERS, now=NOW + 15) == Running(None)


def test_pruning_the_store_deletes_only_expired_keys(keys: IdempotencyStore) -> None:
    def named(key: str) -> IdempotencyKey:
        return KEY._replace(key=key)

    keys.finish(begun(keys, key=named("short"), ttl=10.0), Execution(), now=NOW)
    keys.finish(begun(keys, key=named("long"), ttl=100.0), Execution(), now=NOW)
    keys.finish(begun(keys, key=named("for ever")), Execution(), now=NOW)
    keys.finish(begun(keys, key=named("unknown"), ttl=10.0), failed(), now=NOW)
    begun(keys, key=named("crashed"), ttl=10.0)

    assert [keys.prune(NOW + 9), keys.prune(NOW + 10), keys.prune(NOW + 10)] == [0, 1, 0]
    kept = ("long", "for ever", "unknown", "crashed")
    assert [type(keys.look(named(key), ARGUMENTS, NOW + 60)) for key in ("short", *kept)] == [
        type(None), Stored, Stored, Unknown, Unknown,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("execution", "effects"),
    [
        pytest.param(failed(effect="none"), True, id="known to have had no effect"),
        pytest.param(failed(effect="unknown")._replace(started=False), True, id="not started"),
        pytest.param(failed(effect="unknown"), False, id="a tool without effects"),
    ],
)
def test_failure_whose_tool_had_no_effect_frees_the_key(
    keys: IdempotencyStore, execution: Execution, effects: bool
) -> None:
    keys.finish(begun(keys), execution, now=NOW, effects=effects)

    assert keys.look(KEY, ARGUMENTS, NOW) is None
    assert isinstance(begin(keys, arguments=OTHERS), Fresh)


def test_failure_with_an_unknown_effect_keeps_the_key_unknown(keys: IdempotencyStore) -> None:
    for number, details in enumerate(({"effect": "unknown"}, {"exception": "HubError"}, {"effect": "nothing"})):
        key, execution = KEY._replace(key=f"key-{number}"), failed(**details)
        keys.finish(begun(keys, key=key, ttl=1.0), execution._replace(error=ValueError()), now=NOW)

        assert begin(keys, key, now=NOW + 1e9) == Unknown(replayed(execution), None)


def test_key_stores_a_failure_whose_tool_had_an_effect(keys: IdempotencyStore) -> None:
    execution = failed(effect="done")
    keys.finish(begun(keys, ttl=10.0), execution, now=NOW)

    assert begin(keys) == Stored(replayed(execution), None)
    assert isinstance(begin(keys, now=NOW + 10), Fresh)


def test_failure_details_that_are_not_json_are_dropped(keys: IdempotencyStore) -> None:
    failure = Failure(FAILED, "bad \ud800", {"effect": "done", "at": {1}})
    keys.finish(begun(keys), Execution(failure=failure), now=NOW)
    stored = Failure(FAILED, "bad \\ud800", {"effect": "done"})
    assert begin(keys) == Stored(Execution(failure=stored, started=False), None)

    failure = Failure(FAILED, "bad", {"effect": ["done"], "at": {1}})
    keys.finish(begun(keys, key=KEY._replace(key="two")), Execution(failure=failure), now=NOW)
    unknown = Execution(failure=Failure(FAILED, "bad", {}), started=False)
    assert begin(keys, KEY._replace(key="two")) == Unknown(unknown, None)


def test_finishing_a_key_fails_if_its_run_was_not_begun_or_is_already_finished(keys: IdempotencyStore) -> None:
    record = begun(keys)
    keys.finish(record, Execution(result=1), now=NOW)
    freed = begun(keys, key=KEY._replace(key="freed"))
    keys.finish(freed, failed(effect="none"), now=NOW)

    for wrong in (record, freed, replace(record, id="another")):
        with pytest.raises(NotBegunError) as caught:
            keys.finish(wrong, Execution(result=2), now=NOW)
        assert str(caught.value) == "the run was not begun or is already finished"
    assert begin(keys) == Stored(Execution(result=1, started=False), None)


def test_store_lists_the_keys_whose_outcome_is_unknown(keys: IdempotencyStore) -> None:
    crashed, broken, done = (KEY._replace(key=name) for name in ("crashed \x00", "broken", "done"))
    keys.finish(begun(keys, key=done), Execution(result=1), now=NOW)
    keys.finish(begun(keys, key=broken), failed(), now=NOW)
    begun(keys, key=crashed, now=NOW + 1, lasting=9.0)

    assert [record.key for record in keys.unknown(NOW + 9)] == [broken]
    assert [(record.key, record.state) for record in keys.unknown(NOW + 10)] == [
        (broken, KeyState.UNKNOWN), (crashed, KeyState.STARTED),
    ]  # fmt: skip
    for record in keys.unknown(NOW + 10):
        keys.settle(record.key, None, now=NOW + 10)
    assert [*keys.unknown(NOW + 10)] == []


def test_settling_a_key_with_unknown_outcome_stores_an_outcome_or_frees_the_key(keys: IdempotencyStore) -> None:
    crashed, broken = KEY._replace(key="crashed"), KEY._replace(key="broken")
    token = begun(keys, key=crashed, lasting=10.0)
    keys.finish(begun(keys, key=broken, ttl=5.0), failed(), now=NOW)

    keys.settle(crashed, None, now=NOW + 10)
    keys.settle(broken, Execution(result="sent by hand"), now=NOW + 10)

    assert keys.look(crashed, ARGUMENTS, NOW + 10) is None
    assert begin(keys, broken, now=NOW + 10) == Stored(Execution(result="sent by hand", started=False), None)
    assert isinstance(begin(keys, broken, now=NOW + 15), Fresh)
    with pytest.raises(NotBegunError):
        keys.finish(token, Execution(), now=NOW + 11)


def test_settling_a_key_fails_if_its_outcome_is_known(keys: IdempotencyStore) -> None:
    begun(keys, lasting=10.0)
    done = KEY._replace(key="done")
    keys.finish(begun(keys, key=done), Execution(result=1), now=NOW)

    for key in (KEY, done, KEY._replace(key="none" * 100)):
        with pytest.raises(NotBegunError) as caught:
            keys.settle(key, None, now=NOW + 9)
        assert str(caught.value) == f"the idempotency key {key.key!r:.60} has no run whose outcome is unknown"
    assert begin(keys, now=NOW + 9) == Running(None)
    assert begin(keys, done) == Stored(Execution(result=1, started=False), None)


def test_beginning_a_key_uses_the_approval_only_if_the_key_is_new(keys: IdempotencyStore) -> None:
    used: list[Transaction | None] = []
    approval = ApprovalUse("approval-1", used.append)
    token = begun(keys, approval=approval)
    assert begin(keys, approval=approval, now=NOW + 1) == Running("approval-1")
    keys.finish(token, Execution(result=1), now=NOW)
    assert begin(keys, approval=approval) == Stored(Execution(result=1, started=False), "approval-1")
    assert begin(keys, approval=approval, arguments=OTHERS) == Conflict()

    assert len(used) == 1
    assert (used[0] is None) == (not keys.blocking)


def test_beginning_a_key_reserves_no_key_if_the_approval_cannot_be_used(keys: IdempotencyStore) -> None:
    def fail_halfway(transaction: Transaction | None) -> None:
        if isinstance(transaction, Connection):
            transaction.execute(text("CREATE TABLE half (id INTEGER)"))
        raise OSError("away")

    for _ in range(2):  # If the table of the first attempt still existed, the second attempt would fail.
        with pytest.raises(OSError, match="away"):
            begin(keys, approval=ApprovalUse("a", fail_halfway))
    assert keys.look(KEY, ARGUMENTS, NOW) is None


def test_memory_store_at_its_maximum_size_rejects_new_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdp.stores.memory.CAPACITY", 2)
    keys = MemoryIdempotency()
    keys.finish(begun(keys, key=KEY._replace(key="old"), ttl=10.0), Execution(), now=NOW)
    keys.finish(begun(keys), Execution(), now=NOW)
    new = KEY._replace(key="new")

    with pytest.raises(StoreFullError) as caught:
        begin(keys, new)
    assert str(caught.value) == (
        "the store in memory is full: none of its 2 idempotency keys has expired "
        "(set a ttl in the manifest entries, use a database, or settle keys with an unknown outcome)"
    )
    assert isinstance(begin(keys), Stored)
    assert isinstance(begin(keys, new, now=NOW + 10), Fresh)


def test_memory_store_at_its_maximum_size_drops_day_old_keys_without_a_time_to_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pdp.stores.memory.CAPACITY", 30)
    keys = MemoryIdempotency()
    unknown = [KEY._replace(key=f"unknown-{number}") for number in range(2)]
    keys.finish(begun(keys, key=unknown[0]), failed(effect="unknown"), now=NOW)
    begun(keys, key=unknown[1])

    for hour in range(40):
        at = NOW + 3600.0 * hour
        key = KEY._replace(key=f"hour-{hour}")
        keys.finish(begun(keys, key=key, now=at), Execution(), now=at)
        # Only keys older than a day are dropped from the store.
        assert isinstance(begin(keys, KEY._replace(key=f"hour-{max(0, hour - 23)}"), now=at), Stored)
    assert [type(begin(keys, key, now=NOW + 1e9)) for key in unknown] == [Unknown, Unknown]


def test_memory_store_at_its_maximum_size_accepts_a_new_key_after_an_old_key_expired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pdp.stores.memory.CAPACITY", 2)
    keys = MemoryIdempotency()
    keys.finish(begun(keys, key=KEY._replace(key="without")), Execution(), now=NOW)
    running = begun(keys, key=KEY._replace(key="short"), ttl=5.0)
    new = KEY._replace(key="new")
    with pytest.raises(StoreFullError):
        begin(keys, new)
    keys.finish(running, Execution(), now=NOW + 1)
    with pytest.raises(StoreFullError):
        begin(keys, new, now=NOW + 5)

    assert isinstance(begin(keys, new, now=NOW + 6), Fresh)


@pytest.mark.parametrize(
    "outcome", ["nonsense", "[]", "{}", '{"failure": {"code": "X", "message": "", "details": {}}}']
)
def test_damaged_outcome_raises_an_error(tmp_path: Path, outcome: str) -> None:
    with Database.open(made_database("sqlite", tmp_path)) as store:
        keys = SqlIdempotency(store)
        keys.finish(begun(keys), Execution(), now=NOW)
        with store.write() as connection:
            connection.execute(text("UPDATE pdp_idempotency SET outcome = :outcome"), {"outcome": outcome})

        with pytest.raises(StoreError) as caught:
            begin(keys)
    assert str(caught.value) == (
        'the outcome stored for the idempotency key ["https://id","officer-123","initiate_wire","2","idm-4a2b"] '
        "cannot be read (another program changed it, or a newer release wrote it)"
    )


def test_only_one_of_concurrent_calls_with_one_key_runs(keys: IdempotencyStore) -> None:
    runs: Counter[str] = Counter()

    def call(number: int) -> tuple[str, Any]:
        key = KEY._replace(key=str(number % 20))
        while isinstance(begun := begin(keys, key, now=time.time(), lasting=PATIENCE), Running):
            time.sleep(0.002)
        if isinstance(begun, Stored):
            return key.key, begun.execution.result
        assert isinstance(begun, Fresh)
        runs[key.key] += 1
        keys.finish(begun.record, Execution(result=f"result of {key.key}"), now=time.time())
        return key.key, f"result of {key.key}"

    results = at_once([partial(call, number) for number in range(200)])

    assert runs == Counter({str(number): 1 for number in range(20)})
    assert Counter(results) == Counter({(str(number), f"result of {number}"): 10 for number in range(20)})
