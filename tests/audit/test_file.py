"""The audit stream in a file: several processes append to the file, and locked or changed files reject appends."""

import asyncio
import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pdp import FileAudit, Pep
from pdp.audit.chain import LINE_BYTES
from pdp.audit.file import request_rotation
from pdp.audit.verify import verify_chain
from pdp.errors import AuditError
from tests.audit.test_audit import KEY, event
from tests.support import PATIENCE, payments, recorded_by_killed

Appended = Callable[..., FileAudit]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "stream"
    folder.mkdir()
    return folder / "audit.jsonl"


@pytest.fixture
def head(tmp_path: Path) -> Path:
    return tmp_path / "head"


@pytest.fixture
def opened(path: Path) -> Iterator[Appended]:
    """A function that opens the audit stream again, as another process would, and appends `count` events."""
    logs: list[FileAudit] = []

    def open_and_append(count: int = 0, **options: Any) -> FileAudit:
        log = FileAudit(path, **{"key": KEY, **options})
        logs.append(log)
        for number in range(count):
            log.append(event(number))
        return log

    yield open_and_append
    for log in logs:
        log.close()


def verified(path: Path, key: bytes | None = KEY) -> int:
    with path.open("rb") as lines:
        return verify_chain(lines, key)


@contextmanager
def locked_file(path: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold the lock of the file during the `with` block."""
    with path.open("rb") as file:
        fcntl.flock(file, how)
        yield


def append_error(log: FileAudit) -> str:
    """Return the error message of `append`, and check that `offer` fails with the same message as `append`."""
    with pytest.raises(AuditError) as offered:
        log.offer(event())
    with pytest.raises(AuditError) as appended:
        log.append(event())
    assert offered.value.message == appended.value.message
    return appended.value.message


# A file that several processes share


def test_process_continues_the_audit_file_of_an_earlier_process(path: Path, opened: Appended) -> None:
    for _ in range(2):
        opened(1).close()

    assert verified(path) == 2
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["audit.jsonl"]


_APPENDING = """
import sys
from pathlib import Path
from pdp.audit.chain import AuditEvent
from pdp.audit.file import FileAudit
log = FileAudit(Path(sys.argv[1]), patience=600)
for number in range(50):
    log.append(AuditEvent(time="t", type="x", tool=sys.argv[2]))
"""


@pytest.mark.process
def test_processes_and_threads_share_an_audit_file_during_rotations(path: Path, opened: Appended) -> None:
    log = opened(1, key=None, patience=600)
    others = [subprocess.Popen([sys.executable, "-c", _APPENDING, str(path), name]) for name in ("a", "b")]

    def work() -> None:
        for number in range(50):
            if number % 20 == 0:
                request_rotation(path)
            log.append(event())

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(work) for _ in range(2)]:
            done.result()
    assert [other.wait(timeout=PATIENCE) for other in others] == [0, 0]

    files = [*sorted(path.parent.glob("audit.jsonl.*")), path]
    lines = [line for file in files for line in file.read_bytes().splitlines()]
    assert verify_chain(lines) == 200 + len(files)
    assert len(files) > 1


_FORKING = """
import os, sys
from pathlib import Path
from pdp.audit.chain import AuditEvent
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
def test_forked_process_must_open_the_file_again(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORKING, str(path)], check=True, timeout=PATIENCE, capture_output=True, text=True
    )

    assert done.stdout == f"audit file {path} was opened before this process was forked (open it again)\n"
    assert verified(path, None) == 2


# A file that another writer has locked


@pytest.mark.parametrize("how", [fcntl.LOCK_EX, fcntl.LOCK_SH], ids=["writer", "reader"])
def test_append_to_a_locked_audit_file_times_out(path: Path, opened: Appended, how: int) -> None:
    log = opened(1, patience=0.05)
    with locked_file(path, how):
        waiting = log.offer(event())
        assert waiting is not None
        with pytest.raises(AuditError) as caught:
            waiting()
        with pytest.raises(AuditError):
            FileAudit(path, key=KEY, patience=0.05)
    log.append(event())

    assert str(caught.value) == f"audit file {path} was locked by another process for 0.05 s (run `lslocks`)"
    assert verified(path) == 2


