"""Budgets between real processes, killed at any moment: never a unit over, and none that was spent is lost."""

import multiprocessing
import os
import random
import signal
import sys
from pathlib import Path
from types import FrameType

import pytest
from sqlalchemy import text

from pdp.contract.budgets import Take, Window
from pdp.stores.sql.budgets import SqlBudgets
from pdp.stores.sql.database import Database
from tests.support import PATIENCE, be_patient
from tests.support.postgres import DATABASES, made_database

pytestmark = pytest.mark.process

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.stores.test_budgets_processes"])

CAP, NOW = 200, 1_782_900_000.0
TAKES = (Take("a", '["a"]', 3, Window(1e9), None, CAP), Take("b", '["b"]', 1, Window(1e9), None, CAP))


def _spend(budgets: SqlBudgets, name: str, effects: Path) -> bool:
    """Do what an enforcement point does with a budget; every third call has no effect, and gives back."""
    if not budgets.reserve(name, TAKES, now=NOW, running_until=NOW + 60):
        return False
    if hash(name) % 3 == 0:
        budgets.release(name)
        return True
    with effects.open("ab", buffering=0) as file:
        file.write(f"{name}\n".encode())
    budgets.commit(name)
    return True


def _until_killed(url: str, names: list[str], effects: Path, dies_at: int | None) -> None:
    """Spend under every name, and die at that call of a function; with None, write how many there were."""
    calls = 0
    be_patient()

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}
        if calls == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    with Database.open(url) as database:
        budgets = SqlBudgets(database)
        budgets.spent(TAKES[0], NOW)
        sys.setprofile(count)
        for name in names:
            _spend(budgets, name, effects)
        sys.setprofile(None)
    if dies_at is None:
        effects.with_name("calls").write_text(str(calls))


def _run(url: str, effects: Path, *fates: tuple[list[str], int | None]) -> list[int | None]:
    processes = [
        _context.Process(target=_until_killed, args=(url, names, effects, dies_at)) for names, dies_at in fates
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.close()
    return codes


@pytest.mark.parametrize("dialect", DATABASES)
def test_processes_killed_anywhere_never_spend_more_than_there_is(dialect: str, tmp_path: Path) -> None:
    url, effects = made_database(dialect, tmp_path), tmp_path / "effects"
    chance = random.Random(14)  # noqa: S311 - for a test to be repeated
    assert _run(url, effects, ([f"first.{number}" for number in range(6)], None)) == [0]
    most = int((tmp_path / "calls").read_text())
    codes = [
        code
        for number in range(8)
        for code in _run(
            url, effects,
            *(([f"{number}.{side}.{each}" for each in range(6)], chance.randrange(1, most)) for side in "ab"),
        )
    ]  # fmt: skip
    with Database.open(url) as database:
        budgets = SqlBudgets(database)
        # Whoever is left takes what is there, to the last that fits.
        last = [_spend(budgets, f"last.{number}", effects) for number in range(CAP)]
        used = [budgets.spent(take, NOW).used for take in TAKES]
        with database.read() as connection:
            rows = connection.execute(
                text("SELECT budget, sum(amount), count(*), count(running_until) FROM pdp_reservations GROUP BY budget")
            ).all()
        unknown = {entry.id for entry in budgets.unknown(NOW + 60)}
    done = effects.read_text().splitlines()
    kept = {budget: (total, number, number - running) for budget, total, number, running in rows}

    assert set(codes) <= {0, -signal.SIGKILL}
    assert -signal.SIGKILL in codes
    assert not last[-1]
    # The sum is that of its amounts, of both budgets those of the same calls, and nothing more would fit.
    assert used == [kept["a"][0], kept["b"][0]] == [3 * kept["a"][1], kept["b"][1]]
    assert CAP - 3 < used[0] <= CAP
    # What had its effect counts: it is committed, or nobody knows and it is listed.
    assert len(done) == len(set(done))
    assert kept["a"][2] + len(unknown) == kept["a"][1]
    assert kept["a"][2] <= len(done) <= kept["a"][1]
