"""`pdp audit`: what a stream holds, what is said of one that is intact and of one that is not; how it is rotated."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from pdp import Database
from pdp.audit.chain import EMPTY, GENESIS
from pdp.audit.file import FileAudit
from pdp.cli.files import open_audit
from pdp.json import canonical, digest
from pdp.stores.sql.audit import SqlAudit
from tests.support.command_line import pdp

KEY = "k" * 32
NO_HEAD = "note: without --head, it does not show whether events were cut off at the end\n"
UNKEYED = "note: the chain is not keyed: whoever can write the stream could have written all of it anew\n"
ROTATED = "note: it begins with a rotation: the files before were not checked\n"


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stream").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PDP_AUDIT_KEY", raising=False)


@pytest.fixture
def _keyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDP_AUDIT_KEY", KEY)


STREAM, HEAD = Path("stream/audit.jsonl"), Path("head")


def write(count: int, **options: Any) -> None:
    log = FileAudit(STREAM, **options)
    for number in range(count):
        log.append({"time": "t", "type": "x", "tool_name": str(number)})
    log.close()


@pytest.mark.parametrize("change", ["type = 'x.changed'", "approval_id = NULL", "approval_id = 'b'"])
def test_a_column_of_a_database_that_was_changed_shows(change: str) -> None:
    with Database.open("sqlite:///pdp.db", upgrade=True) as database:
        with closing(SqlAudit(database)) as log:
            log.append({"time": "t", "type": "approval.granted", "approval_id": "a"})
        intact = pdp("audit", "verify", "sqlite:///pdp.db")
        with database.write() as connection:
            connection.execute(text(f"UPDATE pdp_audit SET {change}"))  # noqa: S608 - of this test

    done = pdp("audit", "verify", "sqlite:///pdp.db")

    assert (intact.code, done.code) == (0, 1)
    assert done.out.startswith("not intact: event 0: its columns seq, type and approval_id are not those of its line")


@pytest.mark.usefixtures("_keyed")
def test_an_intact_stream() -> None:
    write(3, key=KEY.encode(), head=HEAD)

    done = pdp("audit", "verify", str(STREAM), "--head", "head")
    assert (done.code, done.out, done.err) == (0, "intact: events 0 to 2\n", "")


def test_what_was_not_checked_is_said() -> None:
    write(1)

    done = pdp("audit", "verify", str(STREAM))
    assert (done.code, done.out) == (0, f"intact: events 0 to 0\n{UNKEYED}{NO_HEAD}")
    STREAM.write_bytes(b"")
    assert pdp("audit", "verify", str(STREAM)).out == f"intact: no events\n{NO_HEAD}"


@pytest.mark.usefixtures("_keyed")
def test_the_answer_as_json_is_a_head() -> None:
    write(2, key=KEY.encode(), head=HEAD)

    answer = json.loads(pdp("audit", "verify", str(STREAM), "--head", "head", "--json").out)
    named = json.loads(HEAD.read_text())
    assert answer == {"intact": True, **named, "keyed": True, "fault": None, "notes": []}
    HEAD.write_text(json.dumps({name: answer[name] for name in ("seq", "hash")}))
    write(1, key=KEY.encode(), head=HEAD)
    assert pdp("audit", "verify", str(STREAM), "--head", "head").code == 0


def cut(lines: list[bytes]) -> list[bytes]:
    return lines[:2]


def changed(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1].replace(b'"tool_name":"1"', b'"tool_name":"9"'), lines[2]]


def unfinished(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[2][:-1]]


@pytest.mark.parametrize(
    ("change", "options", "fault"),
    [
        (changed, [], "the line after event 0: the hash does not match"),
        (cut, ["--head", "head"], "it does not reach its head, event 2"),
        (lambda _: [], ["--head", "head"], "it does not reach its head, event 2"),
        (unfinished, [], f"{STREAM} ends in an unfinished line, which whoever appends next cuts"),
        (lambda lines: [*lines, b"x" * 100_000], [], f"{STREAM} ends in an unfinished line"),
    ],
)
@pytest.mark.usefixtures("_keyed")
def test_a_stream_that_is_not_intact(
    change: Callable[[list[bytes]], list[bytes]], options: list[str], fault: str
) -> None:
    write(3, key=KEY.encode(), head=HEAD)
    STREAM.write_bytes(b"".join(change(STREAM.read_bytes().splitlines(keepends=True))))

    done, answer = (pdp("audit", "verify", str(STREAM), *options, *form) for form in ([], ["--json"]))
    assert (done.code, answer.code) == (1, 1)
    assert done.out.startswith(f"not intact: {fault}")
    assert json.loads(answer.out)["fault"].startswith(fault)


def test_a_head_that_is_empty_fits_an_empty_stream_alone() -> None:
    HEAD.touch()
    write(0, head=HEAD)
    assert pdp("audit", "verify", str(STREAM), "--head", "head").code == 0
    write(1)
    done = pdp("audit", "verify", str(STREAM), "--head", "head")
    assert done.code == 1
    assert done.out.startswith("not intact: it does not reach its head, event -1\n")


@pytest.mark.parametrize("key", [None, KEY.encode()])
def test_a_stream_is_verified_with_its_own_key_alone(monkeypatch: pytest.MonkeyPatch, key: bytes | None) -> None:
    write(3, key=key)
    if key is None:
        monkeypatch.setenv("PDP_AUDIT_KEY", KEY)

    done = pdp("audit", "verify", str(STREAM))
    fault, *notes = done.out.splitlines()
    unset = "note: PDP_AUDIT_KEY is not set: a keyed stream cannot be checked without its key"
    if key is None:
        assert fault == "not intact: the first line: it is not keyed, and a key was given"
        assert unset not in notes
    else:
        assert fault == "not intact: the first line: it is keyed, and no key was given"
        assert unset in notes


EVENTS: list[Any] = [
    {
        "type": "tool.pay.dispatch", "tool_name": "pay", "status": "rejected", "verdict": "STEP_UP", "subject": "ann",
        "codes": ["limits.exceeded"], "run_id": "r", "approval_id": "a", "outcome": "not_executed",
    },
    {
        "type": "tool.unknown.dispatch", "tool_name": "x\x1b[2J\n", "status": "rejected",
        "rejection": "INVALID_TOOL_NAME",
    },
    {"type": "approval.granted", "tool_name": "pay", "status": "granted", "subject": "boss", "approval_id": "a"},
    {"type": "tool.pay.result", "tool": "pay", "outcome": "succeeded", "replayed": True, "run_id": "r"},
    {"type": "key.settled", "tool_name": "pay", "status": "not-done", "subject": "ann"},
    {"type": "budget.settled", "decision_id": "d", "status": "spent", "subject": "ann"},
]  # fmt: skip
LINES = [
    "     0  t  tool.pay.dispatch  STEP_UP, limits.exceeded  outcome not_executed  tool pay  by ann  run r  approval a",
    "     1  t  tool.unknown.dispatch  REJECTED, INVALID_TOOL_NAME  tool x\\x1b[2J\\n",
    "     2  t  approval.granted  tool pay  by boss  approval a",
    "     3  t  tool.pay.result  outcome succeeded, a replay  tool pay  run r",
    "     4  t  key.settled  settled as not-done  tool pay  by ann",
    "     5  t  budget.settled  settled as spent  by ann",
]


def test_events_are_shown_one_on_a_line() -> None:
    log = FileAudit(STREAM)
    for event in EVENTS:
        log.append(event | {"time": "t"})
    log.close()

    text, answer = pdp("audit", "show", STREAM), pdp("audit", "show", STREAM, "--json")

    assert (text.code, text.out.splitlines(), text.err) == (0, LINES, "")
    events = [json.loads(line) for line in answer.out.splitlines()]
    assert [{name: event[name] for name in EVENTS[event["seq"]]} for event in events] == EVENTS
    assert answer.out.isascii()


def test_a_stream_of_an_older_release_is_shown_continued_and_verified() -> None:
    """Its events have the tool under `tool`."""
    older = {name: value for name, value in EMPTY.items() if name != "tool_name"}
    older |= {"seq": 0, "prev_hash": GENESIS, "time": "t", "type": "tool.pay.dispatch", "tool": "pay"}
    content = canonical(older)
    STREAM.write_bytes(content[:-1] + f',"hash":"{digest(content)}"}}\n'.encode())
    log = FileAudit(STREAM)
    log.append({"time": "t", "type": "tool.pay.result", "tool_name": "pay"})
    log.close()

    assert pdp("audit", "show", STREAM).out.splitlines() == [
        "     0  t  tool.pay.dispatch  tool pay", "     1  t  tool.pay.result  tool pay",
    ]  # fmt: skip
    verified = pdp("audit", "verify", STREAM)
    assert (verified.code, "events 0 to 1" in verified.out) == (0, True)


@pytest.mark.parametrize("line", [b"[]\n", b"{}\n", b'{"seq": "0", "time": "t", "type": "x"}\n', b"\x1b[2J\n", b"{\n"])
def test_a_line_that_is_not_an_event_is_not_shown(line: bytes) -> None:
    STREAM.write_bytes(line)

    done = pdp("audit", "show", STREAM)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: not an event: b'")
    assert "\x1b" not in done.err


def test_a_stream_is_rotated_by_its_next_writer_and_verified_over_its_files() -> None:
    write(2)
    old = f"{STREAM}.{'0' * 12}"
    asked = pdp("audit", "rotate", str(STREAM))
    assert (asked.code, asked.out) == (
        0, f"{STREAM}: the next event begins a new file, and this one stays as {Path(old).resolve()}\n",
    )  # fmt: skip
    write(1)

    whole = pdp("audit", "verify", old, str(STREAM))
    assert (whole.code, whole.out) == (0, f"intact: events 0 to 3\n{UNKEYED}{NO_HEAD}")
    last = pdp("audit", "verify", str(STREAM))
    assert (last.code, last.out) == (0, f"intact: events 2 to 3\n{UNKEYED}{NO_HEAD}{ROTATED}")
    swapped = pdp("audit", "verify", str(STREAM), old)
    assert swapped.out.startswith("not intact: the line after event 3: events before it were left out, put in or moved")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["rotate", "none"], "audit file none cannot be rotated: No such file or directory\n    hint: name a stream"),
        (["verify", "none"], "none: No such file or directory"),
        (["verify", "stream/none", "--head", "nowhere"], "head nowhere: No such file or directory"),
        (["verify", "x", "--head", "head"], "head head lies in the folder of its stream, or below"),
    ],
)
def test_what_cannot_be_used_is_bad_usage(command: list[str], message: str) -> None:
    done = pdp("audit", *command)

    assert (done.code, done.out) == (2, "")
    assert message in done.err


@pytest.mark.usefixtures("_keyed")
def test_commands_write_with_the_key_of_the_environment() -> None:
    log = open_audit(STREAM)
    log.append({"time": "t", "type": "x"})
    log.close()

    assert pdp("audit", "verify", str(STREAM)).out.startswith("intact: events 0 to 0")
    assert KEY.encode() not in STREAM.read_bytes()
