"""A stream in a database: shown and verified by its URL, and what has the steps of people in it."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from pdp import Approvals
from pdp.stores.sql.database import Database
from pdp.stores.url import OpenStores
from tests.cli.stores.test_keys import interrupted
from tests.support.command_line import pdp
from tests.support.postgres import empty_database

KEY = "k" * 32
NO_HEAD = "note: without --head, it does not show whether events were cut off at the end\n"
UNKEYED = "note: the chain is not keyed: whoever can write the stream could have written all of it anew\n"
NOTE = "note: no audit stream records this step; name the application's with --audit\n"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return empty_database("sqlite", tmp_path)


@pytest.fixture
def stores(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenStores]:
    monkeypatch.setenv("PDP_DATABASE_URL", url)
    with closing(OpenStores(url, upgrade=True)) as opened:
        yield opened


def write(stores: OpenStores, count: int, key: str | None = None) -> None:
    with closing(stores.open_audit(key and key.encode())) as log:
        for number in range(count):
            log.append({"time": "t", "type": "x", "tool_name": str(number)})


def test_a_stream_is_shown_by_its_url_or_the_variable(stores: OpenStores, url: str) -> None:
    assert pdp("audit", "verify").out == f"intact: no events\n{NO_HEAD}"
    write(stores, 1001)

    shown = pdp("audit", "show", url)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.splitlines() == [f"{number:6}  t  x  tool {number}" for number in range(1001)]
    assert pdp("audit", "show") == shown
    assert pdp("audit", "verify", url).out == f"intact: events 0 to 1000\n{UNKEYED}{NO_HEAD}"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("UPDATE pdp_audit SET line = replace(line, '\"tool_name\":\"1\"', '\"tool_name\":\"9\"') WHERE seq = 1",
         "the line after event 0: the hash does not match: another key wrote it, or it was changed"),
        ("DELETE FROM pdp_audit WHERE seq = 1",
         "the line after event 0: events before it were left out, put in or moved"),
        ("DELETE FROM pdp_audit WHERE seq = 0", "the first line: events before it were left out, put in or moved"),
        ("UPDATE pdp_audit SET seq = 9 WHERE seq = 1",
         "the line after event 0: events before it were left out, put in or moved"),
        ("DELETE FROM pdp_audit WHERE seq = 2", "it does not reach its head, event 2"),
    ],
)  # fmt: skip
def test_what_was_changed_shows(
    stores: OpenStores, url: str, change: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDP_AUDIT_KEY", KEY)
    write(stores, 3, KEY)
    head = tmp_path / "head"
    verified = pdp("audit", "verify", url, "--json").json
    head.write_text(json.dumps({name: verified[name] for name in ("seq", "hash")}))
    assert pdp("audit", "verify", url, "--head", head).out == "intact: events 0 to 2\n"
    with Database.open(url) as database, database.write() as connection:
        connection.execute(text(change))

    done = pdp("audit", "verify", url, "--head", head)
    assert (done.code, done.out) == (1, f"not intact: {fault}\n")


def test_a_database_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PDP_DATABASE_URL", raising=False)

    for command in ("show", "verify"):
        absent = pdp("audit", command, "sqlite:///none.db")
        assert (absent.code, absent.out) == (2, "")
        assert absent.err.startswith("error: database file ")
        assert pdp("audit", command).err.startswith("error: no database is named\n")


def test_a_step_is_recorded_where_a_service_records(stores: OpenStores, monkeypatch: pytest.MonkeyPatch) -> None:
    key = interrupted(stores)
    assert pdp("keys", "settle", "nonsense", "--outcome", "done").err.startswith(NOTE)
    write(stores, 1, KEY)
    step = ("keys", "settle", key["id"], "--outcome", "not-done", "--by", "ann")

    unkeyed = pdp(*step)
    assert (unkeyed.code, unkeyed.out) == (1, "")
    assert "cannot be continued: it is keyed, and no key was given" in unkeyed.err
    monkeypatch.setenv("PDP_AUDIT_KEY", KEY)
    done = pdp(*step)
    assert (done.code, done.err) == (0, "")
    (approval,) = Approvals(stores.approvals).list()
    assert (
        pdp("audit", "show")
        .out.splitlines()[1]
        .endswith(
            f"Z  key.settled  settled as not-done  tool initiate_wire  by ann  approval {approval.id}  key idm-4a2b"
        )
    )
    assert pdp("audit", "verify").out == f"intact: events 0 to 1\n{NO_HEAD}"
