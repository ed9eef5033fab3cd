"""The program that a client starts for each call: it asks the resident process, and ends as that answers.

    python -I -S ask.py CLIENT HOME < what the client sends

It exits with 0 and what the client is to read, or with 2 and a reason on standard error, whatever happens: most
clients go on with the call after anything else. It has the standard library alone, and little of that: the client waits
for every import. The resident process speaks with it by what stands here, over a socket in a folder that is the user's
alone: a length of four bytes, then lines and what follows them.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import stat
import struct
import sys
import time

COLD_SECONDS = 1.5
"""How long a call waits for a resident process that starts."""
WARM_SECONDS = 5.0
"""How long it waits for the answer."""
LARGEST = 1024 * 1024
"""How many bytes a client may send."""
STATE, SOCKET, LOCK, LOG = "state", "socket", "lock", "log"
"""The folder in HOME for what is written, and files in it."""
RETIRED = b"retired\n"
"""The answer of a resident process that is of another installation: it ends."""

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_RESIDENT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from pdp.hooks.resident import reside; reside()"
_ANSWER_LINES = 4


class NoAnswerError(Exception):
    """There is no answer that counts. The text says why, for the client's model and its person."""


def ask() -> None:
    """Answer the client, and end the process."""
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.setitimer(signal.ITIMER_REAL, COLD_SECONDS + WARM_SECONDS + 0.5)
    try:
        exit_code, stdout, stderr = _answer(*sys.argv[1:])
    except NoAnswerError as error:
        exit_code, stdout, stderr = 2, b"", str(error).encode(errors="replace")
    except BaseException as error:  # noqa: BLE001 - whatever it is, the call does not run
        exit_code, stdout, stderr = 2, b"", f"{type(error).__name__}: {error}".encode(errors="replace")
    if exit_code and not stderr.strip():
        stderr = b"no reason is given"
    try:
        _write(1, stdout)
        _write(2, b"pdp: " + stderr.strip() + b"\n" if stderr else b"")
    except OSError:
        exit_code = 2
    os._exit(exit_code)  # at once: nothing that runs at an interpreter's end can change it


def open_folder(path: str, within: int | None = None) -> int:
    """Return a descriptor of a folder that its user alone can use; NoAnswerError: it is not one, or a link."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    except OSError as error:
        raise NoAnswerError(f"the folder {path}: {error.strerror}; run `pdp hook install`") from None
    status = os.fstat(folder)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise NoAnswerError(f"the folder {path} must be its user's own, and of nobody else: chmod 700 {path}")
    return folder


def policy_digest(folder: int) -> bytes:
    """Return the SHA-256, in hexadecimal, over names and bytes of the files in a folder, but not in folders of it.

    NoAnswerError: a file cannot be read, is not a plain file, or somebody else can write to it.
    """
    digest = hashlib.sha256()
    for name in sorted(os.listdir(folder)):
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except OSError as error:
            raise NoAnswerError(f"the policy file {name!a}: {error.strerror}") from None
        with open(file, "rb") as opened:
            status = os.fstat(file)
            if stat.S_ISDIR(status.st_mode):
                continue
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise NoAnswerError(f"the policy file {name!a} is not a plain file that its user alone can write to")
            content = opened.read()
        digest.update(f"{name!a} {len(content)}\n".encode() + content)
    return digest.hexdigest().encode()


def program() -> bytes:
    """Return what tells one installation from another, and from itself after an upgrade. OSError: it is gone."""
    status = os.stat(__file__)
    return f"{_ROOT!a} {status.st_dev} {status.st_ino} {status.st_mtime_ns}".encode()


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return the user and the process at the other end of a connection; the process is 0 where nobody says it."""
    if sys.platform == "linux":
        process, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return user, process
    # The systems of BSD, macOS among them: LOCAL_PEERCRED of SOL_LOCAL, a struct xucred.
    return struct.unpack_from("2I", connection.getsockopt(0, 1, 76))[1], 0


def framed(message: bytes) -> bytes:
    """Return a message as it is sent."""
    return struct.pack(">I", len(message)) + message


def _answer(client: str, home: str) -> tuple[int, bytes, bytes]:
    """Return exit code, standard output and standard error."""
    started_at = time.monotonic()
    home = os.path.abspath(home)
    folder = open_folder(home)
    policy = policy_digest(folder)
    try:
        os.mkdir(STATE, 0o700, dir_fd=folder)
    except FileExistsError:
        pass
    os.fchdir(open_folder(STATE, folder))  # a socket's path must be short
    body = sys.stdin.buffer.read(LARGEST + 1)
    if len(body) > LARGEST:
        raise NoAnswerError(f"the call has more than {LARGEST} bytes")
    request = b"\n".join((client.encode(), policy, program(), body))
    has_started = False
    while True:
        reply = _exchange(request)
        if reply not in (None, RETIRED):
            return _read(reply, request, policy)
        if not has_started:
            _start(home)
            has_started = True
        if time.monotonic() > started_at + COLD_SECONDS:
            raise NoAnswerError(f"the resident process did not start in time; see {home}/{STATE}/{LOG}, or try again")
        time.sleep(0.01)


def _exchange(request: bytes) -> bytes | None:
    """Return the resident process's reply; None: nobody listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(WARM_SECONDS)
        try:
            connection.connect(SOCKET)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        user, process = peer(connection)
        if user != os.geteuid():
            raise NoAnswerError(f"the socket is not this user's: the user {user} listens to it")
        try:
            connection.sendall(framed(request))
            (length,) = struct.unpack(">I", _received(connection, 4))
            return _received(connection, length)
        except TimeoutError:
            raise NoAnswerError(f"the resident process {process} does not answer: kill -9 {process}") from None
        except OSError as error:
            raise NoAnswerError(f"the resident process {process} ended as it was asked: {error}; try again") from None


def _received(connection: socket.socket, length: int) -> bytes:
    with connection.makefile("rb", buffering=0) as source:
        content = bytearray()
        while len(content) < length:
            part = source.read(length - len(content))
            if not part:
                raise ConnectionError("it said nothing more")
            content += part
    return bytes(content)


def _read(reply: bytes, request: bytes, policy: bytes) -> tuple[int, bytes, bytes]:
    lines = reply.split(b"\n", _ANSWER_LINES)
    if len(lines) <= _ANSWER_LINES or lines[2] not in {b"0", b"2"} or not lines[3].isdigit():
        raise NoAnswerError("the resident process gave an answer that nobody understands")
    asked, decided_by, exit_code, length = lines[:_ANSWER_LINES]
    if asked != hashlib.sha256(request).hexdigest().encode():
        raise NoAnswerError("the resident process gave the answer to another call")
    if decided_by != policy:
        raise NoAnswerError("the policy's files changed as the call was decided; make it again")
    return int(exit_code), lines[4][: int(length)], lines[4][int(length) :]


def _start(home: str) -> None:
    """Start a resident process. Its surroundings are not this client's: it answers for other clients, too."""
    import pwd  # noqa: PLC0415 - a cold call alone
    import subprocess  # noqa: PLC0415 - likewise

    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if os.fstat(log).st_size > LARGEST:
        os.ftruncate(log, 0)
    subprocess.Popen(  # noqa: S603 - this interpreter
        [sys.executable, "-I", "-c", _RESIDENT, _ROOT, home],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        env={"HOME": pwd.getpwuid(os.geteuid()).pw_dir, "PATH": os.defpath},
    )


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def _out_of_time(*_: object) -> None:
    raise NoAnswerError("there was no answer in time")


if __name__ == "__main__":
    ask()