def test_append_times_out_while_another_thread_holds_the_lock_of_the_audit_stream(path: Path, opened: Appended) -> None:
    log = opened(1, patience=0.05)
    with log._lock:
        waiting = log.offer(event())
        assert waiting is not None
        for step in (waiting, log.close):
            with pytest.raises(AuditError):
                step()
    log.append(event())

    assert verified(path) == 2


_HOLDING = """
import fcntl, sys, time
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
while True:
    time.sleep(3600)
"""


@contextmanager
def stopped_holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _HOLDING, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            other.send_signal(signal.SIGSTOP)
            yield other
        finally:
            other.kill()


@pytest.mark.process
async def test_event_loop_runs_while_a_stopped_process_holds_the_file_lock(path: Path, opened: Appended) -> None:
    hub = payments.Hub()
    proposal, session = payments.wire(amount=20000), payments.session()
    impatient, patient = opened(1, patience=0.05), opened(patience=600)
    with payments.engine() as engine, stopped_holder(path) as other:
        pep = Pep(payments.effective(), engine, audit=impatient, tools={"initiate_wire": hub.initiate_wire})
        denied = [pep.call(proposal, session), await pep.acall(proposal, session)]
        called = asyncio.create_task(pep.with_changes(audit=patient).acall(proposal, session))
        # While `append` waits for the lock, it must not block the event loop. Otherwise the lock holder would never be
        # killed.
        await asyncio.sleep(0)
        other.kill()
        allowed = await called

    assert [(call.verdict, call.codes, call.executed) for call in denied] == [
        ("DENY", ("audit.write_failed",), False)
    ] * 2
    assert (allowed.executed, len(hub.wires), verified(path)) == (True, 1, 3)


async def test_timeout_of_an_offered_audit_event_starts_when_the_event_is_offered(path: Path, opened: Appended) -> None:
    log = opened(1, patience=0.05)
    with locked_file(path):
        began = time.monotonic()
        waiting = [log.offer(event()) for _ in range(50)]
        ended = time.monotonic()
        assert None not in waiting
        failures = await asyncio.gather(*(asyncio.to_thread(step) for step in waiting if step), return_exceptions=True)

    assert all(isinstance(failure, AuditError) for failure in failures)
    # The deadline of each event is computed from the time of the offer, not from the time at which the thread starts to
    # wait.
    assert all(began <= step.args[1] - log._patience <= ended for step in waiting)  # type: ignore[union-attr]


def test_offer_to_a_stream_with_fsync_returns_a_function_that_waits_until_the_event_is_written(
    path: Path, opened: Appended
) -> None:
    log = opened(fsync=True)
    waiting = log.offer(event())
    assert (waiting is not None, verified(path)) == (True, 0)
    waiting()  # type: ignore[misc]

    assert verified(path) == 1


def descriptors() -> list[str]:
    folder = Path("/proc/self/fd")
    return sorted(file.name for file in folder.iterdir()) if folder.exists() else []


def test_opening_an_invalid_audit_stream_releases_the_lock_and_the_file_descriptor(
    path: Path, opened: Appended
) -> None:
    log = opened(1)
    whole = path.read_bytes()
    path.write_bytes(whole + b"hello\n")
    before = descriptors()
    for _ in range(3):
        with pytest.raises(AuditError, match="continued: not an event"):
            FileAudit(path, key=KEY)
        assert "not an event" in append_error(log)
    with locked_file(path):
        path.write_bytes(whole)
    log.append(event())

    assert verified(path) == 2
    assert descriptors() == before


# A file that was changed after the last append

LOST = "has lost or changed events that this process has seen"
REPLACED = "events were removed, inserted, moved or repeated"


def unlinked(path: Path) -> None:
    path.unlink()


def renamed(path: Path) -> None:
    path.rename(path.with_name("other"))


