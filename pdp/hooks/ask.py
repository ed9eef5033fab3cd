"""The program that a client starts for each call: it asks the resident process, and ends as that answers.

    python -I -S ask.py CLIENT HOME < what the client sends

It exits with 0 and what the client is to read, or with 2 and a reason on standard error, whatever happens: most
clients go on with the call after anything else. The client waits for every import, so there are few.

The request is a line `CLIENT POLICY LENGTH` and what the client sent. The answer is REQUEST, POLICY, the exit code and
both outputs, a NUL after each. POLICY and REQUEST are digests: of the files that decide, and of all that was asked.
"""

# What `signal`, `socket` and `hashlib` have, without what else these import: that is half of the time of a call.
import _signal
import _socket
import os
import stat
import sys
import time

if sys.version_info >= (3, 12):
    from _sha2 import sha256
else:
    from _sha256 import sha256

WARM_SECONDS = 5.0  # how long a call waits for its answer
LARGEST = 1024 * 1024  # how many bytes a client may send
STATE = "state"  # the folder in HOME for what is written

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_RESIDENT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from pdp.hooks.resident import reside; reside()"
_LOG = "log"
# How long a call waits for a resident process that starts, if not 50 s: clients give a hook 60 s, this one 30 s.
_COLD_SECONDS = {"copilot-cli": 20.0}
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NoAnswerError(Exception):
    """There is no answer that counts. The text says why, for the client's model and its person."""


def ask() -> None:
    """Answer the client, and end the process."""
    try:
        _signal.signal(_signal.SIGALRM, _out_of_time)
        _signal.setitimer(_signal.ITIMER_REAL, WARM_SECONDS + 1)
        code, *outputs = _answer(*sys.argv[1:])
    except BaseException as error:  # noqa: BLE001 - whatever it is, the call does not run
        kind = "" if isinstance(error, NoAnswerError) else f"{type(error).__name__}: "
        code, outputs = 2, [b"", f"pdp denies this call: {kind}{error}\n".encode(errors="replace")]
    try:
        for descriptor, output in enumerate(outputs, 1):
            while output:
                output = output[os.write(descriptor, output) :]  # noqa: PLW2901 - the rest of it
    except BaseException:  # noqa: BLE001 - likewise
        code = 2
    os._exit(code)  # at once: nothing that runs at an interpreter's end can change it


def open_folder(path: str, within: int | None = None) -> int:
    """Return a descriptor of a folder that its user alone can use, by its last name where the one above is open.

    NoAnswerError: it is not one, or a link.
    """
    name = path if within is None else os.path.basename(path)
    try:
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _OPEN, dir_fd=within)
    except OSError as error:
        raise NoAnswerError(f"the folder {path}: {error.strerror}; run `pdp hook install`") from None
    status = os.fstat(folder)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise NoAnswerError(f"the folder {path} must be its user's own, and nobody else's: chmod 700 {path}")
    return folder


def policy_digest(folder: int) -> str:
    """Return the SHA-256 over names and bytes of the files in HOME.

    NoAnswerError: one is no plain file, or somebody else can write to it; OSError: it cannot be read.
    """
    digest = sha256()
    for name in sorted({*os.listdir(folder)} - {STATE}):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise NoAnswerError(
                f"{name!a} among the policy's files is no plain file that its user alone can write to (chmod 600)"
            )
        with open(os.open(name, os.O_RDONLY | _OPEN, dir_fd=folder), "rb") as file:
            content = file.read()
        digest.update(f"{name!a} {len(content)}\n".encode() + content)
    return str(digest.hexdigest())


def socket_name() -> str:
    """Return the socket's name in the state folder, another one for each installation. OSError: this one is gone."""
    status = os.stat(__file__)
    return f"{status.st_dev:x}-{status.st_ino:x}-{status.st_mtime_ns:x}"


def peer(connection: _socket.socket) -> tuple[int, int]:
    """Return the user and the process at the other end of a connection; the process is 0 where nobody says it."""
    if sys.platform == "linux":
        process, user, _ = memoryview(connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)).cast("i")
        return user, process
    # The systems of BSD, macOS among them: LOCAL_PEERCRED of SOL_LOCAL, which gives a struct xucred.
    return memoryview(connection.getsockopt(0, 1, 76)).cast("i")[1], 0


def _answer(client: str, home: str) -> tuple[int, bytes, bytes]:
    """Return exit code, standard output and standard error."""
    home = os.path.abspath(home)
    folder = open_folder(home)
    policy = policy_digest(folder)
    os.fchdir(open_folder(f"{home}/{STATE}", folder))  # a socket's path must be short
    body = sys.stdin.buffer.read(LARGEST + 1)
    if len(body) > LARGEST:
        raise NoAnswerError(f"what the client sent has more than {LARGEST} bytes")
    request = f"{client} {policy} {len(body)}\n".encode() + body
    if (reply := _reply(request)) is None:
        reply = _first_reply(client, home, request)
    match reply.split(b"\0"):
        case [asked, decided_by, (b"0" | b"2") as code, stdout, stderr, b""] if (code == b"2") == bool(stderr):
            if asked == sha256(request).hexdigest().encode() and decided_by == policy.encode():
                return int(code), stdout, stderr
    raise NoAnswerError("the resident process ended, or gave no answer to this call by this policy; try again")


def _reply(request: bytes) -> bytes | None:
    """Return what the resident process says; None: nobody listens."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.settimeout(WARM_SECONDS)
    try:
        connection.connect(socket_name())
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    user, process = peer(connection)
    if user != os.geteuid():
        raise NoAnswerError(f"another user, {user}, listens to this user's socket")
    try:
        connection.sendall(request)
        reply = b""
        while len(reply) < 8 * LARGEST and (part := connection.recv(LARGEST)):
            reply += part
    except OSError as error:
        raise NoAnswerError(f"the resident process {process} does not answer: {error}; if that lasts, end it") from None
    return reply


def _first_reply(client: str, home: str, request: bytes) -> bytes:
    """Start a resident process, and return what it says. NoAnswerError: it is not ready within the client's time."""
    import pwd  # noqa: PLC0415 - a cold call alone
    import subprocess  # noqa: PLC0415 - likewise

    seconds, started = _COLD_SECONDS.get(client, 50.0), None
    _signal.setitimer(_signal.ITIMER_REAL, seconds + WARM_SECONDS + 1)
    end = time.monotonic() + seconds
    with open(os.open(_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _OPEN, 0o600), "ab") as log:
        if log.tell() > LARGEST:
            log.truncate(0)
        command = [sys.executable, "-I", "-c", _RESIDENT, _ROOT, home]
        # Its environment is not this client's: it answers others, too.
        environment = {"HOME": pwd.getpwuid(os.geteuid()).pw_dir, "PATH": os.defpath}
        while (reply := _reply(request)) is None:
            # It ends by this signal where another one has the lock: that one listens soon, or has ended.
            if started is None or started.poll() == -_signal.SIGALRM:
                started = subprocess.Popen(  # noqa: S603 - this interpreter
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
                )
            elif started.poll() or time.monotonic() > end:
                raise NoAnswerError(f"the resident process is not ready; see {home}/{STATE}/{_LOG}, and try again")
            time.sleep(0.01)
    return reply


def _out_of_time(*_: object) -> None:
    raise NoAnswerError("there was no answer in time")


if __name__ == "__main__":
    ask()
