"""The service's clock steps: an approval is neither used later nor earlier than it says, and none that is over revives.

That a clock has stepped shows in records alone, whose times are then others than the clock's. So the tests move those.
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
    """Move an approval's times against the clock, as a clock that steps the other way does."""
    store = served.service.tenants["default"].approvals.store
    old = store.get(approval_id)
    assert old is not None
    opened, expires = time.time() + hours * HOUR, time.time() + (hours + 1) * HOUR
    new = replace(old, opened_at=to_seconds(opened), expires_at=to_seconds(expires))
    assert store.replace(old, new)
    return new


async def test_a_clock_that_goes_forward_ends_an_approval_for_ever(tmp_path: Path) -> None:
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
        # The clock goes back: its time is not over by the clock, and it stays what was recorded.
        later = answer["approval"]["id"]
        moved(served, approval, 0)
        assert (await supervisor.get(f"/v1/approvals/{approval}")).json()["state"] == "expired"
        assert (await supervisor.post(f"/v1/approvals/{approval}/grant")).status_code == 409
        answer = await asked(agent, proposed())
        assert (answer["begun"], answer["approval"]["id"]) == (False, later)


async def test_a_clock_that_goes_back_waits_for_what_was_opened_after_it(tmp_path: Path) -> None:
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


async def test_what_was_used_is_used_whatever_the_clock_says(tmp_path: Path) -> None:
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
