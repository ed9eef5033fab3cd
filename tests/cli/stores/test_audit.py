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
        ("DELETE FROM pdp_audit WHERE seq = 0",
         "the first line: earlier events were removed, inserted or moved; no event anchors them"),
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
    head.write_text(pdp("audit", "verify", url, "--json").out)
    assert pdp("audit", "verify", url, "--head", head).out == "intact: events 0 to 2\n"
    with Database.open(url) as database, database.write() as connection:
        connection.execute(text(change))

    done = pdp("audit", "verify", url, "--head", head)
    assert (done.code, done.out) == (1, f"not intact: {fault}\n")


def test_rotated_database_stream_is_shown_exported_and_verified_with_its_files(
    stores: OpenStores, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDP_AUDIT_KEY", KEY)
    folder = tmp_path / "archive"
    folder.mkdir()
    with closing(stores.open_audit(KEY.encode())) as log:
        for number in range(9):
            log.append({
                "time": f"2026-07-{number + 1:02}T10:00:00.000Z", "type": "tool.pay.dispatch", "verdict": "DENY",
                "tool_name": f"pay{number % 2}", "run_id": f"r{number % 3}", "subject": "ann", "codes": ("a.b",),
            })  # fmt: skip
    done = pdp("audit", "rotate", url, "--to", folder, "--before", "2026-07-06")
    file = folder / "audit-000000000000-000000000004.jsonl.gz"
    assert (done.code, done.out) == (0, f"{file}: events 0 to 4\n")
    anchored = "note: earlier parts were not verified; event 9 anchors them\n"
    assert pdp("audit", "verify", url).out == f"intact: events 5 to 9\n{NO_HEAD}{anchored}"
    assert pdp("audit", "verify", file, url).out == f"intact: events 0 to 9\n{NO_HEAD}"
    assert pdp("audit", "verify", url, file).code == 1

    wanted = ("--tool", "pay0", "--since", "2026-07-02", "--until", "2026-07-08", "--subject", "ann", "--code", "a.b")
    shown = pdp("audit", "show", file, url, *wanted).out
    assert [int(line.split()[0]) for line in shown.splitlines()] == [2, 4, 6]
    assert pdp("audit", "show", file, url, *wanted, "--run", "r1").out == shown.splitlines(keepends=True)[1]
    output = tmp_path / "out.jsonl.gz"
    assert pdp("audit", "export", file, url, "--output", output).out == ""
    assert pdp("audit", "verify", output).out == f"intact: events 0 to 9\n{NO_HEAD}"
    assert pdp("audit", "show", output).out == pdp("audit", "show", file, url).out
    content = file.read_bytes()
    again = pdp("audit", "export", file, "--output", file)
    assert (again.code, file.read_bytes()) == (2, content)
    assert "File exists\n    hint: name a new file" in again.err

    file.write_bytes(file.read_bytes()[:-9])
    damaged = pdp("audit", "verify", file, url)
    assert damaged.out.startswith(f"not intact: {file}: the compressed content is damaged: ")
    assert (
        json.loads(pdp("audit", "rotate", url, "--to", folder, "--keep-days", 1, "--json").out)["parts"][0]["first"]
        == 5
    )
    assert pdp("audit", "rotate", url, "--to", folder, "--keep-days", 1).out.startswith("nothing to rotate; ")


@pytest.mark.parametrize(
    "options",
    [
        ("sqlite:///store.db",), ("audit.jsonl", "--to", "."), ("audit.jsonl", "--keep-days", 3), (),
        ("sqlite:///store.db", "--to", ".", "--before", "2026-07-01", "--keep-days", 3),
    ],
)  # fmt: skip
def test_audit_rotate_rejects_arguments_that_do_not_belong_together(
    options: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = pdp("audit", "rotate", *options)
    assert (done.code, done.err.splitlines()[0]) == (2, "error: these arguments do not belong together")


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
    assert "cannot be continued: event 0: the event was written with a key, but no key was given" in unkeyed.err
    assert "set PDP_AUDIT_KEY: export PDP_AUDIT_KEY=$(cat FILE)" in unkeyed.err
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
