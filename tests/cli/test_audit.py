"""`pdp audit` shows and rotates audit streams. It verifies intact and damaged streams."""

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
NO_HEAD = "note: without --head, missing events at the end are not detected\n"
UNKEYED = "note: the stream has no key, so anyone with write access could have replaced the whole stream\n"
ROTATED = "note: the stream begins with a rotation: earlier files were not verified\n"


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


@pytest.mark.parametrize("change", ["type = 'x.changed'", "approval_id = NULL", "approval_id = 'b'", "tool = 'b'"])
def test_changed_database_column_is_detected(change: str) -> None:
    with Database.open("sqlite:///pdp.db", upgrade=True) as database:
        with closing(SqlAudit(database)) as log:
            log.append({"time": "t", "type": "approval.granted", "approval_id": "a"})
        intact = pdp("audit", "verify", "sqlite:///pdp.db")
        with database.write() as connection:
            connection.execute(text(f"UPDATE pdp_audit SET {change}"))  # noqa: S608 - the test's own SQL

    done = pdp("audit", "verify", "sqlite:///pdp.db")

    assert (intact.code, done.code) == (0, 1)
    assert done.out.startswith("not intact: event 0: the columns differ from the event's line")


@pytest.mark.usefixtures("_keyed")
def test_audit_verify_accepts_an_intact_stream() -> None:
    write(3, key=KEY.encode(), head=HEAD)

    done = pdp("audit", "verify", str(STREAM), "--head", "head")
    assert (done.code, done.out, done.err) == (0, "intact: events 0 to 2\n", "")


def test_audit_verify_notes_a_missing_key_or_head() -> None:
    write(1)

    done = pdp("audit", "verify", str(STREAM))
    assert (done.code, done.out) == (0, f"intact: events 0 to 0\n{UNKEYED}{NO_HEAD}")
    STREAM.write_bytes(b"")
    assert pdp("audit", "verify", str(STREAM)).out == f"intact: no events\n{NO_HEAD}"


@pytest.mark.usefixtures("_keyed")
def test_audit_verify_output_can_be_used_as_the_head_file() -> None:
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
        (cut, ["--head", "head"], "event 2, which the head names, is missing"),
        (lambda _: [], ["--head", "head"], "event 2, which the head names, is missing"),
        (unfinished, [], f"{STREAM}: the last line is incomplete; the next writer removes it"),
        (lambda lines: [*lines, b"x" * 100_000], [], f"{STREAM}: the last line is incomplete"),
    ],
)
@pytest.mark.usefixtures("_keyed")
def test_audit_verify_reports_a_damaged_stream(
    change: Callable[[list[bytes]], list[bytes]], options: list[str], fault: str
) -> None:
    write(3, key=KEY.encode(), head=HEAD)
    STREAM.write_bytes(b"".join(change(STREAM.read_bytes().splitlines(keepends=True))))

    done, answer = (pdp("audit", "verify", str(STREAM), *options, *form) for form in ([], ["--json"]))
    assert (done.code, answer.code) == (1, 1)
    assert done.out.startswith(f"not intact: {fault}")
    assert json.loads(answer.out)["fault"].startswith(fault)


def test_empty_head_file_matches_only_an_empty_stream() -> None:
    HEAD.touch()
    write(0, head=HEAD)
    assert pdp("audit", "verify", str(STREAM), "--head", "head").code == 0
    write(1)
    done = pdp("audit", "verify", str(STREAM), "--head", "head")
    assert done.code == 1
    assert done.out.startswith("not intact: event -1, which the head names, is missing\n")


@pytest.mark.parametrize("key", [None, KEY.encode()])
def test_audit_stream_signed_with_a_key_is_verified_only_with_that_key(
    monkeypatch: pytest.MonkeyPatch, key: bytes | None
) -> None:
    write(3, key=key)
    if key is None:
        monkeypatch.setenv("PDP_AUDIT_KEY", KEY)

    done = pdp("audit", "verify", str(STREAM))
    fault, *notes = done.out.splitlines()
    unset = "note: PDP_AUDIT_KEY is not set: streams with a key cannot be verified without a key"
    if key is None:
        assert fault == "not intact: the first line: the event was written without a key, but a key was given"
        assert unset not in notes
    else:
        assert fault == "not intact: the first line: the event was written with a key, but no key was given"
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


def test_audit_show_prints_one_event_per_line() -> None:
    log = FileAudit(STREAM)
    for event in EVENTS:
        log.append(event | {"time": "t"})
    log.close()

    text, answer = pdp("audit", "show", STREAM), pdp("audit", "show", STREAM, "--json")

    assert (text.code, text.out.splitlines(), text.err) == (0, LINES, "")
    events = [json.loads(line) for line in answer.out.splitlines()]
    assert [{name: event[name] for name in EVENTS[event["seq"]]} for event in events] == EVENTS
    assert answer.out.isascii()


def test_audit_stream_of_an_older_release_is_shown_continued_and_verified() -> None:
    """Releases before this one wrote the tool of an event into the field `tool`."""
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
def test_audit_show_rejects_a_line_that_is_not_an_event(line: bytes) -> None:
    STREAM.write_bytes(line)

    done = pdp("audit", "show", STREAM)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: not an event: b'")
    assert "\x1b" not in done.err


def test_rotated_audit_stream_is_verified_across_all_its_files() -> None:
    write(2)
    old = f"{STREAM}.{'0' * 12}"
    asked = pdp("audit", "rotate", str(STREAM))
    assert (asked.code, asked.out) == (
        0, f"{STREAM}: the next event begins a new file, and this file is kept as {Path(old).resolve()}\n",
    )  # fmt: skip
    write(1)

    whole = pdp("audit", "verify", old, str(STREAM))
    assert (whole.code, whole.out) == (0, f"intact: events 0 to 3\n{UNKEYED}{NO_HEAD}")
    last = pdp("audit", "verify", str(STREAM))
    assert (last.code, last.out) == (0, f"intact: events 2 to 3\n{UNKEYED}{NO_HEAD}{ROTATED}")
    swapped = pdp("audit", "verify", str(STREAM), old)
    assert swapped.out.startswith("not intact: a file ends before event 3 of an earlier file; give the oldest first")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["rotate", "none"], "audit file none cannot be rotated: No such file or directory\n    hint: name an audit"),
        (["verify", "none"], "none: No such file or directory"),
        (["verify", "stream/none", "--head", "nowhere"], "head nowhere: No such file or directory"),
        (["verify", "x", "--head", "head"], "head head must not be in the folder of its audit stream or below"),
    ],
)
def test_unusable_audit_arguments_exit_with_2(command: list[str], message: str) -> None:
    done = pdp("audit", *command)

    assert (done.code, done.out) == (2, "")
    assert message in done.err


@pytest.mark.usefixtures("_keyed")
def test_open_audit_signs_events_with_the_key_in_the_environment() -> None:
    log = open_audit(STREAM)
    log.append({"time": "t", "type": "x"})
    log.close()

    assert pdp("audit", "verify", str(STREAM)).out.startswith("intact: events 0 to 0")
    assert KEY.encode() not in STREAM.read_bytes()
