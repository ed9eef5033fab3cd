"""The client starts the program ask.py. Without a valid answer of the resident process, ask.py denies the call."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import pytest

from pdp.hooks.ask import LARGEST, policy_digest, socket_name
from tests.support import PATIENCE
from tests.support.hooks.processes import PASSED, Answered, Hooks, denied, hooks_in

pytestmark = pytest.mark.process

NO_ANSWER = denied("the resident process ended, or its answer is for another call or by another policy; try again")
NOT_ROOT = "only root can be another user"
NOBODY = 65534


@pytest.fixture
def hooks(tmp_path: Path) -> Iterator[Hooks]:
    with hooks_in(tmp_path) as hooks:
        yield hooks


@contextmanager
def listening(hooks: Hooks, reply: Callable[[bytes], bytes], user: int | None = None) -> Iterator[list[bytes]]:
    """Act as the resident process: answer one call, and yield a list to which the request of this call is added."""
    requests: list[bytes] = []

    def answer() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as source:
            if head := source.readline():
                requests.append(head + source.read(int(head.split()[2])))
                with suppress(BrokenPipeError):  # The client may have stopped waiting for the answer.
                    connection.sendall(reply(requests[0]))

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        folder = os.open(hooks.state, os.O_RDONLY)
        # Bind by a short path, because the full path may be too long for a socket.
        listener.bind(f"/proc/self/fd/{folder}/{socket_name()}")
        os.close(folder)
        # The kernel reports the user that called `listen`, so change the user only while `listen` is called.
        if user is not None:
            os.seteuid(user)
        try:
            listener.listen()
        finally:
            os.seteuid(os.getuid())
        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        yield requests


def answered(
    request: bytes, *, asked: bytes = b"", policy: str = "", code: object = 0, out: str = "", err: str = ""
) -> bytes:
    """Return the resident process's answer to a request. The arguments replace parts of a valid answer."""
    parts = (sha256(asked or request).hexdigest(), policy or request.split()[1].decode(), str(code), out, err, "")
    return "\0".join(parts).encode()


@pytest.mark.parametrize(
    ("code", "out", "err"),
    [(0, "", ""), (0, '{"a": "ü"}\n', ""), (2, "", "no: ü\n"), (2, '{"b": 1}\n', "no"), (0, "ü" * LARGEST, "")],
    ids=["passes", "prints", "denies", "denies-and-prints", "large"],
)
def test_hook_client_gets_the_answer_of_the_resident_process(hooks: Hooks, code: int, out: str, err: str) -> None:
    with listening(hooks, lambda request: answered(request, code=code, out=out, err=err)) as requests:
        assert hooks.ask(b"what is sent") == Answered(code, out, err)
    folder = os.open(hooks.home, os.O_RDONLY)
    assert requests == [f"claude-code {policy_digest(folder)} 12\nwhat is sent".encode()]
    os.close(folder)


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(lambda _: b"", id="nothing"),
        pytest.param(lambda _: b"garbage\n", id="garbage"),
        pytest.param(lambda _: b"\xff\xfe a b c\n", id="not-text"),
        pytest.param(lambda request: answered(request)[:-1], id="cut"),
        pytest.param(lambda request: answered(request, asked=b"another"), id="of-another-call"),
        pytest.param(lambda request: answered(request, code=1, err="no"), id="unknown-code"),
        pytest.param(lambda request: answered(request, code="00"), id="another-zero"),
        pytest.param(lambda request: answered(request, err="a warning"), id="passes-with-a-warning"),
        pytest.param(lambda request: answered(request, code=2), id="denies-without-reason"),
        pytest.param(lambda request: answered(request, code=2, out="{}"), id="denies-with-output-alone"),
        pytest.param(lambda request: answered(request, policy="0" * 64), id="by-another-policy"),
        pytest.param(lambda request: answered(request, out="{}\0"), id="part-more"),
        pytest.param(lambda request: b"\n" + answered(request), id="line-before"),
        pytest.param(lambda request: answered(request) + b"\n", id="line-after"),
    ],
)
def test_hook_call_is_denied_if_the_answer_of_the_resident_process_is_invalid(
    hooks: Hooks, reply: Callable[[bytes], bytes]
) -> None:
    with listening(hooks, reply):
        assert hooks.ask(b"{}") == NO_ANSWER


def test_hook_call_is_denied_if_the_answer_of_the_resident_process_does_not_end(hooks: Hooks) -> None:
    def drip(_: bytes) -> bytes:
        held.wait()
        return b""

    held, hooks.seconds = threading.Event(), 2.0
    with listening(hooks, drip):
        given = hooks.ask(b"{}")
        held.set()
    reason = f"the resident process {os.getpid()} does not answer: timed out; if the error remains, end this process"
    assert given == denied(reason)


