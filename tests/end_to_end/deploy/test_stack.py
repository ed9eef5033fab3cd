"""docker-compose.yml works: in Docker if Docker runs, otherwise as processes with the commands and files in it.

Without Docker, PostgreSQL is that of the other tests, and Prometheus and Grafana do not run.
"""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest
import yaml

from tests.support import PATIENCE, ROOT, until
from tests.support.command_line import environment, written
from tests.support.postgres import fresh_database
from tests.support.servers.containers import no_docker
from tests.support.servers.opa import free_port
from tests.support.service import APPROVER, OFFICER

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
HEALTHCHECK = json.loads(re.findall(r"HEALTHCHECK [^[]+(\[.*\])", (ROOT / "deploy/Dockerfile").read_text())[0])
FINISHED = "service_completed_successfully"
VERIFY = "PDP_AUDIT_KEY=$(cat /secrets/audit_key) pdp audit verify"
WIRE = {
    "proposal": {
        "tool": "initiate_wire",
        "arguments": {
            "beneficiary_id": "bene-acme-441", "amount": 47500, "source_account": "acct-operating-4412",
            "reference": "INV-8842",
        },
    },
    "session": {
        "facts": {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"}, "idempotency_key": "pay-INV-8842",
    },
}  # fmt: skip


class Stack(Protocol):
    """The running containers. `run` runs a command like `docker compose exec`."""

    url: str

    def run(self, name: str, *command: str) -> str: ...


class Containers:
    """The containers of Docker."""

    url = "http://127.0.0.1:8181"
    _compose = ("docker", "compose", "--file", str(ROOT / "docker-compose.yml"))

    def __init__(self, owned: ExitStack) -> None:
        owned.callback(subprocess.run, [*self._compose, "down", "--volumes"], check=False, timeout=PATIENCE)
        self._docker("up", "--build", "--wait")

    def run(self, name: str, *command: str) -> str:
        return self._docker("exec", "--no-TTY", name, *command)

    def _docker(self, *words: str) -> str:
        done = subprocess.run([*self._compose, *words], capture_output=True, text=True, check=False, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


class Processes:
    """The containers as processes. Paths in volumes, ports and the database's URL are replaced everywhere."""

    def __init__(self, opa: Path, folder: Path, owned: ExitStack) -> None:
        self._folder = folder
        self._owned = owned
        self._database = fresh_database()
        self._ports = {name: owned.enter_context(free_port()) for name in ("service", "opa")}
        self._programs = {SERVICES["service"]["image"]: "pdp", SERVICES["opa"]["image"]: "opa"}
        self.url = f"http://127.0.0.1:{self._ports['service']}"
        for name in ("bin", *COMPOSE["volumes"]):
            (folder / name).mkdir()
        for program, command in (("pdp", [sys.executable, "-m", "pdp"]), ("opa", [str(opa)])):
            written(folder / "bin" / program, f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n').chmod(0o755)
        written(
            folder / "service.yaml", self._placed("service", yaml.safe_load((ROOT / "deploy/service.yaml").read_text()))
        )
        self.up()

    def up(self, *again: str) -> None:
        """Start the containers, or some of them, in the order of `depends_on`."""
        finished = {name for each in SERVICES.values() for name, on in needs(each).items() if on == FINISHED}
        for name in again or in_order():
            service = SERVICES[name]
            program = self._programs.get(service["image"])
            command = [*service.get("entrypoint", [program]), *service.get("command", ())]
            if program is not None and name in finished:
                self.run(name, *command)
            elif program is not None:
                self._serve(name, command)

    def run(self, name: str, *command: str) -> str:
        done = self._done(name, command)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        return done.stdout

    def _serve(self, name: str, command: list[str]) -> None:
        process = self._owned.enter_context(subprocess.Popen(**self._process(name, command)))
        self._owned.callback(process.terminate)
        _, *probe = SERVICES[name].get("healthcheck", {"test": ["CMD", *HEALTHCHECK]})["test"]
        probe[0] = probe[0].lstrip("/")
        assert until(lambda: process.poll() is not None or answers(self._ports[name]))
        assert until(lambda: process.poll() is not None or self._done(name, probe).returncode == 0)
        assert process.poll() is None, name

    def _done(self, name: str, command: Iterable[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            **self._process(name, command), capture_output=True, text=True, check=False, timeout=PATIENCE
        )

    def _process(self, name: str, command: Iterable[str]) -> dict[str, Any]:
        path = os.pathsep.join((str(self._folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
        variables = self._placed(name, SERVICES[name].get("environment", {}))
        if name == "service":
            variables["PDP_SERVICE_PORT"] = str(self._ports[name])
        return {"args": self._placed(name, list(command)), "env": environment(**variables, PATH=path)}

    def _placed(self, name: str, value: Any) -> Any:
        """Replace paths, ports and the database's URL of a container in all texts of a value."""
        if isinstance(value, dict):
            return {key: self._placed(name, each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._placed(name, each) for each in value]
        if not isinstance(value, str):
            return value
        own = f"127.0.0.1:{self._ports.get(name, 0)}"
        places = {
            SERVICES["migration"]["environment"]["PDP_DATABASE_URL"]: self._database,
            "opa:8181": f"127.0.0.1:{self._ports['opa']}", "0.0.0.0:8181": own, "127.0.0.1:8181": own,
        }  # fmt: skip
        for volume in SERVICES[name].get("volumes", ()):
            outside, inside, *_ = volume.split(":")
            places[inside] = str((ROOT if outside.startswith(".") else self._folder) / outside)
        places["/deploy/service.yaml"] = str(self._folder / "service.yaml")
        longest_first = sorted(map(re.escape, places), key=len, reverse=True)
        return re.sub(rf"({'|'.join(longest_first)})(?![\w.-])", lambda found: places[found[0]], value)


def answers(port: int) -> bool:
    """Return whether a process listens at a port. This takes less than the health check, which starts a program."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def needs(service: dict[str, Any]) -> dict[str, str]:
    return {name: each["condition"] for name, each in service.get("depends_on", {}).items()}


def in_order() -> list[str]:
    """Return the services in an order in which each follows the services that it depends on."""
    return [*TopologicalSorter({name: needs(service) for name, service in SERVICES.items()}).static_order()]


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.docker)])
def stack(request: pytest.FixtureRequest, tmp_path: Path, opa: Path) -> Iterator[Stack]:
    with ExitStack() as owned:
        if request.param == "process":
            yield Processes(opa, tmp_path, owned)
        elif reason := no_docker():
            pytest.skip(reason)
        else:
            yield Containers(owned)


@pytest.mark.process
def test_compose_stack_takes_a_wire_from_proposal_to_result(stack: Stack) -> None:
    first = stack.run("service", "cat", "/secrets/tokens/first").strip()
    mode = stack.run("service", "stat", "--format=%a", "/secrets/tokens/first").strip()

    def client(token: str) -> httpx.Client:
        return httpx.Client(base_url=stack.url, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE)

    def token(name: str, claims: dict[str, Any], *scopes: str) -> str:
        order = {"name": name, "scopes": scopes, "claims": claims}
        return str(admin.post("/v1/tokens", json=order).raise_for_status().json()["token"])

    with (
        client(first) as admin,
        client(token("agent", OFFICER, "propose", "assert")) as agent,
        client(token("approver", APPROVER, "approve")) as approver,
        client(stack.run("service", "cat", "/secrets/tokens/metrics").strip()) as scraper,
    ):
        held = agent.post("/v1/proposals", json={**WIRE, "id": "0" * 32}).json()
        granted = approver.post(f"/v1/approvals/{held['approval']['id']}/grant", json={}).json()
        begun = agent.post("/v1/proposals", json={**WIRE, "id": "0" * 32}).json()
        report = {"execution": {"started": True, "result": {"wire_id": "w-1"}}}
        ended = agent.post(f"/v1/proposals/{'0' * 32}/result", json=report).json()
        seen = {path: scraper.get(path).status_code for path in ("/metrics", "/v1/audit", "/v1/approvals")}
        console = admin.get("/console/", follow_redirects=True)

    assert mode == "600"
    assert (held["verdict"], granted["state"], begun["verdict"], begun["begun"]) == (
        "STEP_UP",
        "granted",
        "ALLOW",
        True,
    )
    assert ended["result"] == {"wire_id": "w-1"}
    assert seen == {"/metrics": 200, "/v1/audit": 403, "/v1/approvals": 403}
    assert (console.status_code, "</html>" in console.text) == (200, True)
    assert "intact" in stack.run("service", "sh", "-c", VERIFY)


def test_containers_are_locked_down_and_have_secrets_in_files_alone() -> None:
    finished = {name for each in SERVICES.values() for name, on in needs(each).items() if on == FINISHED}
    for name, service in SERVICES.items():
        locked = (service["read_only"], service["cap_drop"], service["security_opt"])
        assert locked == (True, ["ALL"], ["no-new-privileges:true"]), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        assert not [key for key in service.get("environment", {}) if re.search("PASSWORD$|TOKEN$|KEY$|SECRET$", key)]
        check = service.get("healthcheck", {"test": HEALTHCHECK} if service["image"] == "tool-pdp" else {})
        assert ("test" in check, check.get("disable", False)) == (name not in finished, name in finished), name
        for other in needs(service).keys() - finished:
            assert {*service["networks"]} & {*SERVICES[other]["networks"]} or other == "prometheus", (name, other)


def test_secrets_are_made_once_for_one_user_each(tmp_path: Path) -> None:
    made = []
    for _ in range(2):
        subprocess.run(["sh", ROOT / "deploy/compose/secrets.sh", tmp_path], check=True, timeout=PATIENCE)
        made.append({file: file.read_text() for file in tmp_path.rglob("*") if file.is_file()})

    assert made[0] == made[1]
    assert {file.stat().st_mode & 0o777 for file in made[0]} == {0o400}
    assert len({*made[0].values()}) == len(made[0]) - 1  # OPA and the service have the same token