def replaced_by_a_copy(path: Path) -> None:
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)


def replaced_by_nothing(path: Path) -> None:
    path.unlink()
    path.touch()


def replaced_by_another_stream(path: Path) -> None:
    path.unlink()
    log = FileAudit(path, key=KEY)
    for number in range(5):
        log.append(event(number + 4))
    log.close()


def cut_by_an_event(path: Path) -> None:
    os.truncate(path, path.read_bytes().rindex(b'{"agent"'))


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def rewritten_in_place(path: Path) -> None:
    old = path.read_bytes()
    other = path.with_name("other")
    log = FileAudit(other, key=KEY)
    for number in (7, 8, 9):
        log.append(event(number))
    log.close()
    new = other.read_bytes()
    assert len(new) == len(old)
    path.write_bytes(new)


def longer_and_rewritten(path: Path) -> None:
    rewritten_in_place(path)
    log = FileAudit(path, key=KEY)
    log.append(event())
    log.close()


def repeated(path: Path) -> None:
    lines = path.read_bytes()
    path.write_bytes(lines + lines * (LINE_BYTES // len(lines) + 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (unlinked, "cannot be used: No such file or directory"),
        (renamed, "cannot be used: No such file or directory"),
        (replaced_by_a_copy, f"cannot be continued: {REPLACED}"),
        (replaced_by_nothing, "cannot be continued: not an event"),
        (replaced_by_another_stream, f"cannot be continued: {REPLACED}"),
        (cut_by_an_event, LOST),
        (emptied, LOST),
        (rewritten_in_place, LOST),
        (longer_and_rewritten, LOST),
        (repeated, f"cannot be continued: {REPLACED}"),
    ],
)
def test_append_to_an_audit_stream_that_was_changed_is_rejected(
    path: Path, opened: Appended, change: Callable[[Path], None], message: str
) -> None:
    log = opened(3)
    change(path)

    assert append_error(log).startswith(f"audit file {path} {message}")


def test_call_is_denied_if_its_audit_file_was_deleted(path: Path, opened: Appended) -> None:
    hub = payments.Hub()
    with payments.engine() as engine:
        pep = Pep(payments.effective(), engine, audit=opened(), tools={"initiate_wire": hub.initiate_wire})
        path.unlink()
        called = pep.call(payments.wire(amount=20000), payments.session())

    assert (called.verdict, called.codes, hub.wires) == ("DENY", ("audit.write_failed",), [])


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b'{"agent":nu', id="an unfinished line alone"),
        pytest.param(b"hello\n", id="not JSON"),
        pytest.param(b'{"seq": 0, "hash": "x"}\n', id="changed"),
        pytest.param(b"[]\n", id="a list"),
        pytest.param(b"\n", id="an empty line"),
        pytest.param(b'{"agent":' + b"x" * LINE_BYTES, id="a line without end"),
    ],
)
def test_file_whose_last_event_is_incomplete_is_rejected(path: Path, content: bytes) -> None:
    path.write_bytes(content)

    with pytest.raises(AuditError, match="cannot be continued: ") as caught:
        FileAudit(path)

    assert caught.value.hint == "run `pdp audit verify`, move the file away as evidence, and start a new file"
    assert path.read_bytes() == content


# Killed writers, a full disk and large events


