"""The audit stream: chained from the first event, and nothing can be changed in it unseen."""

from __future__ import annotations

import hmac
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pdp.audit.chain import GENESIS, AuditLog, MemoryAudit, verify_chain
from pdp.audit.event import AuditEvent
from pdp.audit.file import FileAudit
from pdp.errors import AuditError


def event(number: int = 0, **fields: Any) -> AuditEvent:
    event: AuditEvent = {"time": "2026-07-01T10:00:00.000Z", "type": "tool.initiate_wire.dispatch", "tool": str(number)}
    return {**event, **fields}  # type: ignore[typeddict-item]


def test_an_event_has_every_field_of_the_schema() -> None:
    log = MemoryAudit()
    log.append(event(codes=("limits.exceeded",)))

    assert set(log.events[0]) == {
        "seq", "time", "type", "request_id", "tool_call_id", "run_id", "subject", "agent", "tool", "manifest_version",
        "manifest_digest", "arguments_digest", "status", "rejection", "verdict", "codes", "decision_id",
        "bundle_revision", "approval_id", "idempotency_key", "outcome", "result_digest", "error_code", "duration_ms",
        "prev_hash", "hash",
    }  # fmt: skip
    assert log.events[0]["codes"] == ["limits.exceeded"]


def test_events_are_chained_from_the_first() -> None:
    log = MemoryAudit()
    for number in range(3):
        log.append(event(number))

    first, second, third = log.events
    assert [each["seq"] for each in log.events] == [0, 1, 2]
    assert (first["prev_hash"], second["prev_hash"], third["prev_hash"]) == (GENESIS, first["hash"], second["hash"])
    assert verify_chain(list(log._lines)) == 3


HASH, ORDER = "the hash does not match", "events before it were left out, put in or moved"


def lines_of(count: int) -> list[bytes]:
    log = MemoryAudit()
    for number in range(count):
        log.append(event(number))
    return list(log._lines)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda a, b, c: [a, b.replace(b'"tool":"1"', b'"tool":"9"'), c], f"2: {HASH}", id="changed"),
        pytest.param(lambda a, b, c: [a, b.replace(b'":', b'": ', 1), c], f"2: {HASH}", id="another blank"),
        pytest.param(lambda a, b, c: [a, c], f"2: {ORDER}", id="left out"),
        pytest.param(lambda a, b, c: [b, a, c], f"1: {ORDER}", id="moved"),
        pytest.param(lambda a, b, c: [a, b, c, c], f"4: {ORDER}", id="repeated"),
        pytest.param(lambda a, b, c: [b, c], f"1: {ORDER}", id="head cut off"),
        pytest.param(lambda a, b, c: [a, b'{"verdict":"ALLOW",' + b[1:], c], "2: not an event", id="a key twice"),
        pytest.param(lambda a, b, c: [a, b"{"], "2: not an event", id="not JSON"),
        pytest.param(lambda a, b, c: [a, b"[]"], "2: not an event", id="not an object"),
        pytest.param(lambda a, b, c: [a, b"{}"], "2: not an event", id="no hash"),
    ],
)
def test_tampering_shows(change: Any, message: str) -> None:
    with pytest.raises(AuditError) as caught:
        verify_chain(change(*lines_of(3)))

    assert str(caught.value) == f"audit line {message}"


def test_a_file_is_continued_by_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for number in range(2):
        log = FileAudit(path)
        log.append(event(number))
        log.close()

    assert verify_chain(path.read_bytes().splitlines()) == 2
    assert (path.stat().st_mode & 0o777, (tmp_path / "audit.jsonl.key").stat().st_mode & 0o777) == (0o600, 0o600)


def test_digests_are_keyed_by_stream(tmp_path: Path) -> None:
    one, other = FileAudit(tmp_path / "one"), FileAudit(tmp_path / "other")
    again = FileAudit(tmp_path / "one")

    assert one.digest(b"47500") == again.digest(b"47500") != other.digest(b"47500")
    key = (tmp_path / "one.key").read_bytes()
    assert one.digest(b"47500") == "hmac-sha256:" + hmac.digest(key, b"47500", "sha256").hex()
    for log in (one, other, again):
        log.close()


_APPENDING = """
import sys
from pathlib import Path
from pdp.audit.event import AuditEvent
from pdp.audit.file import FileAudit
log = FileAudit(Path(sys.argv[1]))
for number in range(50):
    log.append(AuditEvent(time="t", type="x", tool=sys.argv[2]))
"""


