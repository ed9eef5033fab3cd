"""A database that another process holds, or that cannot grow: bounded refusals, and afterwards all is as before."""

import resource
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.faults.test_reuse import SENT, proposed
from tests.support import PATIENCE, until
from tests.support.service import APPROVER, RunningService, running_service

pytestmark = pytest.mark.process

WHY = ("no answer within 2 s", "it cannot be written to; the log says why")
REQUEST = {
    "subject": {"type": "user", "id": "officer-123", "properties": {"scopes": ["payments.lookup"]}},
    "action": {"name": "lookup_beneficiary"},
    "resource": {"type": "tool", "id": "lookup_beneficiary"},
    "context": {"arguments": {"payee_name": "Acme", "invoice_ref": "INV-8842"}},
}


def test_a_database_that_another_process_holds_is_a_refusal(tmp_path: Path) -> None:
    with running_service(tmp_path) as running, closing(sqlite3.connect(tmp_path / "store.db")) as other:
        prepared = Prepared(running)
        other.isolation_level = None
        other.execute("BEGIN IMMEDIATE")
        # One after another they wait for it, ten seconds each.
        prepared.is_refused(3)
        other.execute("ROLLBACK")
        prepared.works()


def test_a_full_disk_is_a_refusal(tmp_path: Path) -> None:
    with running_service(tmp_path) as running:
        prepared = Prepared(running)
        _, hard = resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE)
        # No file is written to, as on a disk that is full.
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (0, hard))
        prepared.is_refused(6)
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        prepared.works()


class Prepared:
    """A service in which one call is approved, and another one has begun."""

    def __init__(self, running: RunningService) -> None:
        self.agent, self.supervisor = running.client(), running.client(["approve"], APPROVER)
        self.approval = self.agent.post("/v1/proposals", json=proposed()).json()["approval"]["id"]
        assert self.supervisor.post(f"/v1/approvals/{self.approval}/grant").status_code == 200
        begun = self.agent.post("/v1/proposals", json=proposed({"idempotency_key": "idm-2"}, amount=20)).json()
        assert begun["begun"] is True
        self.begun = begun["id"]

    def is_refused(self, steps: int) -> None:
        """Ask at once for some of what writes: each is a 503 or a denial."""
        requests: list[tuple[httpx.Client, str, dict[str, Any]]] = [
            (self.agent, "/v1/proposals", proposed()),
            (self.agent, "/access/v1/evaluation", REQUEST),
            (self.supervisor, f"/v1/approvals/{self.approval}/deny", {}),
            (self.agent, "/v1/proposals", proposed({"idempotency_key": "idm-3"})),
            (self.agent, f"/v1/proposals/{self.begun}/result", SENT),
            (self.agent, "/v1/tokens", {"name": "x", "scopes": ["audit"], "claims": {}}),
        ]
        with ThreadPoolExecutor(steps) as threads:
            answers = list(
                threads.map(lambda step: step[0].post(step[1], json=step[2], timeout=PATIENCE), requests[:steps])
            )
        found = [
            (answer.status_code, answer.json().get("verdict")) if answer.status_code == 200 else answer.status_code
            for answer in answers
        ]
        assert set(found) <= {503, (200, "DENY")}, [answer.text for answer in answers]
        assert self.agent.get("/healthz").json() == {"status": "ok"}
        answer = self.agent.get("/readyz")
        assert (answer.status_code, answer.json()["store"]["status"]) == (503, "unready")
        assert answer.json()["store"]["code"] in ("store.timeout", "store.unavailable")
        assert answer.json()["store"]["reason"] in WHY

    def works(self) -> None:
        """What had been prepared is still there, and is used once."""
        assert until(lambda: self.agent.get("/readyz").status_code == 200)
        assert self.agent.get(f"/v1/approvals/{self.approval}").json()["state"] == "granted"
        assert self.agent.post("/access/v1/evaluation", json=REQUEST).json()["decision"] is True
        answer = self.agent.post(f"/v1/proposals/{self.begun}/result", json=SENT)
        assert (answer.status_code, answer.json()["result"]) == (200, SENT["execution"]["result"])
        assert self.agent.post("/v1/proposals", json=proposed()).json()["begun"] is True
        assert self.agent.get(f"/v1/approvals/{self.approval}").json()["state"] == "consumed"
