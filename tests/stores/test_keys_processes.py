"""Idempotency keys between real processes, killed at any moment; tests/flow/test_execution.py has whole calls."""

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
from types import FrameType

import pytest

from pdp.proposal import Execution
from pdp.stores.keys import Fresh, IdempotencyKey, Running, Stored, Unknown
from pdp.stores.sql.database import Database
from pdp.stores.sql.keys import SqlIdempotency
from tests.support import PATIENCE, be_patient
from tests.support.postgres import DATABASES, made_database

pytestmark = pytest.mark.process

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.stores.test_keys_processes"])


def _key(name: str) -> IdempotencyKey:
    return IdempotencyKey("", "officer-123", "initiate_wire", "2", name)


def _run(keys: SqlIdempotency, name: str, effects: Path) -> str:
    """Do what an enforcement point does with a key, and return what it found."""
    begun = keys.begin(_key(name), "sha256:a", ttl=None, now=time.time(), lasting=PATIENCE)
    if isinstance(begun, Fresh):
        _have_effect(name, effects)
        keys.finish(begun.record, Execution(result=name), now=time.time())
    return type(begun).__name__


def _have_effect(name: str, effects: Path) -> None:
    with effects.open("ab", buffering=0) as file:
        file.write(f"{name}\n".encode())


def _effects(path: Path) -> Counter[str]:
    return Counter(path.read_text().splitlines()) if path.exists() else Counter()


def _until_killed(url: str, names: list[str], effects: Path, dies_at: int | str | None) -> None:
    """Run every key, and die at that call of a function, wherever it is, or as the function of that name returns.

    With None it lives, and writes how many functions it called into `calls` beside `effects`.
    """
    calls = 0
    be_patient()

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}
        if calls == dies_at or (event == "return" and frame.f_code.co_name == dies_at):
            os.kill(os.getpid(), signal.SIGKILL)

    with Database.open(url) as store:
        keys = SqlIdempotency(store)
        # What is done once in a process takes as long as three runs.
        _run(keys, f"first of {os.getpid()}", Path(os.devnull))
        sys.setprofile(count)
        for name in names:
            _run(keys, name, effects)
        sys.setprofile(None)
    if dies_at is None:
        effects.with_name("calls").write_text(str(calls))


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return made_database(request.param, tmp_path)


@pytest.fixture
def keys(url: str) -> Iterator[SqlIdempotency]:
    with Database.open(url) as store:
        yield SqlIdempotency(store)


def _joined(processes: list[ForkServerProcess]) -> list[int | None]:
    for process in processes:
        process.join(PATIENCE)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.close()
    return codes


def test_processes_killed_anywhere_never_run_a_tool_twice(url: str, keys: SqlIdempotency, tmp_path: Path) -> None:
    chance, effects, names = random.Random(20), tmp_path / "effects", list[str]()  # noqa: S311 - for a test to be repeated
    # One lives, which says how many calls it takes here; one dies between the effect and its record.
    codes = Counter[int | None]()
    for fate, name in ((None, "lives"), (_have_effect.__name__, "dies")):
        names += (started := [f"{name}.{each}" for each in range(4)])
        process = _context.Process(target=_until_killed, args=(url, started, effects, fate))
        process.start()
        codes.update(_joined([process]))
    assert codes == {0: 1, -signal.SIGKILL: 1}
    most = int((tmp_path / "calls").read_text())
    for number in range(10):
        new = [f"{number}.{each}" for each in range(4)]
        # Keys of a round before are tried again, whatever became of them.
        tried = new + chance.sample(names, min(2, len(names)))
        names += new
        processes = [
            _context.Process(target=_until_killed, args=(url, tried, effects, chance.randrange(1, most)))
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
