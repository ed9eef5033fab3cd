"""Audit streams in a database are shown and verified by URL. They record who granted or denied an approval."""

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
NO_HEAD = "note: without --head, missing events at the end are not detected\n"
UNKEYED = "note: the stream has no key, so anyone with write access could have replaced the whole stream\n"
NOTE = "note: this change is not recorded; give the application's audit stream with --audit\n"


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


def test_audit_stream_is_found_by_url_or_environment_variable(stores: OpenStores, url: str) -> None:
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
         "the line after event 0: the hash does not match: the event was changed, or written with another key"),
        ("DELETE FROM pdp_audit WHERE seq = 1",
         "the line after event 0: earlier events were removed, inserted or moved"),
        ("DELETE FROM pdp_audit WHERE seq = 0", "the first line: earlier events were removed, inserted or moved"),
        ("UPDATE pdp_audit SET seq = 9 WHERE seq = 1",
         "the line after event 0: earlier events were removed, inserted or moved"),
        ("DELETE FROM pdp_audit WHERE seq = 2", "event 2, which the head names, is missing"),
    ],
)  # fmt: skip
def test_audit_verify_detects_changed_rows(
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


def test_audit_commands_report_an_unusable_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PDP_DATABASE_URL", raising=False)

    for command in ("show", "verify"):
        absent = pdp("audit", command, "sqlite:///none.db")
        assert (absent.code, absent.out) == (2, "")
        assert absent.err.startswith("error: database file ")
        assert pdp("audit", command).err.startswith("error: no database is given\n")


def test_approval_step_is_recorded_in_audit_stream_of_the_service(
    stores: OpenStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = interrupted(stores)
    assert pdp("keys", "settle", "nonsense", "--outcome", "done").err.startswith(NOTE)
    write(stores, 1, KEY)
    step = ("keys", "settle", key["id"], "--outcome", "not-done", "--by", "ann")

    unkeyed = pdp(*step)
    assert (unkeyed.code, unkeyed.out) == (1, "")
    assert "cannot be continued: the event was written with a key, but no key was given" in unkeyed.err
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
