"""`pdp db` creates, upgrades and prunes tables. Its error messages name the URL of the database."""

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from pdp.contract.budgets import Take, Window
from pdp.ledger.ledger import RunLabels
from pdp.proposal import Execution
from pdp.stores.keys import IdempotencyKey
from pdp.stores.sql.budgets import SqlBudgets
from pdp.stores.sql.database import Database
from pdp.stores.sql.keys import SqlIdempotency
from pdp.stores.sql.ledger import SqlLedger
from tests.support.command_line import pdp

KEY = IdempotencyKey("", "ann", "pay", "1", "key-1")


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PDP_DATABASE_URL", raising=False)


def keep(key: IdempotencyKey, now: float, ttl: float) -> None:
    with Database.open("sqlite:///pdp.db") as store:
        keys = SqlIdempotency(store)
        begun = keys.begin(key, "sha256:a", ttl=ttl, now=now)
        keys.finish(begun.record, Execution(result=1), now=now)  # type: ignore[union-attr]


def test_db_upgrade_creates_tables_and_can_be_repeated() -> None:
    first, second = pdp("db", "upgrade", "sqlite:///pdp.db"), pdp("db", "upgrade", "sqlite:///pdp.db")

    assert [(done.code, done.out, done.err) for done in (first, second)] == [
        (0, f"sqlite:///{Path.cwd()}/pdp.db: up to date\n", "")
    ] * 2
    with closing(sqlite3.connect("pdp.db")) as connection:
        tables = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
    assert {"pdp_approvals", "pdp_actions"} <= tables


def test_database_url_is_read_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDP_DATABASE_URL", "sqlite:///other.db")

    assert pdp("db", "upgrade").out == f"sqlite:///{Path.cwd()}/other.db: up to date\n"
    assert Path("other.db").is_file()


def test_expired_results_runs_and_budgets_are_deleted() -> None:
    pdp("db", "upgrade", "sqlite:///pdp.db")
    keep(KEY, now=1_000.0, ttl=10)
    keep(KEY._replace(key="key-2"), now=1_000.0, ttl=1e10)
    with Database.open("sqlite:///pdp.db") as store:
        for run, now in (("run-1", time.time()), ("run-2", 1_000.0)):
            SqlLedger(store).write(run, RunLabels(), {}, now)
            take = Take(run, "[]", 1, Window(60.0))
            assert SqlBudgets(store).reserve(run, [take], now=now, running_until=now)

    assert [pdp("db", "prune", "sqlite:///pdp.db").out for _ in range(2)] == [
        f"sqlite:///{Path.cwd()}/pdp.db: deleted: results 1, runs 1, budgets 1, requests 0\n",
        f"sqlite:///{Path.cwd()}/pdp.db: deleted: results 0, runs 0, budgets 0, requests 0\n",
    ]
    assert json.loads(pdp("db", "prune", "sqlite:///pdp.db", "--json").out) == {
        "database": f"sqlite:///{Path.cwd()}/pdp.db", "forgotten": 0, "runs": 0, "budgets": 0,
        "requests": 0,
    }  # fmt: skip


@pytest.mark.parametrize("command", ["upgrade", "prune"])
def test_missing_database_url_is_an_error(command: str) -> None:
    hint = (
        "change to the project's folder, give a URL such as sqlite:///agent.db, set PDP_DATABASE_URL, or write "
        "`store:` in pdp.yaml"
    )
    done = pdp("db", command)

    assert (done.code, done.out, done.err) == (
        2,
        "",
        f"error: no database is given\n    hint: {hint}\n",
    )

    Path("pdp.db").touch()
    assert pdp("db", command).err.endswith("in this folder: export PDP_DATABASE_URL=sqlite:///pdp.db\n")


def test_database_without_tables_is_not_pruned() -> None:
    done = pdp("db", "prune", "sqlite:///absent.db")

    assert (done.code, done.out) == (2, "")
    assert "absent.db" in done.err
    assert not Path("absent.db").exists()


def test_error_shows_database_url_without_password() -> None:
    done = pdp("db", "upgrade", "mysql://ann:secret@db/pdp")

    assert (done.code, done.out) == (2, "")
    assert "secret" not in done.err
    assert done.err.startswith("error: ")
