"""A temporary OPA server, run as a child process.

On a Unix socket (the default) only the user's own processes can connect, because the socket's folder is private. On TCP
any process on the machine can connect, so OPA requires a token and answers only decisions and health checks
(`deploy/authz.rego`). No client can write policies or data, even with the token.
"""

import logging
import secrets
import socket
import subprocess
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pdp.engine.bundle.file import ROOTS, Bundle
from pdp.engine.data import merged_data
from pdp.engine.opa.client import OpaClient, parse_address
from pdp.engine.opa.engine import TOKEN_VARIABLE
from pdp.errors import EngineError
from pdp.installed import packaged
from pdp.json import canonical
from pdp.opa.modules import write_texts
from pdp.opa.program import opa_environment

_logger = logging.getLogger("pdp.engine")

_START_TIMEOUT: Final = 15.0
_RESTART_PAUSE: Final = 1.0
_PAUSE: Final = 0.01
_LOG_TAIL: Final = 4096
_OK: Final = 200
_OPTIONS: Final = (
    "--log-level=error", "--log-format=text", "--skip-version-check", "--unix-socket-perm=600", "--bundle", "bundle",
)  # fmt: skip
_LOCKED: Final = ("--authentication=token", "--authorization=basic")


@dataclass(frozen=True, slots=True)
class OpaServer:
    """The address of a running OPA. On TCP, `token` is its bearer token; on a Unix socket, `token` is None."""

    url: str
    token: str | None = field(repr=False)


@contextmanager
def local_opa(
    program: Path,
    *,
    bundle: Bundle,
    manifests: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    tcp: bool = False,
) -> Iterator[OpaServer]:
    """Run OPA as a child process until the `with` block ends. If OPA ends earlier, it is restarted after a second.

    OPA evaluates the bundle's Rego on the bundle's data, with `manifests` (by digest) and `data` merged into it. With
    `tcp`, OPA listens on a free port of 127.0.0.1 instead of a Unix socket, and requires a token.

    Raises `UsageError` for data that is not allowed, and `EngineError` if OPA does not start.
    """
    token = secrets.token_hex(32) if tcp else None
    with tempfile.TemporaryDirectory(prefix="pdp-opa-") as name, socket.socket() as reserved:
        folder = Path(name)
        _write(folder, bundle, manifests, data, lock=tcp)
        address = url = f"unix://{folder / 'opa.sock'}"
        if tcp:
            # The port is bound but does not listen: OPA can use it, while the system gives it to no other process.
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{reserved.getsockname()[1]}"
            url = f"http://{address}"
        log = folder / "opa.log"

        def start() -> subprocess.Popen[bytes]:
            with log.open("wb") as output:
                return subprocess.Popen(  # noqa: S603 - the program is the caller's, and no shell is used
                    [program.resolve(), "run", "--server", f"--addr={address}", *_OPTIONS, *(_LOCKED if tcp else ())],
                    cwd=folder,
                    env=opa_environment() | ({TOKEN_VARIABLE: token} if token else {}),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )

        try:
            process = start()
        except OSError as error:
            raise EngineError(
                f"{program}: OPA cannot be run: {error.strerror}", hint="install it with `pdp opa install`"
            ) from error
        turn, is_over = threading.Lock(), threading.Event()

        def keep_running() -> None:
            nonlocal process
            while not is_over.is_set():
                code = process.wait()
                if is_over.is_set():
                    return
                _logger.error("OPA exited with code %d and is restarted:\n%s", code, _log_tail(log))
                is_over.wait(_RESTART_PAUSE)
                # if OPA cannot be started because the machine lacks resources, the next attempt follows after a pause
                with turn, suppress(OSError):
                    if not is_over.is_set():
                        process = start()

        try:
            _wait_until_ready(process, url, log)
            threading.Thread(target=keep_running, name="pdp-opa", daemon=True).start()
            yield OpaServer(url, token)
        finally:
            with turn:
                is_over.set()
            process.kill()  # OPA can be killed, because it holds no state
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    with closing(OpaClient(parse_address(url), connect_timeout=1.0, connections=1)) as client:
        while time.monotonic() < deadline:
            try:
                is_ready = client.exchange("GET", "/health?bundle=true", None, 1.0).status == _OK
            except EngineError:
                is_ready = False
            # OPA ends if another process has taken its port, so after each answer the program checks that OPA still
            # runs.
            if process.poll() is not None:
                raise EngineError(f"OPA did not start:\n{_log_tail(log)}")
            if is_ready:
                return
            time.sleep(_PAUSE)
    raise EngineError(f"OPA was not ready within {_START_TIMEOUT:g} s:\n{_log_tail(log)}")


def _log_tail(log: Path) -> str:
    text = log.read_bytes()[-_LOG_TAIL:].decode(errors="replace").rstrip()
    return textwrap.indent(text or "(OPA wrote nothing)", "  ")


def _write(
    folder: Path, bundle: Bundle, manifests: Mapping[str, Any] | None, data: Mapping[str, Any] | None, *, lock: bool
) -> None:
    whole = canonical(merged_data(bundle.data, manifests=manifests, data=data))
    files = {**bundle.modules, "data.json": whole.decode()}
    roots = list(ROOTS)
    if lock:
        files["system/authz.rego"] = packaged("deploy/authz.rego").read_text(encoding="utf-8")
        roots.append("system/authz")
    files[".manifest"] = canonical({"revision": bundle.revision, "roots": roots, "rego_version": 1}).decode()
    write_texts(folder / "bundle", files)
