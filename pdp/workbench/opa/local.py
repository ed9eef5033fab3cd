"""An OPA of our own beside the process: started, waited for, and ended whatever happens.

Who may talk to it: on a Unix socket (the default) only the user's own processes, as it stands in a folder that nobody
else may enter. On TCP anybody on the machine could, so OPA then asks for a token, and answers nothing but decisions and
its health: nobody, with the token or without, can write policies or data.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from os import getpid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.engine.bundle.file import ROOTS, Bundle, read_bundle
from pdp.engine.data import merged_data
from pdp.engine.opa.address import parse_address
from pdp.engine.opa.client import OpaClient
from pdp.errors import EngineError, UsageError
from pdp.json import canonical
from pdp.workbench.opa.program import opa_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

START_TIMEOUT: Final = 15.0
"""Default time for OPA to load its bundle and answer, in seconds."""

_TRIES: Final = 3
_PAUSE: Final = 0.01
_LOG_TAIL: Final = 4096
_OK: Final = 200
_PORT_TAKEN: Final = "address already in use"
# Asks Linux to end OPA when we die without a chance to do it (SIGKILL), then becomes OPA.
_LAUNCH: Final = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 9)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "try: os.execv(sys.argv[2], sys.argv[2:])\n"
    "except OSError as error: sys.exit(f'{sys.argv[2]}: {error.strerror}')"
)
_LOCK: Final = """\
package system.authz

default allow := false

allow if {{
	input.method == "GET"
	input.path in [["health"], ["v1", "data", "system", "authz", "instance"]]
}}

allow if {{
	input.method == "POST"
	array.slice(input.path, 0, 3) == ["v1", "data", "authz"]
	input.identity == "{token}"
}}

instance := "{instance}"
"""


class LocalOpa:
    """A running OPA, as a context manager.

        with LocalOpa(program, bundle=read_bundle(path)) as opa, SidecarEngine(opa.url, token=opa.token) as engine:
            engine.decide(request)

    Args:
        program: OPA.
        bundle: what it decides by; its Rego is evaluated, not its WebAssembly.
        manifests: the document of each effective manifest by its digest, beside those in the bundle.
        data: the roots `directory` and `settings`, laid over the bundle's.
        paths: instead of a bundle, Rego and data files, or folders of them, taken as they are and without checks;
            `*_test.rego` is left out.
        tcp: listen on 127.0.0.1 and a free port instead of a Unix socket, and ask for a token.
        start_timeout: seconds that it may take to be ready.

    Raises:
        UsageError: neither a bundle nor paths, or both; data that is not admitted.
    """

    def __init__(
        self,
        program: Path,
        *,
        bundle: Bundle | Path | None = None,
        manifests: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
        paths: Sequence[Path] = (),
        tcp: bool = False,
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        if (bundle is None) == (not paths) or (paths and (manifests or data)):
            raise UsageError("a local OPA is given either a bundle, with data beside it, or paths")
        self._program = program.resolve()
        self._bundle = read_bundle(bundle) if isinstance(bundle, Path) else bundle
        self._documents = (
            canonical(merged_data(self._bundle.data, manifests=manifests, data=data)) if self._bundle else b""
        )
        self._paths = [_as_argument(path) for path in paths]
        self._tcp = tcp
        self._start_timeout = start_timeout
        self._instance = secrets.token_hex(16)
        self._token = secrets.token_hex(32) if tcp else None
        self._url: str | None = None
        self._running = ExitStack()

    @property
    def url(self) -> str:
        """Where it listens, for `SidecarEngine`.

        Raises:
            EngineError: it does not run.
        """
        if self._url is None:
            raise EngineError("the local OPA is not started", hint="use it in a with statement")
        return self._url

    @property
    def token(self) -> str | None:
        """The token that it asks for, for `SidecarEngine`; None when it asks for none."""
        return self._token

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pdp-opa-")))
            sources = self._written(folder)
            for attempt in range(_TRIES):
                address, url = self._free_address(folder)
                with ExitStack() as started:
                    process = _started(self._program, address, self._token, sources, folder / "opa.log")
                    started.callback(_end, process)
                    # A port that was free a moment ago may be taken by now: then OPA ends, and we take another one.
                    if self._is_ready(process, url, folder / "opa.log", retry=self._tcp and attempt + 1 < _TRIES):
                        stack.push(started.pop_all())
                        break
            self._running = stack.pop_all()
            self._url = url
        return self

    def __exit__(self, *_: object) -> None:
        self._url = None
        self._running.close()

    def _written(self, folder: Path) -> list[str]:
        """Write what OPA is to load into `folder` and return its arguments for it."""
        lock = _LOCK.format(token=self._token, instance=self._instance) if self._tcp else None
        if self._bundle is None:
            if lock is None:
                return self._paths
            (folder / "lock.rego").write_text(lock, encoding="utf-8")
            return [*self._paths, str(folder / "lock.rego")]
        files = {path: text.encode() for path, text in self._bundle.modules.items()}
        files["data.json"] = self._documents
        roots = list(ROOTS)
        if lock is not None:
            files["system/authz.rego"] = lock.encode()
            roots.append("system/authz")
        files[".manifest"] = canonical({"revision": self._bundle.revision, "roots": roots, "rego_version": 1})
        for path, content in files.items():
            file = folder / "bundle" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return ["--bundle", str(folder / "bundle")]

    def _free_address(self, folder: Path) -> tuple[str, str]:
        """Return an address to listen on, as OPA's option and as the URL."""
        if not self._tcp:
            url = f"unix://{folder / 'opa.sock'}"
            return url, url
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        return f"127.0.0.1:{port}", f"http://127.0.0.1:{port}"

    def _is_ready(self, process: subprocess.Popen[bytes], url: str, log: Path, *, retry: bool) -> bool:
        """Wait until OPA is ready; False when it could not listen and may try again elsewhere."""
        deadline = time.monotonic() + self._start_timeout
        client = OpaClient(parse_address(url), connect_timeout=1.0, connections=1)
        try:
            while time.monotonic() < deadline:
                if process.poll() is not None:
                    if retry and _PORT_TAKEN in _log_tail(log):
                        return False
                    raise EngineError(f"OPA did not start:\n{_log_tail(log)}")
                if _get(client, "/health?bundle=true") is not None and self._is_ours(client):
                    return True
                time.sleep(_PAUSE)
        finally:
            client.close()
        raise EngineError(f"OPA was not ready within {self._start_timeout:g} s:\n{_log_tail(log)}")

    def _is_ours(self, client: OpaClient) -> bool:
        """Whether it is our OPA that answers, not something else that has taken the port: it would get the token."""
        return not self._tcp or bool(_get(client, "/v1/data/system/authz/instance") == {"result": self._instance})