@pytest.mark.parametrize("torn", [b"{", b'{"agent":null,"app' + b"\0" * 100, b"x" * (LINE_BYTES - 1)])
@pytest.mark.parametrize("unseen", [0, 1])
def test_unfinished_line_that_a_killed_writer_left_in_the_audit_file_is_removed(
    path: Path, head: Path, opened: Appended, torn: bytes, unseen: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = opened(2, head=head)
    opened(unseen, head=head)
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    for writer in (log, opened(head=head)):
        writer.append(event())

    assert path.read_bytes().startswith(whole)
    assert verified(path) == 4 + unseen
    assert [record.getMessage() for record in caplog.records] == [
        f"audit file {path}: an incomplete last line of {len(torn)} bytes was removed"
    ]


_FULL = """
import resource, sys
from pathlib import Path
from pdp.audit.chain import AuditEvent
from pdp.audit.file import FileAudit
from pdp.errors import AuditError
path, head = map(Path, sys.argv[1:])
log = FileAudit(path, head=head)
log.append(AuditEvent(time="t", type="x"))
size = path.stat().st_size
for room in (size, size + 1, 2 * size - 1):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    for _ in range(2):
        try:
            log.append(AuditEvent(time="t", type="x"))
        except AuditError as error:
            print(error.message, path.stat().st_size == size)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.append(AuditEvent(time="t", type="x"))
"""


@pytest.mark.process
def test_full_disk_leaves_the_audit_stream_unchanged(path: Path, head: Path) -> None:
    command = [sys.executable, "-c", _FULL, str(path), str(head)]
    done = subprocess.run(command, check=True, timeout=PATIENCE, capture_output=True, text=True)

    lines = done.stdout.splitlines()
    assert len(lines) == 6
    assert {line.removeprefix(f"audit file {path} cannot be used: ") for line in lines} == {
        "File too large True", "No space left on device True",
    }  # fmt: skip
    assert verified(path, None) == 2
    FileAudit(path, head=head).close()


def test_audit_event_larger_than_the_limit_of_a_line_is_rejected(path: Path, opened: Appended) -> None:
    log = opened()
    with pytest.raises(AuditError, match="exceeds the limit of 131071 bytes"):
        log.append(event(tool_call_id="x" * LINE_BYTES))
    log.append(event(tool_call_id="x" * (LINE_BYTES - 1000)))
    log.append(event())

    opened(1)
    assert verified(path) == 3


# The head file, which names the last event


def test_head_file_names_the_last_audit_event_of_any_process(path: Path, head: Path, opened: Appended) -> None:
    first, second = opened(2, head=head), opened(1, head=head)
    first.append(event())
    opened(1, head=head)

    assert head.read_text().startswith('{"seq":4,"hash":"hmac-sha256:')
    assert second.offer(event()) is None
    assert verified(path) == 6


@pytest.mark.parametrize("change", [cut_by_an_event, emptied, unlinked, replaced_by_another_stream])
@pytest.mark.parametrize("torn", [b"", b'{"agent":nu'])
def test_audit_stream_that_ends_before_the_event_in_its_head_file_cannot_be_opened(
    path: Path, head: Path, opened: Appended, change: Callable[[Path], None], torn: bytes
) -> None:
    opened(3, head=head)
    known = head.read_bytes()
    change(path)
    with path.open("ab") as file:
        file.write(torn)

    with pytest.raises(AuditError, match=r"does not end at event 2|last event is incomplete"):
        opened(head=head)
    assert head.read_bytes() == known


def test_append_fails_if_events_of_another_process_were_removed(path: Path, head: Path, opened: Appended) -> None:
    log = opened(2, head=head)
    opened(1, head=head)
    cut_by_an_event(path)

    assert (
        append_error(log)
        == f"audit file {path} does not end at event 2, although the file's head names that event as the last one"
    )


def test_head_file_that_is_one_event_behind_is_updated_when_the_stream_is_opened(
    path: Path, head: Path, opened: Appended
) -> None:
    log = opened(2, head=head)
    behind = head.read_bytes()
    log.append(event())
    head.write_bytes(behind)
    other = opened(1, head=head)
    head.write_bytes(behind)

    assert "although the file's head names that event as the last one" in append_error(other)
    head.write_bytes(b"")
    opened(1, head=head)
    assert verified(path) == 5


@pytest.mark.parametrize("content", [b"x", b"{}", b'{"seq":"1","hash":"x"}', b'{"seq":1,"hash":2}', b"[]"])
def test_append_to_an_audit_stream_with_a_damaged_head_file_is_rejected(
    head: Path, opened: Appended, content: bytes
) -> None:
    log = opened(1, head=head)
    head.write_bytes(content)

    assert append_error(log) == f"head {head} was changed: it does not name an event"


def test_appended_event_is_removed_if_the_head_file_cannot_be_written(path: Path, head: Path, opened: Appended) -> None:
    log = opened(1, head=head)
    content = path.read_bytes()
    head.rename(head.with_name("moved"))

    assert append_error(log) == f"head {head}: No such file or directory"
    assert path.read_bytes() == content
    opened(1)
    head.with_name("moved").rename(head)
    log.append(event())
    assert verified(path) == 3


# The key of the stream


@pytest.mark.parametrize("other", [None, b"x" * 32])
def test_audit_stream_can_be_continued_only_with_its_own_key(opened: Appended, other: bytes | None) -> None:
    opened(1)
    with pytest.raises(
        AuditError,
        match=r"cannot be continued: (the event was written with a key, but no key was|the hash does not match)",
    ):
        opened(key=other)


def test_stream_without_a_key_cannot_be_continued_with_a_key(opened: Appended) -> None:
    opened(1, key=None)
    with pytest.raises(AuditError, match="the event was written without a key, but a key was given"):
        opened()


def test_key_can_be_bytes_a_function_or_a_file(path: Path, tmp_path: Path, opened: Appended) -> None:
    (tmp_path / "key").write_bytes(KEY + b"\n")
    for key in (KEY, lambda: KEY, tmp_path / "key"):
        log = opened(1, key=key)
        assert "x01" not in repr(log) + repr(vars(log))

    assert verified(path) == 3


def key_file(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(KEY)
    return path


BESIDE = "must not be in the folder of its audit stream or below (use another folder)"
SHORT = "is shorter than 32 bytes (create a key with `openssl rand -hex 32`)"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        pytest.param(lambda path: key_file(path.with_name("key")), f"audit key file KEY {BESIDE}", id="beside"),
        pytest.param(lambda path: key_file(path.parent / "keys" / "k"), f"audit key file KEY {BESIDE}", id="below"),
        pytest.param(
            lambda path: path.parent.parent / "none",
            "audit key file KEY cannot be read: No such file or directory", id="none",
        ),
        pytest.param(lambda _: b"secret" * 5, f"the key of audit file STREAM {SHORT}", id="short"),
        pytest.param(lambda _: lambda: "s" * 40, f"the key of audit file STREAM {SHORT}", id="text"),
    ],
)  # fmt: skip
def test_key_in_the_stream_folder_or_too_short_is_rejected(
    path: Path, key: Callable[[Path], Any], message: str
) -> None:
    given = key(path)
    with pytest.raises(AuditError) as caught:
        FileAudit(path, key=given)

    assert str(caught.value) == message.replace("KEY", str(given)).replace("STREAM", str(path))
    assert not path.exists()


