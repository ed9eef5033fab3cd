"""An OPA server for as long as it is needed: a process of ours.

Who may ask it: on a Unix socket (the default) only the user's own processes, as it stands in a folder that
nobody else may enter. On TCP anybody on the machine could, so OPA then asks for a token, and answers nothing but
decisions and its health (`deploy/authz.rego`): nobody, with the token or without, can write policies or data.
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
from pdp.workbench.opa.modules import write_texts
from pdp.workbench.opa.program import opa_environment

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
    """A running OPA with a policy's bundle.

    Attributes:
        url: for `SidecarEngine` or any HTTP client: `POST {url}/v1/data/authz/decision`.
        token: to be sent as `Authorization: Bearer`; None on a Unix socket, where it asks for none.
    """

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
    """Run OPA as a process, which ends with the block; one that ends before is started again a second later.

        with local_opa(program, bundle=read_bundle(path)) as opa, SidecarEngine(opa.url, token=opa.token) as engine:
            engine.decide(request)

    Args:
        program: OPA.
        bundle: what it decides by; its Rego is evaluated, not its WebAssembly.
        manifests: the document of each effective manifest by its digest, beside those in the bundle.
        data: the roots `directory` and `settings`, laid over the bundle's.
        tcp: listen on 127.0.0.1 and a free port instead of a Unix socket, and ask for a token.

    Raises:
        UsageError: data that is not admitted.
        EngineError: OPA does not start.
    """
    token = secrets.token_hex(32) if tcp else None
    with tempfile.TemporaryDirectory(prefix="pdp-opa-") as name, socket.socket() as reserved:
        folder = Path(name)
        _write(folder, bundle, manifests, data, lock=tcp)
        address = url = f"unix://{folder / 'opa.sock'}"
        if tcp:
            # Bound without listening, and not alone: OPA may have the port, and nobody is given it as a free one.
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{reserved.getsockname()[1]}"
            url = f"http://{address}"
        log = folder / "opa.log"

        def start() -> subprocess.Popen[bytes]:
            with log.open("wb") as output:
                return subprocess.Popen(  # noqa: S603 - the program that the caller named, with arguments made here
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
                f"{program}: OPA cannot be run: {error.strerror}", hint="get it with `pdp opa install`"
            ) from error
        turn, is_over = threading.Lock(), threading.Event()

        def keep_running() -> None:
            nonlocal process
            while not is_over.is_set():
                code = process.wait()
                if is_over.is_set():
                    return
                _logger.error("OPA has ended with %d, and is started again:\n%s", code, _log_tail(log))
                is_over.wait(_RESTART_PAUSE)
                with turn, suppress(OSError):  # no room on the machine: once more after a pause
                    if not is_over.is_set():
                        process = start()

        try:
            _wait_until_ready(process, url, log)
            threading.Thread(target=keep_running, name="pdp-opa", daemon=True).start()
            yield OpaServer(url, token)
        finally:
            with turn:
                is_over.set()
            process.kill()  # at once: it holds nothing that could be lost
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    with closing(OpaClient(parse_address(url), connect_timeout=1.0, connections=1)) as client:
        while time.monotonic() < deadline:
            try:
                is_ready = client.exchange("GET", "/health?bundle=true", None, 1.0).status == _OK
            except EngineError:
                is_ready = False
            # Checked after the answer, which may come from something else that has taken the port: then OPA ends.
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
    """Write a bundle into a folder: Rego, data, and the lock where OPA asks for a token."""
    whole = canonical(merged_data(bundle.data, manifests=manifests, data=data))
    files = {**bundle.modules, "data.json": whole.decode()}
    roots = list(ROOTS)
    if lock:
        files["system/authz.rego"] = packaged("deploy/authz.rego").read_text(encoding="utf-8")
        roots.append("system/authz")
    files[".manifest"] = canonical({"revision": bundle.revision, "roots": roots, "rego_version": 1}).decode()
    write_texts(folder / "bundle", files)
