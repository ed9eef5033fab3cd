"""Idempotency keys between real processes, killed at any moment; tests/flow/test_execution.py has whole calls."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from pdp.proposal import Execution
from pdp.stores.keys import Fresh, IdempotencyKey, Running, Stored, Unknown
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


def test_processes_killed_anywhere_never_run_a_tool_twice(url: str, keys: SqlIdempotency, tmp_path: Path) -> None:
    chance, effects, names = random.Random(20), tmp_path / "effects", list[str]()  # noqa: S311 - for a test to be repeated
    codes = Counter[int | None]()
    for number in range(10):
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