def test_link_to_a_key_or_head_in_the_stream_folder_is_rejected(path: Path, tmp_path: Path, opened: Appended) -> None:
    link = tmp_path / "elsewhere"
    link.symlink_to(key_file(path.with_name("key")))
    with pytest.raises(AuditError, match="must not be in the folder of its audit stream"):
        opened(key=link)
    with pytest.raises(AuditError, match="must not be in the folder of its audit stream"):
        opened(head=link)


# Rotation


def test_next_event_after_a_rotation_request_begins_a_new_file(path: Path, head: Path, opened: Appended) -> None:
    path.touch(mode=0o640)
    log, other, idle = opened(2, head=head), opened(0, head=head), opened(0, head=head)
    kept = [request_rotation(path), request_rotation(path)]
    log.append(event())
    other.append(event())
    kept.append(request_rotation(path))
    other.append(event())
    idle.append(event())
    log.append(event())

    assert [file.name for file in kept] == ["audit.jsonl." + "0" * 12] * 2 + ["audit.jsonl.000000000002"]
    files = [kept[0], kept[2], path]
    assert [len(file.read_bytes().splitlines()) for file in files] == [2, 3, 4]
    assert verify_chain([line for file in files for line in file.read_bytes().splitlines()], KEY) == 9
    assert verified(path) == 4
    assert path.stat().st_mode & 0o777 == 0o640
    opened(1, head=head)


