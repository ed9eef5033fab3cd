"""Idempotency keys between real processes: at the same moment, and killed at any moment."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from pdp.proposal import Execution
from pdp.stores.keys import ApprovalUse, Fresh, IdempotencyKey, Running, Stored, Unknown
from pdp.stores.sql.database import Database
from pdp.stores.sql.keys import SqlIdempotency
from tests.support.postgres import DATABASES, empty_database

pytestmark = pytest.mark.process

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.stores.test_keys_processes"])

_CALLS = 9000
"""About how many functions are called to run four keys and find two, on PostgreSQL; on SQLite three quarters of it."""


def _key(name: str) -> IdempotencyKey:
    return IdempotencyKey("", "officer-123", "initiate_wire", "2", name)


def _run(keys: SqlIdempotency, name: str, effects: Path) -> str:
    """Do what an enforcement point does with a key, and return what it found."""
    begun = keys.begin(_key(name), "sha256:a", ttl=None, now=time.time())
    if isinstance(begun, Fresh):
        _have_effect(name, effects)
        keys.finish(begun.token, Execution(result=name), now=time.time())
    return type(begun).__name__


def _have_effect(name: str, effects: Path) -> None:
    with effects.open("ab", buffering=0) as file:
        file.write(f"{name}\n".encode())


def _effects(path: Path) -> Counter[str]:
    return Counter(path.read_text().splitlines()) if path.exists() else Counter()


def _race(url: str, names: list[str], effects: Path, start: Any, found: Any) -> None:
    with Database.open(url) as store:
        keys = SqlIdempotency(store)
        for name in names:
            start.wait(60)
            found.put((name, _run(keys, name, effects)))


def _until_killed(url: str, names: list[str], effects: Path, calls: int) -> None:
    """Run every key, and die at the `calls`-th call of a function, wherever that is."""
    left = calls

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal left
        left -= event in {"call", "c_call"}
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with Database.open(url) as store:
        keys = SqlIdempotency(store)
        # What is done once in a process takes as long as three runs.
        _run(keys, f"first of {os.getpid()}", Path(os.devnull))
        sys.setprofile(count)
        for name in names:
            _run(keys, name, effects)
        sys.setprofile(None)


def _begin_and_die(url: str, approvals: Path) -> None:
    """Take a key and use an approval, and die before the transaction is committed."""
    with Database.open(url) as store:

        def use(_connection: object) -> bool:
            _have_effect("used", approvals)
            os.kill(os.getpid(), signal.SIGKILL)
            return True

        SqlIdempotency(store).begin(
            _key("a"), "sha256:a", ttl=None, now=time.time(), approval=ApprovalUse("approval", use)
        )


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    address = empty_database(request.param, tmp_path)
    Database.open(address, upgrade=True).close()
    return address


@pytest.fixture
def keys(url: str) -> Iterator[SqlIdempotency]:
    with Database.open(url) as store:
        yield SqlIdempotency(store)


def _joined(processes: list[ForkServerProcess]) -> list[int | None]:
    for process in processes:
        process.join(120)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.close()
    return codes


def test_two_processes_with_one_key_at_one_moment_run_the_tool_once(url: str, tmp_path: Path) -> None:
    names, effects = [str(number) for number in range(50)], tmp_path / "effects"
    start, found = _context.Barrier(2), _context.Queue()
    processes = [_context.Process(target=_race, args=(url, names, effects, start, found)) for _ in range(2)]
    for process in processes:
        process.start()
    answers = [found.get(timeout=120) for _ in range(2 * len(names))]

    assert _joined(processes) == [0, 0]
    assert _effects(effects) == Counter(names)
    by_name = {name: sorted(answer for each, answer in answers if each == name) for name in names}
    assert {tuple(answer) for answer in by_name.values()} <= {("Fresh", "Running"), ("Fresh", "Stored")}


def test_processes_killed_anywhere_never_run_a_tool_twice(url: str, keys: SqlIdempotency, tmp_path: Path) -> None:
    chance, effects, names = random.Random(20), tmp_path / "effects", list[str]()  # noqa: S311 - for a test to be repeated
    codes = Counter[int | None]()
    for number in range(20):
        new = [f"{number}.{each}" for each in range(4)]
        # Keys of a round before are tried again, whatever became of them.
        tried = new + chance.sample(names, min(2, len(names)))
        names += new
        processes = [
            _context.Process(target=_until_killed, args=(url, tried, effects, chance.randrange(1, _CALLS)))
            for _ in range(2)
        ]
        for process in processes:
            process.start()
        codes.update(_joined(processes))
    before = _effects(effects)
    for name in names:
        _run(keys, name, effects)
    after = _effects(effects)

    assert set(codes) == {0, -signal.SIGKILL}
    assert set(after.values()) == {1}
    found = {name: keys.look(_key(name), "sha256:a", time.time()) for name in names}
    assert {type(each) for each in found.values()} == {Stored, Running}
    for name, each in found.items():
        if isinstance(each, Stored):
            assert (after[name], each.execution.result) == (1, name)
        else:
            assert after[name] == before[name]
    # Once the time that the tools may take is over, what was not finished is unknown: never free.
    assert {type(keys.look(_key(name), "sha256:a", time.time() + 1e6)) for name in names} == {Stored, Unknown}


def test_a_process_killed_in_the_transaction_has_taken_nothing(url: str, keys: SqlIdempotency, tmp_path: Path) -> None:
    process = _context.Process(target=_begin_and_die, args=(url, tmp_path / "used"))
    process.start()

    assert _joined([process]) == [-signal.SIGKILL]
    assert _effects(tmp_path / "used") == Counter({"used": 1})
    begin = partial(keys.begin, _key("a"), "sha256:a", ttl=None, now=time.time())
    assert isinstance(begin(), Fresh)
    assert isinstance(begin(), Running)
