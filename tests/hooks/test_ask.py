"""What a client starts denies whatever does not answer as the resident process would: stand-ins for it listen here."""

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

NO_ANSWER = denied("the resident process ended, or gave no answer to this call by this policy; try again")
NOT_ROOT = "only root can be another user"
NOBODY = 65534


@pytest.fixture
def hooks(tmp_path: Path) -> Iterator[Hooks]:
    with hooks_in(tmp_path) as hooks:
        yield hooks


@contextmanager
def listening(hooks: Hooks, reply: Callable[[bytes], bytes], user: int | None = None) -> Iterator[list[bytes]]:
    """Answer one call in the place of the resident process; yield what it asks."""
    requests: list[bytes] = []

    def answer() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as source:
            if head := source.readline():
                requests.append(head + source.read(int(head.split()[2])))
                with suppress(BrokenPipeError):  # nobody waits any more
                    connection.sendall(reply(requests[0]))

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        folder = os.open(hooks.state, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{folder}/{socket_name()}")  # the path itself may be too long
        os.close(folder)
        # The user of a listener is who was one when it began to listen.
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
    """Return the answer to a request, changed as stated."""
    parts = (sha256(asked or request).hexdigest(), policy or request.split()[1].decode(), str(code), out, err, "")
    return "\0".join(parts).encode()


@pytest.mark.parametrize(
    ("code", "out", "err"),
    [(0, "", ""), (0, '{"a": "ü"}\n', ""), (2, "", "no: ü\n"), (2, '{"b": 1}\n', "no"), (0, "ü" * LARGEST, "")],
    ids=["passes", "prints", "denies", "denies-and-prints", "large"],
)
def test_an_answer_is_handed_on(hooks: Hooks, code: int, out: str, err: str) -> None:
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
def test_what_is_no_answer_to_this_call_denies_it(hooks: Hooks, reply: Callable[[bytes], bytes]) -> None:
    with listening(hooks, reply):
        assert hooks.ask(b"{}") == NO_ANSWER


def test_answers_that_never_end_are_not_waited_for(hooks: Hooks) -> None:
    def drip(_: bytes) -> bytes:
        held.wait()
        return b""

    held = threading.Event()
    with listening(hooks, drip):
        given = hooks.ask(b"{}")
        held.set()
    reason = f"the resident process {os.getpid()} does not answer: timed out; if that lasts, end it"
    assert given == denied(reason)


@pytest.mark.skipif(os.geteuid() != 0, reason=NOT_ROOT)
def test_the_socket_of_another_user_is_not_asked(hooks: Hooks) -> None:
    with listening(hooks, answered, user=NOBODY) as requests:
        assert hooks.ask(b"{}") == denied(f"another user, {NOBODY}, listens to this user's socket")
    assert requests == []


def test_what_is_too_large_is_not_sent(hooks: Hooks) -> None:
    with listening(hooks, answered):
        assert hooks.ask(b" " * 10 * LARGEST) == denied(f"what the client sent has more than {LARGEST} bytes")
        assert hooks.ask(b" " * LARGEST) == PASSED


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
@pytest.mark.parametrize("which", ["home", "state"])
def test_folders_that_others_can_use_are_refused(hooks: Hooks, which: str, mode: int) -> None:
    path = hooks.home if which == "home" else hooks.state
    path.chmod(mode)
    assert hooks.ask(b"{}") == denied(f"the folder {path} must be its user's own, and nobody else's: chmod 700 {path}")


def test_a_home_behind_a_link_or_not_there_is_refused(hooks: Hooks, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(hooks.home)
    (tmp_path / "file").touch()
    hooks.state.rmdir()
    assert hooks.ask(b"{}") == denied(f"the folder {hooks.state}: No such file or directory; run `pdp hook install`")
    for name, why in (("link", "Not a directory"), ("none", "No such file or directory"), ("file", "Not a directory")):
        folder = tmp_path / name
        assert Hooks(folder).ask(b"{}") == denied(f"the folder {folder}: {why}; run `pdp hook install`")


@pytest.mark.skipif(os.geteuid() != 0, reason=NOT_ROOT)
def test_a_home_or_file_of_another_user_is_refused(hooks: Hooks) -> None:
    os.chown(hooks.home / "manifest.yaml", NOBODY, NOBODY)
    assert hooks.ask(b"{}") == _no_plain_file("manifest.yaml")
    os.chown(hooks.home, NOBODY, NOBODY)
    home = hooks.home
    assert hooks.ask(b"{}") == denied(f"the folder {home} must be its user's own, and nobody else's: chmod 700 {home}")


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "writable"])
def test_policy_files_that_are_not_plain_are_refused(hooks: Hooks, tmp_path: Path, kind: str) -> None:
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


def test_a_client_that_reads_nothing_gets_a_denial(hooks: Hooks) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with listening(hooks, lambda request: answered(request, out="{}")):
        asking = subprocess.run(
            [sys.executable, "-I", "-S", hooks.program, "claude-code", hooks.home],
            input=b"{}", stdout=writing, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    os.close(writing)
    assert (asking.returncode, asking.stderr) == (2, b"")


def test_a_malformed_command_line_denies(hooks: Hooks) -> None:
    asking = subprocess.run([sys.executable, "-I", "-S", hooks.program], input=b"{}", capture_output=True, check=False)
    assert (asking.returncode, asking.stdout) == (2, b"")
    assert asking.stderr == (
        b"pdp denies this call: TypeError: _answer() missing 2 required positional arguments: 'client' and 'home'\n"
    )


def test_the_digest_is_of_names_and_bytes(tmp_path: Path) -> None:
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


def test_a_client_that_never_ends_what_it_sends_gets_a_denial(hooks: Hooks) -> None:
    with hooks.start() as asking:
        assert asking.stdin is not None
        asking.stdin.write(b"{")
        asking.stdin.flush()
        assert asking.wait(PATIENCE) == 2
        assert (asking.stdout and asking.stdout.read()) == b""
        assert (asking.stderr and asking.stderr.read()) == b"pdp denies this call: there was no answer in time\n"


def _no_plain_file(name: str) -> Answered:
    return denied(f"'{name}' among the policy's files is no plain file that its user alone can write to (chmod 600)")