@pytest.mark.skipif(os.geteuid() != 0, reason=NOT_ROOT)
def test_socket_of_another_user_is_not_used(hooks: Hooks) -> None:
    with listening(hooks, answered, user=NOBODY) as requests:
        assert hooks.ask(b"{}") == denied(f"another user, {NOBODY}, listens on this user's socket")
    assert requests == []


def test_too_large_hook_input_is_not_sent_to_the_resident_process(hooks: Hooks) -> None:
    with listening(hooks, answered):
        assert hooks.ask(b" " * 10 * LARGEST) == denied(f"the client's input has more than {LARGEST} bytes")
        assert hooks.ask(b" " * LARGEST) == PASSED


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
@pytest.mark.parametrize("which", ["home", "state"])
def test_hook_call_is_denied_if_other_users_can_access_the_policy_folders(hooks: Hooks, which: str, mode: int) -> None:
    path = hooks.home if which == "home" else hooks.state
    path.chmod(mode)
    assert hooks.ask(b"{}") == denied(f"the folder {path} must be closed to other users: chmod 700 {path}")


def test_hook_call_is_denied_if_the_policy_folder_is_missing_or_a_link(hooks: Hooks, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(hooks.home)
    (tmp_path / "file").touch()
    hooks.state.rmdir()
    assert hooks.ask(b"{}") == denied(f"the folder {hooks.state}: No such file or directory; run `pdp hook install`")
    for name, why in (("link", "Not a directory"), ("none", "No such file or directory"), ("file", "Not a directory")):
        folder = tmp_path / name
        assert Hooks(folder).ask(b"{}") == denied(f"the folder {folder}: {why}; run `pdp hook install`")


@pytest.mark.skipif(os.geteuid() != 0, reason=NOT_ROOT)
def test_hook_call_is_denied_if_the_policy_folder_or_a_file_belongs_to_another_user(hooks: Hooks) -> None:
    os.chown(hooks.home / "manifest.yaml", NOBODY, NOBODY)
    assert hooks.ask(b"{}") == _no_plain_file("manifest.yaml")
    os.chown(hooks.home, NOBODY, NOBODY)
    home = hooks.home
    assert hooks.ask(b"{}") == denied(f"the folder {home} must be closed to other users: chmod 700 {home}")


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "writable"])
def test_call_is_denied_if_a_policy_file_is_not_a_regular_file(hooks: Hooks, tmp_path: Path, kind: str) -> None:
    file = hooks.home / "commands.yaml"
    file.unlink()
    if kind == "link":
        (tmp_path / "elsewhere").touch()
        file.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.touch()
        file.chmod(0o666)
    assert hooks.ask(b"{}") == _no_plain_file("commands.yaml")


def test_hook_exits_with_a_denial_if_the_client_does_not_read_the_answer(hooks: Hooks) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with listening(hooks, lambda request: answered(request, out="{}")):
        asking = subprocess.run(
            [sys.executable, "-I", "-S", hooks.program, "claude-code", hooks.home],
            input=b"{}", stdout=writing, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    os.close(writing)
    assert (asking.returncode, asking.stderr) == (2, b"")


def test_call_is_denied_if_the_command_line_is_malformed(hooks: Hooks) -> None:
    asking = subprocess.run([sys.executable, "-I", "-S", hooks.program], input=b"{}", capture_output=True, check=False)
    assert (asking.returncode, asking.stdout) == (2, b"")
    assert asking.stderr == (
        b"pdp denies this call: TypeError: _answer() missing 2 required positional arguments: 'client' and 'home'\n"
    )


def test_policy_digest_covers_names_and_contents_of_files(tmp_path: Path) -> None:
    def digest_of(**files: str) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        (folder / "state").mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_text(content)
        (folder / "state" / "store.db").touch()
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            return policy_digest(descriptor)
        finally:
            os.close(descriptor)

    assert digest_of(a="1", b="2") == digest_of(b="2", a="1")
    others = [digest_of(a="1", b="2"), digest_of(a="12"), digest_of(a="", b="12"), digest_of(b="1", a="2"), digest_of()]
    assert len(set(others)) == len(others)


def test_client_that_never_ends_its_input_gets_a_denial(hooks: Hooks) -> None:
    hooks.seconds = 2.0
    with hooks.start() as asking:
        assert asking.stdin is not None
        asking.stdin.write(b"{")
        asking.stdin.flush()
        assert asking.wait(PATIENCE) == 2
        assert (asking.stdout and asking.stdout.read()) == b""
        assert (asking.stderr and asking.stderr.read()) == b"pdp denies this call: there was no answer in time\n"


def _no_plain_file(name: str) -> Answered:
    return denied(f"'{name}' in the policy's folder must be a regular file that only its user can write to (chmod 600)")