def _started(
    program: Path, address: str, token: str | None, sources: Sequence[str], log: Path
) -> subprocess.Popen[bytes]:
    lock = ["--authentication=token", "--authorization=basic"] if token else []
    options = ["--log-level=error", "--skip-version-check", "--unix-socket-perm=600", "--ignore=*_test.rego"]
    command = [str(program), "run", "--server", f"--addr={address}", *options, *lock, *sources]
    # Linux takes the thread that started a process for its parent, so this holds for the main thread only.
    if sys.platform == "linux" and sys.executable and threading.current_thread() is threading.main_thread():
        command = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(getpid()), *command]
    try:
        with log.open("wb") as output:
            return subprocess.Popen(  # noqa: S603 - the program that the caller named, with arguments made here
                command,
                cwd=log.parent,
                env=opa_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
    except OSError as error:
        raise EngineError(
            f"{program}: OPA cannot be run: {error.strerror}", hint="get it with `pdp opa install`"
        ) from error


# At once: it holds nothing that could be lost.
def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _get(client: OpaClient, path: str) -> Any:
    """Return the JSON at `path`, or None when it is not there (yet)."""
    try:
        answer = client.exchange("GET", path, None, 1.0)
        return orjson.loads(answer.body) if answer.status == _OK else None
    except (EngineError, ValueError):
        return None


def _log_tail(log: Path) -> str:
    lines = []
    for line in log.read_bytes()[-_LOG_TAIL:].decode(errors="replace").splitlines():
        try:
            entry = orjson.loads(line)
            lines.append(": ".join(str(entry[key]) for key in ("msg", "err") if key in entry))
        except (ValueError, TypeError):
            lines.append(line)
    return "\n".join(f"  {line}" for line in lines) or "  (OPA wrote nothing)"


# `a:b` means data of the file b under the path a, unless it is a URL.
def _as_argument(path: Path) -> str:
    absolute = str(path.resolve())
    return f"file://{absolute}" if ":" in absolute else absolute
