"""After a clock jump, an approval cannot be used before it was opened or after it expired.

The tests do not change the clock, but the times of the stored approval.
"""

import time
from dataclasses import replace
from pathlib import Path

from pdp.clock import to_seconds
from pdp.stores.approvals import Approval, ApprovalState
from tests.service.faults.test_reuse import SENT, asked, granted, proposed
from tests.support.service import APPROVER, ServedApp, service

HOUR = 3600


def moved(served: ServedApp, approval_id: str, hours: float) -> Approval:
    """Move the times of a stored approval by some hours. A clock jump in the other direction has the same effect."""
    store = served.service.tenants["default"].approvals.store
    old = store.get(approval_id)
    assert old is not None
    opened, expires = time.time() + hours * HOUR, time.time() + (hours + 1) * HOUR
    new = replace(old, opened_at=to_seconds(opened), expires_at=to_seconds(expires))
    assert store.replace(old, new)
    return new


async def test_approval_expired_by_a_clock_jump_stays_expired(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        agent, supervisor = served.client(), served.client(["approve"], APPROVER)
        approval = await granted(agent, supervisor, proposed())
        moved(served, approval, -2)
        answer = await asked(agent, proposed())
        assert (answer["verdict"], answer["begun"]) == ("STEP_UP", False)
        assert answer["approval"]["id"] != approval
        assert (await supervisor.get(f"/v1/approvals/{approval}")).json()["state"] == "expired"
        refused = await supervisor.post(f"/v1/approvals/{approval}/grant")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "approvals.expired")
        # The clock jumps back to a time at which the approval was valid. The approval stays expired, because the store
        # has recorded that it expired.
        later = answer["approval"]["id"]
        moved(served, approval, 0)
        assert (await supervisor.get(f"/v1/approvals/{approval}")).json()["state"] == "expired"
        assert (await supervisor.post(f"/v1/approvals/{approval}/grant")).status_code == 409
        answer = await asked(agent, proposed())
        assert (answer["begun"], answer["approval"]["id"]) == (False, later)


async def test_approval_is_not_usable_before_its_opening_time(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        agent, supervisor = served.client(), served.client(["approve"], APPROVER)
        pending = (await asked(agent, proposed()))["approval"]["id"]
        moved(served, pending, 1)
        refused = await supervisor.post(f"/v1/approvals/{pending}/grant")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "approvals.not_yet_open")
        moved(served, pending, 0)
        assert (await supervisor.post(f"/v1/approvals/{pending}/grant")).status_code == 200
        moved(served, pending, 1)
        assert (await asked(agent, proposed()))["begun"] is False
        moved(served, pending, 0)
        assert (await asked(agent, proposed()))["begun"] is True


async def test_used_approval_stays_consumed_after_clock_jumps(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        agent, supervisor = served.client(), served.client(["approve"], APPROVER)
        approval = await granted(agent, supervisor, proposed())
        begun = await asked(agent, proposed())
        assert begun["begun"] is True
        assert (await agent.post(f"/v1/proposals/{begun['id']}/result", json=SENT)).status_code == 200
        for hours in (-2, 0, 2):
            assert moved(served, approval, hours).state is ApprovalState.CONSUMED
            for key in ("idm-1", "idm-2"):
                assert (await asked(agent, proposed({"idempotency_key": key})))["begun"] is False
            assert (await supervisor.post(f"/v1/approvals/{approval}/grant")).status_code == 409
            assert (await supervisor.get(f"/v1/approvals/{approval}")).json()["state"] == "consumed"
