"""Processes are killed at random times. No tool runs twice for a key, no budget is exceeded, and no amount is lost."""

import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from sqlalchemy import text

from pdp.contract.budgets import Take, Window
from pdp.proposal import Execution
from pdp.stores.keys import Fresh, IdempotencyKey, Running, Stored, Unknown
from pdp.stores.sql.budgets import SqlBudgets
from pdp.stores.sql.database import Database
from pdp.stores.sql.keys import SqlIdempotency
from tests.support import PATIENCE, be_patient
from tests.support.postgres import DATABASES, made_database

pytestmark = pytest.mark.process

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.stores.test_processes"])

CAP, NOW = 200, 1_782_900_000.0
TAKES = (Take("a", '["a"]', 3, Window(1e9), None, CAP), Take("b", '["b"]', 1, Window(1e9), None, CAP))
Step = Callable[[Database, str, Path], object]


def _key(name: str) -> IdempotencyKey:
    return IdempotencyKey("", "officer-123", "initiate_wire", "2", name)


def _have_effect(name: str, effects: Path) -> None:
    with effects.open("ab", buffering=0) as file:
        file.write(f"{name}\n".encode())


def _run(database: Database, name: str, effects: Path) -> None:
    """Begin a key, run the tool and finish the key, as an enforcement point does."""
    keys = SqlIdempotency(database)
    begun = keys.begin(_key(name), "sha256:a", ttl=None, now=time.time(), lasting=PATIENCE)
    if isinstance(begun, Fresh):
        _have_effect(name, effects)
        keys.finish(begun.record, Execution(result=name), now=time.time())


def _spend(database: Database, name: str, effects: Path) -> bool:
    """Reserve a budget, run the tool and commit, as an enforcement point does. Some calls only release the budget."""
    budgets = SqlBudgets(database)
    if not budgets.reserve(name, TAKES, now=NOW, running_until=NOW + 60):
        return False
    if hash(name) % 3 == 0:
        budgets.release(name)
        return True
    _have_effect(name, effects)
    budgets.commit(name)
    return True


def _until_killed(url: str, step: Step, names: list[str], effects: Path, dies_at: int | str | None) -> None:
    """Run `step` for every name. The process dies at call number `dies_at`, or when the function `dies_at` returns.

    If `dies_at` is None, the process survives and writes its number of function calls to the file `calls`.
    """
    calls = 0
    be_patient()

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}
        if calls == dies_at or (event == "return" and frame.f_code.co_name == dies_at):
            os.kill(os.getpid(), signal.SIGKILL)

    with Database.open(url) as database:
        # The first call of a process does one-time work, so it is not counted.
        _run(database, f"first of {os.getpid()}", Path(os.devnull))
        sys.setprofile(count)
        for name in names:
            step(database, name, effects)
        sys.setprofile(None)
    if dies_at is None:
        effects.with_name("calls").write_text(str(calls))


def _codes(url: str, step: Step, effects: Path, *fates: tuple[list[str], int | str | None]) -> list[int | None]:
    """Start a process for each pair of names and `dies_at`. Run all processes at once and return their exit codes."""
    processes = [
        _context.Process(target=_until_killed, args=(url, step, names, effects, dies_at)) for names, dies_at in fates
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.close()
    return codes


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return made_database(request.param, tmp_path)


def test_killed_processes_never_run_a_tool_twice(url: str, tmp_path: Path) -> None:
    chance, effects, names = random.Random(20), tmp_path / "effects", list[str]()  # noqa: S311 - a repeatable sequence
    # The first process survives and counts its function calls. The second process dies when the tool had its effect,
    # but before the effect is recorded.
    codes: list[int | None] = []
    for fate, name in ((None, "lives"), (_have_effect.__name__, "dies")):
        names += (started := [f"{name}.{each}" for each in range(4)])
        codes += _codes(url, _run, effects, (started, fate))
    assert codes == [0, -signal.SIGKILL]
    most = int((tmp_path / "calls").read_text())
    for number in range(4):
        new = [f"{number}.{each}" for each in range(4)]
        # Two keys of earlier rounds are tried again, even if their calls have finished.
        tried = new + chance.sample(names, 2)
        names += new
        codes += _codes(url, _run, effects, *((tried, chance.randrange(1, most)) for _ in range(2)))
    with Database.open(url) as database:
        keys = SqlIdempotency(database)
        before = Counter(effects.read_text().splitlines())
        for name in names:
            _run(database, name, effects)
        after = Counter(effects.read_text().splitlines())

        assert set(codes) == {0, -signal.SIGKILL}
        assert set(after.values()) == {1}
        found = {name: keys.look(_key(name), "sha256:a", time.time()) for name in names}
        assert {type(each) for each in found.values()} == {Stored, Running}
        for name, each in found.items():
            if isinstance(each, Stored):
                assert (after[name], each.execution.result) == (1, name)
            else:
                assert after[name] == before[name]
        # When the time for the tools is over, the outcome of an unfinished key is unknown, so the tool cannot run
        # again.
        assert {type(keys.look(_key(name), "sha256:a", time.time() + 1e6)) for name in names} == {Stored, Unknown}


def test_killed_processes_never_exceed_a_budget(url: str, tmp_path: Path) -> None:
    effects, chance = tmp_path / "effects", random.Random(14)  # noqa: S311 - a repeatable sequence
    codes = _codes(url, _spend, effects, ([f"first.{number}" for number in range(6)], None))
    most = int((tmp_path / "calls").read_text())
    for number in range(4):
        fates = (([f"{number}.{side}.{each}" for each in range(6)], chance.randrange(1, most)) for side in "ab")
        codes += _codes(url, _spend, effects, *fates)
    with Database.open(url) as database:
        budgets = SqlBudgets(database)
        # This process is not killed, so the process can use up the rest of the budget.
        last = [_spend(database, f"last.{number}", effects) for number in range(CAP)]
        used = [budgets.spent(take, NOW).used for take in TAKES]
        with database.read() as connection:
            rows = connection.execute(
                text("SELECT budget, sum(amount), count(*), count(running_until) FROM pdp_reservations GROUP BY budget")
            ).all()
        unknown = {entry.id for entry in budgets.unknown(NOW + 60)}
    done = effects.read_text().splitlines()
    kept = {budget: (total, number, number - running) for budget, total, number, running in rows}

    assert set(codes) == {0, -signal.SIGKILL}
    assert not last[-1]
    # The stored total of each budget equals its reservations, and every call has reserved both budgets.
    assert used == [kept["a"][0], kept["b"][0]] == [3 * kept["a"][1], kept["b"][1]]
    assert CAP - 3 < used[0] <= CAP
    # If a call had an effect, its amount is committed or listed as unknown.
    assert len(done) == len(set(done))
    assert kept["a"][2] + len(unknown) == kept["a"][1]
    assert kept["a"][2] <= len(done) <= kept["a"][1]