@pytest.mark.process
def test_processes_and_threads_share_one_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    others = [subprocess.Popen([sys.executable, "-c", _APPENDING, str(path), name]) for name in ("a", "b")]
    log = FileAudit(path)

    def work() -> None:
        for _ in range(50):
            log.append(event())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [other.wait(timeout=60) for other in others] == [0, 0]
    log.close()

    assert verify_chain(path.read_bytes().splitlines()) == 200


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b'{"seq": 0', id="cut off"),
        pytest.param(lines_of(1)[0], id="without its line break"),
        pytest.param(b"hello\n", id="not JSON"),
        pytest.param(b'{"seq": 0, "hash": "x"}\n', id="changed"),
        pytest.param(b"[]\n", id="a list"),
    ],
)
def test_a_file_without_a_whole_last_event_is_not_continued(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(content)

    with pytest.raises(AuditError) as caught:
        FileAudit(path)

    assert str(caught.value) == (
        f"audit file {path} cannot be continued: its last line is not a whole event"
        " (keep the file as evidence and begin a new one)"
    )
    assert path.read_bytes() == content


def test_a_key_of_another_length_is_refused(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl.key").write_bytes(b"short")

    with pytest.raises(AuditError, match="is not 32 bytes long"):
        FileAudit(tmp_path / "audit.jsonl")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="cannot be opened: No such file or directory"):
        FileAudit(tmp_path / "none" / "audit.jsonl")


def test_a_closed_file_takes_no_events(tmp_path: Path) -> None:
    log = FileAudit(tmp_path / "audit.jsonl")
    log.close()
    log.close()

    with pytest.raises(AuditError, match="is closed"):
        log.append(event())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    log = FileAudit(tmp_path / "audit.jsonl", fsync=True)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log._file)
    os.close(full)

    with pytest.raises(AuditError, match="cannot be written: No space left on device"):
        log.append(event())
    log.close()


@pytest.mark.parametrize("kept", [0, 1])
def test_a_file_that_was_cut_is_not_continued(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "audit.jsonl"
    log = FileAudit(path)
    for number in range(3):
        log.append(event(number))
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:kept]))

    with pytest.raises(AuditError, match="has lost events: it is shorter than this process has seen it"):
        log.append(event())
    log.close()


def test_a_written_part_of_a_line_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    log = FileAudit(path)
    log.append(event())
    whole = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, data: whole(file, data[:10]))
        with pytest.raises(AuditError, match="cannot be written: no space left"):
            log.append(event())
    log.append(event())
    log.close()

    assert verify_chain(path.read_bytes().splitlines()) == 2


def test_an_event_that_could_not_be_continued_after_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = FileAudit(path)
    with pytest.raises(AuditError, match="is too large to be continued after"):
        log.append(event(tool_call_id="x" * 2_000_000))
    log.append(event())
    log.close()

    again = FileAudit(path)
    again.append(event())
    again.close()
    assert verify_chain(path.read_bytes().splitlines()) == 2


_FORKING = """
import os, sys
from pathlib import Path
from pdp.audit.event import AuditEvent
from pdp.audit.file import FileAudit
from pdp.errors import AuditError
log = FileAudit(Path(sys.argv[1]))
child = os.fork()
if not child:
    try:
        log.append(AuditEvent(time="t", type="x"))
    except AuditError as error:
        print(error, flush=True)
    FileAudit(Path(sys.argv[1])).append(AuditEvent(time="t", type="x"))
    os._exit(0)
os.waitpid(child, 0)
log.append(AuditEvent(time="t", type="x"))
"""


@pytest.mark.process
def test_a_forked_process_opens_the_file_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", _FORKING, str(path)], check=True, timeout=120, capture_output=True, text=True
    )

    assert done.stdout == f"audit file {path} was opened before this process was forked (open it again)\n"
    assert verify_chain(path.read_bytes().splitlines()) == 2


def test_an_event_that_is_not_json_is_refused_and_leaves_the_chain_whole() -> None:
    log = MemoryAudit()
    with pytest.raises(AuditError, match="audit event cannot be written"):
        log.append(event(request_id="\ud800"))
    log.append(event())

    assert isinstance(log, AuditLog)
    assert verify_chain(list(log._lines)) == 1
