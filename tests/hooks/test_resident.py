"""The resident process of hooks is started, ended and replaced. If this process fails, no call is allowed."""

import asyncio
import fcntl
import json
import os
import pwd
import resource
import shutil
import signal
import socket
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path

import pytest

from pdp.hooks import resident
from pdp.hooks.ask import LARGEST, socket_name
from tests.support import ROOT, until
from tests.support.hooks.processes import PASSED, Answered, Hooks, denied, hooks_in, is_gone, tool_call

pytestmark = pytest.mark.process


@pytest.fixture
def hooks(tmp_path: Path) -> Iterator[Hooks]:
    with hooks_in(tmp_path) as hooks:
        yield hooks


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hooks]:
    """Return hooks whose resident process has already answered a call."""
    with hooks_in(tmp_path_factory.mktemp("warm")) as hooks:
        hooks.ask(b"")
        yield hooks


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    (folder / ".git").mkdir()
    return folder


def undecided(reason: str) -> Answered:
    return Answered(2, "", f"the call cannot be decided: {reason}\n")


def waiting() -> int:
    """Return the number of connections to the resident process that this process has not accepted yet."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().split("\n")]
    return sum(line[5:] == ["02", "0", socket_name()] for line in lines)


def test_concurrent_calls_share_one_resident_process(hooks: Hooks, work: Path) -> None:
    with ThreadPoolExecutor() as threads:
        answers = list(threads.map(lambda _: hooks.ask(tool_call(work)), range(4)))
    assert answers == [PASSED] * 4
    assert len(hooks.residents()) == 1


def test_first_call_waits_for_a_slowly_starting_resident_process(hooks: Hooks, work: Path) -> None:
    name = hooks.state / f"{socket_name()}.lock"
    with name.open("w") as lock, ThreadPoolExecutor() as threads:
        # While the test holds the lock, the resident process waits, as if it had not loaded its policy yet.
        fcntl.flock(lock, fcntl.LOCK_EX)
        asking = [threads.submit(hooks.ask, tool_call(work) | {"tool_use_id": f"c{count}"}) for count in range(2)]
        time.sleep(3)
        assert not any(each.done() for each in asking)
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert [each.result() for each in asking] == [PASSED] * 2
    assert len(hooks.residents()) == 1


def test_hook_call_is_denied_at_once_if_the_resident_process_fails_to_start(hooks: Hooks, tmp_path: Path) -> None:
    program = tmp_path / "broken/pdp/hooks/ask.py"
    program.parent.mkdir(parents=True)
    shutil.copy(hooks.program, program)
    (tmp_path / "broken/pdp/__init__.py").write_text("raise SystemExit(3)\n")
    assert Hooks(hooks.home, program).ask(b"{}") == denied(
        f"the resident process is not ready; see {hooks.state}/log, and try again"
    )


def test_resident_process_does_not_inherit_the_environment_of_the_client(hooks: Hooks, work: Path) -> None:
    hooks.ask(tool_call(work))
    (process,) = hooks.residents()
    variables = dict(line.split("=", 1) for line in Path(f"/proc/{process}/environ").read_text().split("\0") if line)
    assert variables == {"HOME": pwd.getpwuid(os.geteuid()).pw_dir, "PATH": os.defpath}
    assert Path(f"/proc/{process}/cwd").resolve() == hooks.state
    # The process has its own session of the operating system, so it survives the end of the client's processes.
    assert os.getsid(process) == process


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        pytest.param(b"", "value: the text is empty", id="empty"),
        pytest.param(b"\xff", "value: not UTF-8 text", id="not-text"),
        pytest.param(b"[]", "claude-code: expected a JSON object but got list", id="no-object"),
        pytest.param(b'{"a": 1, "a": 2}', "value: duplicate key in an object", id="key-twice"),
        pytest.param(b"[" * 10_000, "value: nested deeper than 32 levels", id="deep"),
        pytest.param(
            b'{"hook_event_name": "Stop"}',
            "claude-code: hook_event_name: expected one of PreToolUse, PermissionRequest, PostToolUse,"
            " PostToolUseFailure, SessionEnd but got 'Stop' (run `pdp hook check`)",
            id="unknown-event",
        ),
    ],
)
def test_malformed_hook_input_is_denied(warm: Hooks, sent: bytes, reason: str) -> None:
    assert warm.ask(sent) == undecided(reason)


@pytest.mark.parametrize(
    "tool",
    ["Bash\n", "Ba\x00sh", "Bash\r", "", "B\u0430sh", "\ud800", 5, None],
    ids=["newline", "null", "return", "empty", "look-alike", "surrogate", "number", "none"],
)
def test_invalid_tool_names_are_denied(warm: Hooks, work: Path, tool: object) -> None:
    given = warm.ask(tool_call(work) | {"tool_name": tool})
    assert (given.code, given.out) == (2, "")
    assert given.err.startswith("the call cannot be decided: ")
    assert given.err.count("\n") == 1


def test_unknown_client_is_denied(warm: Hooks, work: Path) -> None:
    assert warm.ask(tool_call(work), "claude") == denied("no client is called 'claude'")


def test_killed_resident_process_is_replaced(hooks: Hooks, work: Path) -> None:
    hooks.ask(tool_call(work))
    (process,) = hooks.residents()
    os.kill(process, signal.SIGKILL)
    assert until(is_gone(process))
    assert (hooks.state / socket_name()).is_socket()
    assert hooks.ask(tool_call(work)) == PASSED
    assert len(hooks.residents()) == 2


def test_call_is_denied_if_the_resident_process_is_killed(hooks: Hooks, work: Path) -> None:
    hooks.ask(tool_call(work))
    (process,) = hooks.residents()
    os.kill(process, signal.SIGSTOP)
    before = waiting()
    with ThreadPoolExecutor() as threads:
        asking = threads.submit(hooks.ask, tool_call(work))
        assert until(lambda: waiting() > before)
        os.kill(process, signal.SIGKILL)
        given = asking.result()
    assert (given.code, given.out) == (2, "")
    assert given.err.startswith("pdp denies this call: the resident process ")


def test_call_is_denied_if_the_resident_process_hangs(hooks: Hooks, work: Path) -> None:
    hooks.ask(tool_call(work))
    (process,) = hooks.residents()
    os.kill(process, signal.SIGSTOP)
    hooks.seconds = 3.0
    assert hooks.ask(tool_call(work)) == denied(
        f"the resident process {process} does not answer: timed out; if the error remains, end this process"
    )
    os.kill(process, signal.SIGCONT)
    hooks.seconds = None
    assert hooks.ask(tool_call(work) | {"tool_use_id": "c2"}) == PASSED


def test_terminated_resident_process_ends_and_is_replaced(hooks: Hooks, work: Path) -> None:
    hooks.ask(tool_call(work))
    (process,) = hooks.residents()
    os.kill(process, signal.SIGTERM)
    assert until(is_gone(process))
    assert hooks.ask(tool_call(work)) == PASSED
    assert len(hooks.residents()) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_calls_while_the_resident_process_ends_are_decided_or_denied(
    hooks: Hooks, work: Path, number: signal.Signals
) -> None:
    hooks.ask(tool_call(work))
    (process,) = hooks.residents()
    calls = [tool_call(work) | {"tool_use_id": f"n{count}"} for count in range(24)]
    with ThreadPoolExecutor(4) as threads:
        asking = [threads.submit(hooks.ask, call) for call in calls]
        asking[3].result()
        os.kill(process, number)
        answers = [each.result() for each in asking]
    unanswered = [answer for answer in answers if answer != PASSED]
    assert all((answer.code, answer.out) == (2, "") for answer in unanswered)
    assert all(answer.err.startswith("pdp denies this call: the resident process ") for answer in unanswered)
    assert hooks.ask(tool_call(work)) == PASSED
    assert len(hooks.residents()) == 2


def test_each_installation_has_a_separate_resident_process(hooks: Hooks, work: Path, tmp_path: Path) -> None:
    hooks.ask(tool_call(work))
    other = tmp_path / "other"
    shutil.copytree(ROOT / "pdp", other / "pdp", ignore=shutil.ignore_patterns("__pycache__"))
    (other / "bundles").symlink_to(ROOT / "bundles")
    elsewhere = Hooks(hooks.home, other / "pdp/hooks/ask.py")
    assert elsewhere.ask(tool_call(work)) == PASSED
    assert len(hooks.residents()) == 2
    os.utime(elsewhere.program)
    assert elsewhere.ask(tool_call(work)) == PASSED
    assert len(hooks.residents()) == 3
    assert hooks.ask(tool_call(work)) == PASSED
    assert len(hooks.residents()) == 3


def test_call_is_denied_with_the_location_of_a_partly_written_policy(hooks: Hooks, work: Path) -> None:
    hooks.ask(tool_call(work))
    for file in (hooks.home / "manifest.yaml", hooks.home / "commands.yaml"):
        whole = file.read_bytes()
        file.write_text("git: [")
        assert hooks.ask(tool_call(work)) == undecided(
            f"{file}:2:1: not YAML: did not find expected node content while parsing a flow node"
        )
        file.write_bytes(whole)
        assert hooks.ask(tool_call(work)) == PASSED
    assert len(hooks.residents()) == 1


def test_changed_policy_applies_to_the_next_call(hooks: Hooks, work: Path) -> None:
    assert hooks.ask(tool_call(work)) == PASSED
    (hooks.home / "commands.yaml").write_text("runs: [pwd]\n")
    assert hooks.ask(tool_call(work) | {"tool_use_id": "c2"}) != PASSED
    assert hooks.ask(tool_call(work, command="pwd") | {"tool_use_id": "c3"}) == PASSED


def test_call_is_denied_if_loading_the_policy_takes_too_long(hooks: Hooks, work: Path) -> None:
    hooks.ask(tool_call(work))
    (process,) = hooks.residents()
    with closing(sqlite3.connect(hooks.state / "store.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        (hooks.home / "commands.yaml").write_text("runs: [pwd]\n")
        hooks.seconds = 2.0
        assert hooks.ask(tool_call(work)) == denied(
            f"the resident process {process} does not answer: timed out; if the error remains, end this process"
        )
        other.execute("ROLLBACK")
    hooks.seconds = None
    assert hooks.ask(tool_call(work, command="pwd") | {"tool_use_id": "c2"}) == PASSED


def test_hook_denies_all_calls_if_its_store_is_read_only(hooks: Hooks, work: Path) -> None:
    def no_space() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    asked = tool_call(work)
    hooks.ask(asked, preexec_fn=no_space)
    given = hooks.ask(asked)
    assert (given.code, given.out) == (2, "")
    assert given.err.startswith(f"the call cannot be decided: database sqlite:///{hooks.state}/store.db: ")


@pytest.mark.parametrize("why", ["idle", "home-is-gone", "socket-is-another"])
async def test_resident_process_ends_after_idle_time_or_if_its_policy_folder_moves(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, why: str
) -> None:
    monkeypatch.chdir(hooks.state)
    monkeypatch.setattr(resident, "_ROUND_SECONDS", 0.01)
    monkeypatch.setattr(resident, "IDLE_SECONDS", 0.0 if why == "idle" else float("inf"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(socket_name())
        running = asyncio.create_task(resident.Resident(hooks.home).run(listener))
        await asyncio.to_thread(until, lambda: listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        if why != "idle":
            hooks.home.rename(tmp_path / "gone")
        if why == "socket-is-another":
            hooks.state.mkdir(parents=True)
            (hooks.state / socket_name()).touch()
        await running


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\n",
        b"claude-code x\n",
        b"claude-code x -1\n",
        b"claude-code x 5\nabc",
        b"\xff \xff 1\na",
        b"claude-code x " + b"9" * 5000 + b"\n",
        b"a" * 2 * LARGEST,
    ],
    ids=["nothing", "line", "short", "negative", "cut", "not-text", "number", "no-line"],
)
def test_resident_process_ignores_invalid_requests(
    warm: Hooks, work: Path, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(warm.state)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(socket_name())
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""
        except OSError:  # The resident process may have closed the connection already.
            pass
    assert warm.ask(tool_call(work)) == PASSED


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_resident_process_does_not_answer_another_user(
    hooks: Hooks, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks.ask(tool_call(work))
    monkeypatch.chdir(hooks.state)
    hooks.state.chmod(0o711)
    Path(socket_name()).chmod(0o777)
    name = socket_name()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        os.seteuid(65534)
        try:
            connection.connect(name)
        finally:
            os.seteuid(0)
        with suppress(OSError), connection.makefile("rb") as answer:
            connection.sendall(b"claude-code x 0\n")
            assert answer.read() == b""


def test_call_with_an_outdated_policy_digest_is_denied(
    warm: Hooks, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(warm.state)
    body, digest = json.dumps(tool_call(work)), "0" * 64
    request = f"claude-code {digest} {len(body)}\n{body}"
    reason = "the call cannot be decided: the policy's files are being written (try again)\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(socket_name())
        connection.sendall(request.encode())
        with connection.makefile("rb") as answer:
            parts = answer.read().decode().split("\0")
    assert parts == [sha256(request.encode()).hexdigest(), digest, "2", "", reason, ""]


def test_many_concurrent_calls_are_all_answered(warm: Hooks, work: Path) -> None:
    calls = [tool_call(work) | {"tool_use_id": f"n{number}"} for number in range(40)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(warm.ask, calls)) == [PASSED] * 40