def test_head_file_is_updated_if_opening_an_audit_stream_rotates_the_file(
    path: Path, head: Path, opened: Appended
) -> None:
    opened(2, head=head)
    request_rotation(path)
    opened(1, head=head)

    assert verified(path) == 2
    assert head.read_text().startswith('{"seq":3,')


_APPEND_FOR_EVER = """
import os, sys
from pathlib import Path
from pdp.audit.file import FileAudit, request_rotation
path, head = map(Path, sys.argv[1:])

def append_for_ever(pipe):
    log = FileAudit(path, head=head, patience=600)
    while True:
        for _ in range(7):
            log.append({"time": "t", "type": "x", "tool_name": "y" * 200})
            os.write(pipe, b".")
        request_rotation(path)
"""


@pytest.mark.process
def test_killed_processes_lose_no_recorded_event(path: Path, head: Path) -> None:
    recorded = recorded_by_killed(_APPEND_FOR_EVER, str(path), str(head))
    FileAudit(path, head=head).close()

    files = [*sorted(path.parent.glob("audit.jsonl.0*")), path]
    lines = [line for file in files for line in file.read_bytes().splitlines()]
    assert verify_chain(lines) == len(lines)
    assert sum(b'"type":"x"' in line for line in lines) >= recorded


def test_hard_link_with_an_unrelated_name_does_not_request_rotation(path: Path, opened: Appended) -> None:
    log, old = opened(1), path.with_name("audit.jsonl." + "0" * 12)
    path.with_name("backup").hardlink_to(path)
    old.touch()
    log.append(event())

    assert verified(path) == 2
    with pytest.raises(AuditError) as caught:
        request_rotation(path)
    assert (
        str(caught.value)
        == f"audit file {path} cannot be rotated: {old} already exists and is another file (move that file away)"
    )


def test_audit_events_go_to_the_current_file_if_the_file_cannot_be_rotated(
    path: Path, opened: Appended, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_to_open(**_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log = opened(1)
    request_rotation(path)
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", fail_to_open)
    log.append(event())

    assert verified(path) == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"audit file {path} cannot be rotated, so events are still appended to it"
    ]


def test_rotation_succeeds_if_the_folder_cannot_be_synced(
    path: Path, opened: Appended, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    log = opened(1)
    request_rotation(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        log.append(event())
    log.append(event())

    (old,) = path.parent.glob("audit.jsonl.0*")
    lines = [line for file in (old, path) for line in file.read_bytes().splitlines()]
    assert verify_chain(lines, KEY) == len(lines) == 4


def test_offer_to_a_locked_stream_after_rotation_returns_a_function_that_appends(path: Path, opened: Appended) -> None:
    log, other = opened(1), opened(0)
    request_rotation(path)
    other.append(event())
    with locked_file(path):
        waiting = log.offer(event())
    assert waiting is not None
    waiting()

    assert verified(path) == 3


@pytest.mark.parametrize("content", [b"", b"hello\n", b'{"a":1}\n', b"[]\n"])
def test_audit_file_without_events_is_not_rotated(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(AuditError, match="cannot be rotated: its first line is not an event"):
        request_rotation(path)


# Opening and closing


@pytest.mark.parametrize(
    ("name", "message"),
    [("none/audit.jsonl", "cannot be opened: No such file or directory"), ("../stream", "cannot be opened: Is a dir")],
)
def test_error_names_a_file_that_cannot_be_opened(path: Path, name: str, message: str) -> None:
    with pytest.raises(AuditError, match=message):
        FileAudit(path.parent / name)


def test_device_file_as_an_audit_file_is_rejected() -> None:
    with pytest.raises(AuditError, match="audit file /dev/null is not a regular file"):
        FileAudit(Path("/dev/null"))


def test_append_to_a_closed_audit_stream_is_rejected(opened: Appended) -> None:
    log = opened(1)
    log.close()
    log.close()

    assert append_error(log).endswith("is closed")
