"""An OPA server for as long as it is needed: a process of ours, or a container where Docker runs.

Who may ask a process: on a Unix socket (the default) only the user's own processes, as it stands in a folder that
nobody else may enter. On TCP anybody on the machine could, so OPA then asks for a token, and answers nothing but
decisions and its health (`deploy/authz.rego`): nobody, with the token or without, can write policies or data.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import tempfile
import textwrap
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pdp.engine.bundle.file import ROOTS
from pdp.engine.data import merged_data
from pdp.engine.opa.client import OpaClient, parse_address
from pdp.engine.opa.engine import TOKEN_VARIABLE
from pdp.errors import EngineError, UsageError
from pdp.installed import packaged
from pdp.json import canonical
from pdp.workbench.opa.program import OPA_VERSION, find_opa, opa_environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdp.engine.bundle.file import Bundle

IMAGE: Final = f"openpolicyagent/opa:{OPA_VERSION}-static"
"""What the container runs; the same release as the local program."""

START_TIMEOUT: Final = 15.0
"""Default time for OPA to load its bundle and answer, in seconds."""

_CONTAINER_TIMEOUT: Final = 60
_DOCKER_SOCKET: Final = "/var/run/docker.sock"
_LOCK: Final = "deploy/authz.rego"
_FOLDER: Final = "/pdp"
_PORT: Final = 8181
_PAUSE: Final = 0.01
_LOG_TAIL: Final = 4096
_OK: Final = 200


class NoOpaServerError(UsageError):
    """Neither a container nor a local process can run."""


@dataclass(frozen=True, slots=True)
class OpaServer:
    """A running OPA with a policy's bundle.

    Attributes:
        url: for `SidecarEngine` or any HTTP client: `POST {url}/v1/data/authz/decision`.
        token: to be sent as `Authorization: Bearer`; None on a Unix socket, where it asks for none.
        container: whether it runs in Docker; else it is a process of ours.
    """

    url: str
    token: str | None = field(repr=False)
    container: bool


@contextmanager
def opa_server(bundle: Bundle, manifests: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[OpaServer]:
    """Run an OPA that asks for a token, in a container where Docker runs; arguments and errors as of `local_opa`.

    Raises:
        NoOpaServerError: neither Docker nor OPA is here.
    """
    if docker_runs():
        with _container(bundle, manifests, data) as server:
            yield server
        return
    program = find_opa()
    if program is None:
        raise NoOpaServerError(
            f"neither Docker (with the extra tool-pdp[docker]) nor Open Policy Agent {OPA_VERSION} is here",
            hint="run: pdp opa install",
        )
    with local_opa(program, bundle=bundle, manifests=manifests, data=data, tcp=True) as server:
        yield server


@contextmanager
def local_opa(
    program: Path,
    *,
    bundle: Bundle,
    manifests: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    tcp: bool = False,
    start_timeout: float = START_TIMEOUT,
) -> Iterator[OpaServer]:
    """Run OPA as a process, which ends with the block.

        with local_opa(program, bundle=read_bundle(path)) as opa, SidecarEngine(opa.url, token=opa.token) as engine:
            engine.decide(request)

    Args:
        program: OPA.
        bundle: what it decides by; its Rego is evaluated, not its WebAssembly.
        manifests: the document of each effective manifest by its digest, beside those in the bundle.
        data: the roots `directory` and `settings`, laid over the bundle's.
        tcp: listen on 127.0.0.1 and a free port instead of a Unix socket, and ask for a token.
        start_timeout: seconds that it may take to be ready.

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
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(  # noqa: S603 - the program that the caller named, with arguments made here
                    [program.resolve(), *_arguments(address, name, lock=tcp)],
                    cwd=folder,
                    env=opa_environment() | ({TOKEN_VARIABLE: token} if token else {}),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
        except OSError as error:
            raise EngineError(
                f"{program}: OPA cannot be run: {error.strerror}", hint="get it with `pdp opa install`"
            ) from error
        with process:
            try:
                _wait_until_ready(process, url, log, start_timeout)
                yield OpaServer(url, token, container=False)
            finally:
                process.kill()  # at once: it holds nothing that could be lost


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path, start_timeout: float) -> None:
    deadline = time.monotonic() + start_timeout
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
    raise EngineError(f"OPA was not ready within {start_timeout:g} s:\n{_log_tail(log)}")


def _log_tail(log: Path) -> str:
    text = log.read_bytes()[-_LOG_TAIL:].decode(errors="replace").rstrip()
    return textwrap.indent(text or "(OPA wrote nothing)", "  ")


def docker_runs() -> bool:
    """Whether containers can be started: testcontainers is installed, and a Docker engine answers."""
    if "DOCKER_HOST" not in os.environ and not Path(_DOCKER_SOCKET).exists():
        return False  # asked in vain, Docker's client drops a socket without closing it
    try:
        from testcontainers.core.docker_client import DockerClient  # noqa: PLC0415

        with closing(DockerClient().client) as client:
            return bool(client.ping())
    except Exception:  # noqa: BLE001 - not installed, not running or not ours: whatever it is, there is no container
        return False


@contextmanager
def _container(bundle: Bundle, manifests: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[OpaServer]:
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415
    from testcontainers.core.wait_strategies import HttpWaitStrategy  # noqa: PLC0415

    token = secrets.token_hex(32)
    with tempfile.TemporaryDirectory(prefix="pdp-opa-") as folder:
        _write(Path(folder), bundle, manifests, data, lock=True)
        for path in (Path(folder), *Path(folder).rglob("*")):
            path.chmod(0o755)  # readable for the container's user
        container = (
            DockerContainer(IMAGE)
            .with_env(TOKEN_VARIABLE, token)
            .with_volume_mapping(folder, _FOLDER)
            .with_exposed_ports(_PORT)
            .with_command(_arguments(f"0.0.0.0:{_PORT}", _FOLDER, lock=True))
            .waiting_for(HttpWaitStrategy(_PORT, "/health?bundle").with_startup_timeout(_CONTAINER_TIMEOUT))
        )
        with container:
            host, port = container.get_container_host_ip(), container.get_exposed_port(_PORT)
            yield OpaServer(f"http://{host}:{port}", token, container=True)


def _arguments(address: str, folder: str, *, lock: bool) -> list[str]:
    """Return the arguments with which OPA serves what `_write` put into `folder`."""
    return [
        "run", "--server", f"--addr={address}", "--log-level=error", "--log-format=text", "--skip-version-check",
        "--unix-socket-perm=600", *(["--authentication=token", "--authorization=basic"] if lock else []),
        "--bundle", f"{folder}/bundle",
    ]  # fmt: skip


def _write(
    folder: Path, bundle: Bundle, manifests: Mapping[str, Any] | None, data: Mapping[str, Any] | None, *, lock: bool
) -> None:
    """Write a bundle into a folder: Rego, data, and the lock where OPA asks for a token."""
    files = {path: text.encode() for path, text in bundle.modules.items()}
    files["data.json"] = canonical(merged_data(bundle.data, manifests=manifests, data=data))
    roots = list(ROOTS)
    if lock:
        file = packaged(_LOCK)
        if file is None:
            raise UsageError(f"{_LOCK} is not installed", hint="install tool-pdp again")
        files["system/authz.rego"] = file.read_bytes()
        roots.append("system/authz")
    files[".manifest"] = canonical({"revision": bundle.revision, "roots": roots, "rego_version": 1})
    for path, content in files.items():
        file = folder / "bundle" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
