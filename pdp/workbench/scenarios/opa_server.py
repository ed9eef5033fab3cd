"""An OPA that answers decisions for the time of a test run: a container where Docker runs, a local process else.

Both answer decisions to whoever has the token, and nothing else to anybody.
"""

from __future__ import annotations

import gc
import secrets
import tempfile
import warnings
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pdp.engine.bundle.file import pack_bundle
from pdp.engine.data import merged_data
from pdp.engine.opa.engine import TOKEN_VARIABLE
from pdp.errors import UsageError
from pdp.installed import packaged
from pdp.workbench.opa.program import OPA_VERSION, find_opa

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdp.engine.bundle.file import Bundle

IMAGE: Final = f"openpolicyagent/opa:{OPA_VERSION}-static"
"""What the container runs; the same release as the local program."""

BUNDLE_FILE: Final = "bundle.tar.gz"
LOCK_FILE: Final = "authz.rego"
_FOLDER: Final = "/pdp"
_PORT: Final = 8181


class NoOpaServerError(UsageError):
    """Neither a container nor a local process can be had."""


@dataclass(frozen=True, slots=True)
class OpaServer:
    """A running OPA with a policy's bundle.

    Attributes:
        url: for `SidecarEngine` or any HTTP client: `POST {url}/v1/data/authz/decision`.
        token: to be sent as `Authorization: Bearer`.
        container: whether it runs in Docker; else it is a process of ours.
    """

    url: str
    token: str = field(repr=False)
    container: bool


@contextmanager
def opa_server(bundle: Bundle, manifests: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[OpaServer]:
    """Run an OPA that decides by `bundle`, and end it with the block.

    Args:
        bundle: policies and data.
        manifests: the document of each effective manifest by its digest, beside those in the bundle.
        data: the roots `directory` and `settings`, laid over the bundle's.

    Raises:
        NoOpaServerError: neither Docker nor OPA is here.
        UsageError: data that is not admitted.
        EngineError: OPA does not start.
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
    from pdp.workbench.opa.local import LocalOpa  # noqa: PLC0415

    with LocalOpa(program, bundle=bundle, manifests=manifests, data=data, tcp=True) as local:
        yield OpaServer(local.url, local.token or "", container=False)


def docker_runs() -> bool:
    """Whether containers can be started: testcontainers is installed, and a Docker engine answers."""
    try:
        from docker import from_env  # noqa: PLC0415
        from docker.errors import DockerException  # noqa: PLC0415
        from testcontainers.core import container  # noqa: F401, PLC0415
    except ImportError:
        return False
    with warnings.catch_warnings():
        # Where no engine listens, Docker's client drops its socket without closing it.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            client = from_env(timeout=5)
            with closing(client):
                answers = bool(client.ping())
        # Docker's client lets what its own client for HTTP raises through, which is an OSError.
        except (DockerException, OSError):
            answers = False
        gc.collect()
    return answers


def container_arguments(folder: str, address: str) -> list[str]:
    """Return the arguments with which OPA serves the bundle and the lock that `write_served` put into `folder`."""
    return [
        "run", "--server", f"--addr={address}", "--authentication=token", "--authorization=basic",
        "--skip-version-check", "--log-level=error", f"--set=bundles.pdp.resource=file://{folder}/{BUNDLE_FILE}",
        f"{folder}/{LOCK_FILE}",
    ]  # fmt: skip


def write_served(folder: Path, bundle: Bundle, manifests: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Write what OPA serves into `folder`, readable for the container's user: bundle and lock.

    Raises:
        UsageError: data that is not admitted, or the lock is not installed.
    """
    lock = packaged(f"deploy/{LOCK_FILE}")
    if lock is None:
        raise UsageError(f"deploy/{LOCK_FILE} is not installed", hint="install tool-pdp again")
    packed = pack_bundle(
        release=bundle.release,
        wasm=bundle.wasm,
        data=merged_data(bundle.data, manifests=manifests, data=data),
        modules=bundle.modules,
    )
    for name, content in ((BUNDLE_FILE, packed), (LOCK_FILE, lock.read_bytes())):
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o644)
    folder.chmod(0o755)


@contextmanager
def _container(bundle: Bundle, manifests: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[OpaServer]:
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415
    from testcontainers.core.wait_strategies import HttpWaitStrategy  # noqa: PLC0415

    token = secrets.token_hex(32)
    with tempfile.TemporaryDirectory(prefix="pdp-opa-") as folder:
        write_served(Path(folder), bundle, manifests, data)
        container = (
            DockerContainer(IMAGE)
            .with_env(TOKEN_VARIABLE, token)
            .with_volume_mapping(folder, _FOLDER)
            .with_exposed_ports(_PORT)
            .with_command(container_arguments(_FOLDER, f"0.0.0.0:{_PORT}"))
            .waiting_for(HttpWaitStrategy(_PORT, "/health?bundle").with_startup_timeout(60))
        )
        with container:
            host, port = container.get_container_host_ip(), container.get_exposed_port(_PORT)
            yield OpaServer(f"http://{host}:{port}", token, container=True)
