"""A real OPA as a process or a container. Tests load policies and data with opa-python-client."""

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from opa_client import OpaClient

from pdp.opa.program import OPA_VERSION, needed_opa, opa_environment
from tests.support import PATIENCE, ROOT, until
from tests.support.servers.containers import no_docker

KINDS = ("process", pytest.param("docker", marks=pytest.mark.docker))


@contextmanager
def free_port() -> Iterator[int]:
    """Yield a TCP port that no process uses."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


@contextmanager
def opa_process(*arguments: str, **variables: str) -> Iterator[OpaClient]:
    """Run OPA with these arguments, where `{port}` is a free port. When OPA answers, yield a client."""
    with (
        free_port() as port,
        OpaClient("127.0.0.1", port, retries=0, timeout=PATIENCE) as client,
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [str(needed_opa("this test")), *(argument.replace("{port}", str(port)) for argument in arguments)],
            env={**opa_environment(), **variables}, stdout=log, stderr=log,
        ) as process,
    ):  # fmt: skip
        try:
            assert until(lambda: process.poll() is not None or client.check_health())
            log.seek(0)
            assert process.poll() is None, log.read()
            yield client
        finally:
            process.terminate()


@contextmanager
def opa_server(kind: str, *options: str, folder: Path = ROOT / "bundles") -> Iterator[OpaClient]:
    """Run OPA as one of `KINDS` with options of `opa run`. `{folder}` stands for the folder's path as OPA sees it."""
    options = ("run", "--server", "--log-level=error", "--skip-version-check", *options)
    if kind == "process":
        arguments = [each.replace("{folder}", str(folder)) for each in options]
        with opa_process(*arguments, "--addr=127.0.0.1:{port}") as client:
            yield client
        return
    if reason := no_docker():
        pytest.skip(reason)
    from testcontainers.core.container import DockerContainer

    container = DockerContainer(f"openpolicyagent/opa:{OPA_VERSION}", user=str(os.getuid())).with_exposed_ports(8181)
    arguments = [each.replace("{folder}", "/folder") for each in options]
    container.with_volume_mapping(folder, "/folder").with_command([*arguments, "--addr=0.0.0.0:8181"])
    with (
        container,
        OpaClient(container.get_container_host_ip(), container.get_exposed_port(8181), retries=0) as client,
    ):
        client.wait_for_ready(PATIENCE)
        yield client


def url_of(client: OpaClient) -> str:
    return f"{client.schema}{client.host}:{client.port}"
