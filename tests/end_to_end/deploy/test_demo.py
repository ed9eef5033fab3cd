"""The sidecar of deploy/demo/compose.yaml works: in Docker if Docker runs, otherwise as a process with its command."""

import http.client
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import PATIENCE, ROOT
from tests.support.command_line import Done, pdp
from tests.support.servers.containers import no_docker
from tests.support.servers.opa import free_port, opa_process

FILE = ROOT / "deploy/demo/compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
TOKEN = "a-token-of-the-test"  # noqa: S105 - a token for tests


def answers(port: int, method: str, path: str, body: str = "", token: str = TOKEN) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, body, {"Authorization": f"Bearer {token}", "Content-Type": "application/json"})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.fixture(scope="module")
def port(opa: Path) -> Iterator[int]:
    """Run an OPA with the arguments of the compose file, except for address and folders, and yield the OPA's port."""
    service = COMPOSE["services"]["opa"]
    folders = dict(volume.split(":")[1::-1] for volume in service["volumes"])
    command = [argument.replace("0.0.0.0:8181", "127.0.0.1:{port}") for argument in service["command"]]
    for inside, outside in folders.items():
        command = [argument.replace(inside, str((FILE.parent / outside).resolve())) for argument in command]
    with opa_process(*command, PDP_OPA_TOKEN=TOKEN) as client:
        client.wait_for_ready(PATIENCE, 0.02, {"bundles": "true"})
        yield client.port


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], Done]:
    """Return a function that runs `pdp demo` in this process with the OPA that listens at a port."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PDP_OPA_TOKEN", TOKEN)
    return lambda port: pdp("demo", "--engine", "sidecar", "--opa-url", f"http://127.0.0.1:{port}")


@pytest.mark.opa
def test_demo_runs_with_the_sidecar_of_the_compose_file(port: int, demo: Callable[[int], Done]) -> None:
    done = demo(port)

    assert (done.code, done.err) == (0, "")
    assert "called once" in done.out


@pytest.mark.opa
def test_health_check_passes_only_when_the_sidecar_answers(opa: Path, port: int) -> None:
    """The health check runs with the arguments in the compose file."""
    _, program, *arguments = COMPOSE["services"]["opa"]["healthcheck"]["test"]
    with free_port() as nobody:
        healthy = [
            subprocess.run(
                [opa, *(argument.replace(":8181", f":{at}") for argument in arguments)], check=False, timeout=PATIENCE
            ).returncode
            == 0
            for at in (port, nobody)
        ]

    assert (program, healthy) == ("/opa", [True, False])
    assert COMPOSE["services"]["demo"]["depends_on"] == {"opa": {"condition": "service_healthy"}}


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
def test_sidecar_rejects_other_requests_and_wrong_tokens(port: int, method: str, path: str, token: str) -> None:
    assert answers(port, method, path, "{}", token) == 401


@pytest.mark.process
@pytest.mark.docker
def test_docker_compose_runs_the_demo() -> None:
    if reason := no_docker():
        pytest.skip(reason)
    compose = ["docker", "compose", "--file", str(FILE)]
    environment = {**os.environ, "PDP_OPA_TOKEN": TOKEN}
    try:
        done = subprocess.run(
            [*compose, "up", "--build", "--exit-code-from", "demo"],
            capture_output=True, text=True, check=False, timeout=900, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        subprocess.run([*compose, "down"], check=False, env=environment, timeout=PATIENCE)
