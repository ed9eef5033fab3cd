"""The sidecar of docker-compose.yml: by Docker where an engine runs, and everywhere the same command as a process."""

from __future__ import annotations

import http.client
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import PATIENCE, ROOT, until

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
TOKEN = "a-token-of-the-test"  # noqa: S105


def free_port() -> int:
    """A port that nobody has, and below those that the system gives to whoever asks for any."""
    while True:
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", random.randrange(10_000, 30_000)))  # noqa: S311 - no secret
            return int(free.getsockname()[1])


def answers(port: int, method: str, path: str, body: str = "", token: str = TOKEN) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, body, {"Authorization": f"Bearer {token}", "Content-Type": "application/json"})
        return connection.getresponse().status
    finally:
        connection.close()


def started(opa: Path, chosen: int) -> subprocess.Popen[bytes]:
    """OPA with the very arguments of the compose file; only address and folders are this machine's."""
    service = COMPOSE["services"]["opa"]
    folders = dict(volume.split(":")[1::-1] for volume in service["volumes"])
    command = [argument.replace("0.0.0.0:8181", f"127.0.0.1:{chosen}") for argument in service["command"]]
    for inside, outside in folders.items():
        command = [argument.replace(inside, str(ROOT / outside)) for argument in command]
    return subprocess.Popen([opa, *command], env={**os.environ, "PDP_OPA_TOKEN": TOKEN})


@pytest.fixture(scope="module")
def port(opa: Path) -> Iterator[int]:
    chosen = free_port()
    process = started(opa, chosen)
    try:

        def ready() -> bool:
            assert process.poll() is None
            with suppress(OSError):
                return answers(chosen, "GET", "/health?bundle") == 200
            return False

        assert until(ready)
        yield chosen
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE)


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pdp", "demo", *arguments],
        capture_output=True, text=True, check=False, timeout=PATIENCE, env={**os.environ, "PDP_OPA_TOKEN": TOKEN},
    )  # fmt: skip


@pytest.mark.opa
def test_the_demo_runs_against_the_sidecar(port: int) -> None:
    told = demo("--engine", "sidecar", "--opa-url", f"http://127.0.0.1:{port}")

    assert (told.returncode, told.stderr) == (0, "")
    assert "called once" in told.stdout


@pytest.mark.opa
def test_the_demo_waits_for_a_sidecar_that_starts_later(opa: Path) -> None:
    chosen = free_port()
    running: list[subprocess.Popen[bytes]] = []
    later = threading.Timer(1.0, lambda: running.append(started(opa, chosen)))
    later.start()
    try:
        told = demo("--engine", "sidecar", "--opa-url", f"http://127.0.0.1:{chosen}")
    finally:
        later.join()
        running[0].terminate()
        running[0].wait(timeout=PATIENCE)

    assert (told.returncode, told.stderr) == (0, "")


@pytest.mark.opa
@pytest.mark.parametrize(
    ("method", "path", "token"),
    [
        pytest.param("PUT", "/v1/policies/mine", TOKEN, id="write a policy"),
        pytest.param("PUT", "/v1/data/manifests", TOKEN, id="write data"),
        pytest.param("PATCH", "/v1/data/config", TOKEN, id="patch data"),
        pytest.param("DELETE", "/v1/policies/x", TOKEN, id="delete a policy"),
        pytest.param("GET", "/v1/data", TOKEN, id="read data"),
        pytest.param("GET", "/v1/policies", TOKEN, id="read policies"),
        pytest.param("POST", "/v1/query", TOKEN, id="query"),
        pytest.param("POST", "/v1/data/authz/decision", "another", id="decide with another token"),
    ],
)
def test_the_sidecar_does_nothing_else(port: int, method: str, path: str, token: str) -> None:
    assert answers(port, method, path, "{}", token) == 401


def docker_runs() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=PATIENCE).returncode == 0


@pytest.mark.process
@pytest.mark.docker
def test_docker_compose() -> None:
    if not docker_runs():
        pytest.skip("no Docker engine runs here; the same command was tested as a local process")
    compose = ["docker", "compose", "--file", str(ROOT / "docker-compose.yml")]
    environment = {**os.environ, "PDP_OPA_TOKEN": TOKEN}
    try:
        told = subprocess.run(
            [*compose, "up", "--build", "--exit-code-from", "demo"],
            capture_output=True, text=True, check=False, timeout=900, env=environment,
        )  # fmt: skip
        assert told.returncode == 0, told.stdout + told.stderr
    finally:
        subprocess.run([*compose, "down"], check=False, env=environment, timeout=PATIENCE)
