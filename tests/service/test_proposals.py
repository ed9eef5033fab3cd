"""Proposals over HTTP: decided, begun, finished, planned; whose session it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.payments import ARGUMENTS
from tests.support.service import APPROVER, service

WIRE = {"tool": "initiate_wire", "arguments": ARGUMENTS}
SESSION = {"facts": {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"}, "idempotency_key": "idm-4a2b"}
CALL = "0b54d0a1f7d94c0e9a3b8d6f2c1e5a70"


@pytest.mark.anyio
async def test_a_wire_over_http(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        agent = served.client()
        body = {"id": CALL, "proposal": WIRE, "session": SESSION}
        asked = (await agent.post("/v1/proposals", json=body)).json()
        served.service.tenants["default"].approvals.grant(asked["approval"]["id"], dict(APPROVER))
        begun = (await agent.post("/v1/proposals", json=body)).json()
        assert begun["begun"]
        assert (await agent.post("/v1/proposals", json=body)).json() == begun
        done = await agent.post(f"/v1/proposals/{CALL}/result", json={"execution": {"result": {"wire_id": "w"}}})
        assert (done.status_code, done.json()["result"], done.json()["executed"]) == (200, {"wire_id": "w"}, True)
