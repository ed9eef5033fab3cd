"""If the database is locked or the disk is full, requests fail in limited time. Later, the service works again."""

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

WHY = ("no answer within 2 s", "the store is not writable; see the log")
REQUEST = {
    "subject": {"type": "user", "id": "officer-123", "properties": {"scopes": ["payments.lookup"]}},
    "action": {"name": "lookup_beneficiary"},
    "resource": {"type": "tool", "id": "lookup_beneficiary"},
    "context": {"arguments": {"payee_name": "Acme", "invoice_ref": "INV-8842"}},
}


def test_service_rejects_requests_while_the_database_is_locked(tmp_path: Path) -> None:
    with running_service(tmp_path) as running, closing(sqlite3.connect(tmp_path / "store.db")) as other:
        prepared = Prepared(running)
        other.isolation_level = None
        other.execute("BEGIN IMMEDIATE")
        # Each request of `is_refused` waits up to ten seconds for the database lock.
        prepared.is_refused(3)
        other.execute("ROLLBACK")
        prepared.works()


def test_service_rejects_requests_while_the_disk_is_full(tmp_path: Path) -> None:
    with running_service(tmp_path) as running:
        prepared = Prepared(running)
        _, hard = resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE)
        # With a limit of zero bytes per file, all writes of the process fail, as with a full disk.
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (0, hard))
        prepared.is_refused(6)
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        prepared.works()


class Prepared:
    """A service with an approved call that has not begun, and another call that has begun."""

    def __init__(self, running: RunningService) -> None:
        self.agent, self.supervisor = running.client(), running.client(["approve"], APPROVER)
        self.approval = self.agent.post("/v1/proposals", json=proposed()).json()["approval"]["id"]
        assert self.supervisor.post(f"/v1/approvals/{self.approval}/grant").status_code == 200
        begun = self.agent.post("/v1/proposals", json=proposed({"idempotency_key": "idm-2"}, amount=20)).json()
        assert begun["begun"] is True
        self.begun = begun["id"]

    def is_refused(self, steps: int) -> None:
        """Send several writing requests at once, and check that the answer to each request is 503 or a denial."""
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
        # An answer counts for a second, also one that the service has asked for itself.
        assert until(lambda: self.agent.get("/readyz").status_code == 503)
        answer = self.agent.get("/readyz")
        assert (answer.status_code, answer.json()["store"]["status"]) == (503, "unready")
        assert answer.json()["store"]["code"] in ("store.timeout", "store.unavailable")
        assert answer.json()["store"]["reason"] in WHY

    def works(self) -> None:
        """Check that the approved call can begin once, and that the other call can report its result once."""
        assert until(lambda: self.agent.get("/readyz").status_code == 200)
        assert self.agent.get(f"/v1/approvals/{self.approval}").json()["state"] == "granted"
        assert self.agent.post("/access/v1/evaluation", json=REQUEST).json()["decision"] is True
        answer = self.agent.post(f"/v1/proposals/{self.begun}/result", json=SENT)
        assert (answer.status_code, answer.json()["result"]) == (200, SENT["execution"]["result"])
        assert self.agent.post("/v1/proposals", json=proposed()).json()["begun"] is True
        assert self.agent.get(f"/v1/approvals/{self.approval}").json()["state"] == "consumed"
