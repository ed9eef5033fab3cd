"""The program that a client starts for each call: it asks the resident process, and exits with the answer.

    python -I -S ask.py CLIENT HOME < the client's input

It exits with 0 and the answer on standard output, or with 2 and a reason on standard error. After any other exit code,
most clients would run the call. The client waits for every import, so imports are few.

The program sends the line `CLIENT POLICY LENGTH` and the client's input. It receives REQUEST, POLICY, the exit code and
both outputs, each followed by a NUL. POLICY is the digest of the policy's files, REQUEST the digest of the data sent.
"""

# These private modules are imported because `signal`, `socket` and `hashlib` have further imports, which would take
# half of the time of a call.
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

WAIT_SECONDS = 50.0  # A call waits at most this many seconds for an answer. Most clients end a hook after 60 s.
LARGEST = 1024 * 1024  # The maximum size of a client's input in bytes.
STATE = "state"  # The subfolder of the policy's folder for files that change.

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_RESIDENT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from pdp.hooks.resident import reside; reside()"
_LOG = "log"
_SHORTER = {"copilot-cli": 20.0}  # This client ends a hook after 30 s.
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NoAnswerError(Exception):
    """The answer is missing or invalid. The text gives the reason, for the client's model and its user."""


def ask() -> None:
    """Write the answer to one call of the client, and end the process."""
    try:
        _signal.signal(_signal.SIGALRM, _out_of_time)
        _signal.setitimer(_signal.ITIMER_REAL, WAIT_SECONDS + 1)
        code, *outputs = _answer(*sys.argv[1:])
    except BaseException as error:  # noqa: BLE001 - after any error, the call does not run
        kind = "" if isinstance(error, NoAnswerError) else f"{type(error).__name__}: "
        code, outputs = 2, [b"", f"pdp denies this call: {kind}{error}\n".encode(errors="replace")]
    try:
        for descriptor, output in enumerate(outputs, 1):
            while output:
                output = output[os.write(descriptor, output) :]  # noqa: PLW2901 - the rest of the output
    except BaseException:  # noqa: BLE001 - after any error, the call does not run
        code = 2
    # The process exits at once, because code that runs at the interpreter's end could change the exit code.
    os._exit(code)


def wait_seconds(client: str) -> float:
    """Return how long a call of this client waits for an answer. It is less than the client's own limit."""
    return min(WAIT_SECONDS, _SHORTER.get(client, WAIT_SECONDS))


def open_folder(path: str, within: int | None = None) -> int:
    """Open a folder that only this user can access, and return its descriptor. `within` is an open parent folder.

    Raise `NoAnswerError` if the path is not such a folder, or is a link.
    """
    name = path if within is None else os.path.basename(path)
    try:
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _OPEN, dir_fd=within)
    except OSError as error:
        raise NoAnswerError(f"the folder {path}: {error.strerror}; run `pdp hook install`") from None
    status = os.fstat(folder)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise NoAnswerError(f"the folder {path} must be closed to other users: chmod 700 {path}")
    return folder


def policy_digest(folder: int) -> str:
    """Return the SHA-256 of the files in HOME, with their names. Raise `NoAnswerError` if others can write one."""
    digest = sha256()
    for name in sorted({*os.listdir(folder)} - {STATE}):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise NoAnswerError(
                f"{name!a} in the policy's folder must be a regular file that only its user can write to (chmod 600)"
            )
        with open(os.open(name, os.O_RDONLY | _OPEN, dir_fd=folder), "rb") as file:
            content = file.read()
        digest.update(f"{name!a} {len(content)}\n".encode() + content)
    return str(digest.hexdigest())


def socket_name() -> str:
    """Return the name of this installation's socket file. Raise `OSError` if the program has been removed."""
    status = os.stat(__file__)
    return f"{status.st_dev:x}-{status.st_ino:x}-{status.st_mtime_ns:x}"


def peer(connection: _socket.socket) -> tuple[int, int]:
    """Return the ids of the user and the process at the other end of a connection; 0 for an unknown process."""
    if sys.platform == "linux":
        process, user, _ = memoryview(connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)).cast("i")
        return user, process
    # BSD systems, macOS among them: LOCAL_PEERCRED of SOL_LOCAL returns a struct xucred.
    return memoryview(connection.getsockopt(0, 1, 76)).cast("i")[1], 0


def _answer(client: str, home: str) -> tuple[int, bytes, bytes]:
    end = time.monotonic() + wait_seconds(client)
    _signal.setitimer(_signal.ITIMER_REAL, wait_seconds(client) + 1)
    home = os.path.abspath(home)
    folder = open_folder(home)
    policy = policy_digest(folder)
    os.fchdir(open_folder(f"{home}/{STATE}", folder))  # The path of a Unix socket must be short.
    body = sys.stdin.buffer.read(LARGEST + 1)
    if len(body) > LARGEST:
        raise NoAnswerError(f"the client's input has more than {LARGEST} bytes")
    request = f"{client} {policy} {len(body)}\n".encode() + body
    if (reply := _reply(request, end)) is None:
        reply = _first_reply(home, request, end)
    match reply.split(b"\0"):
        case [asked, decided_by, (b"0" | b"2") as code, stdout, stderr, b""] if (code == b"2") == bool(stderr):
            if asked == sha256(request).hexdigest().encode() and decided_by == policy.encode():
                return int(code), stdout, stderr
    raise NoAnswerError("the resident process ended, or its answer is for another call or by another policy; try again")


def _reply(request: bytes, end: float) -> bytes | None:
    """Return the reply of the resident process, or None if no process listens. The reply must begin before `end`."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.settimeout(max(end - time.monotonic(), 0.01))
    try:
        connection.connect(socket_name())
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    user, process = peer(connection)
    if user != os.geteuid():
        raise NoAnswerError(f"another user, {user}, listens on this user's socket")
    try:
        connection.sendall(request)
        reply = b""
        while len(reply) < 8 * LARGEST and (part := connection.recv(LARGEST)):
            reply += part
    except OSError as error:
        raise NoAnswerError(
            f"the resident process {process} does not answer: {error}; if the error remains, end this process"
        ) from None
    return reply


def _first_reply(home: str, request: bytes, end: float) -> bytes:
    """Start a resident process, and return its reply. Raise `NoAnswerError` if the process is not ready in time."""
    import pwd  # noqa: PLC0415 - only a first call needs it
    import subprocess  # noqa: PLC0415 - only a first call needs it

    started = None
    with open(os.open(_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _OPEN, 0o600), "ab") as log:
        if log.tell() > LARGEST:
            log.truncate(0)
        command = [sys.executable, "-I", "-c", _RESIDENT, _ROOT, home]
        # The resident process does not inherit this client's environment, because it also answers other clients.
        environment = {"HOME": pwd.getpwuid(os.geteuid()).pw_dir, "PATH": os.defpath}
        while (reply := _reply(request, end)) is None:
            # A new process ends by SIGALRM if another process has the lock. The other process will listen soon, or has
            # ended. It ends with 0 if it is told to end.
            if started is None or (started.poll() in (0, -_signal.SIGALRM) and time.monotonic() < end):
                started = subprocess.Popen(  # noqa: S603 - this interpreter
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
                )
            elif started.poll() or time.monotonic() >= end:
                raise NoAnswerError(f"the resident process is not ready; see {home}/{STATE}/{_LOG}, and try again")
            time.sleep(0.01)
    return reply


def _out_of_time(*_: object) -> None:
    raise NoAnswerError("there was no answer in time")


if __name__ == "__main__":
    ask()
