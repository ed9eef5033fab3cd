"""The pages about lasting grants and budgets."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pdp.contract.budgets import nothing_of
from pdp.session import Session
from tests.service.console import signed_in
from tests.support import ROOT
from tests.support.command_line import written
from tests.support.postgres import DATABASES, empty_database
from tests.support.service import ServedApp, service, tenant_on

CLERK = {"sub": "clerk", "scope": "desk.write claims.pay", "limits": {"small.daily": 500, "small.one": 1000}}
LEAD = {"sub": "lead", "roles": ["desk.lead"]}
GOVERNED = "tests/scenarios/grants-governance.yaml"


@asynccontextmanager
async def desk(
    folder: Path, manifest: str, governance: str | None = None, database: str = "sqlite"
) -> AsyncIterator[ServedApp]:
    url = empty_database(database, folder)
    files = {"manifest": str(ROOT / "tests/scenarios" / manifest)}
    files |= {} if governance is None else {"governance": str(ROOT / governance)}
    tenant = {**tenant_on(url), "project": written(folder / "pdp.yaml", files)}
    async with service(folder, url=url, tenants={"default": tenant}) as served:
        yield served


async def granted(served: ServedApp, recipient: str, claims: Mapping[str, Any] = CLERK) -> str:
    tenant = served.service.tenants["default"]
    call = {"tool": "send_notice", "arguments": {"recipient": recipient, "text": "one"}}
    asked = await tenant.pep.acall(call, {"claims": claims, "run_id": "run-1"})
    assert asked.approval is not None
    await asyncio.to_thread(tenant.approvals.grant, asked.approval.id, LEAD, reach="run")
    return asked.approval.id


@pytest.mark.parametrize("database", DATABASES)
async def test_people_see_and_revoke_grants(tmp_path: Path, database: str) -> None:
    async with desk(tmp_path, "grants.yaml", GOVERNED, database) as served:
        own = await granted(served, "bob")
        others = await granted(served, "<b>eve", {**CLERK, "sub": "other"})
        lead = await signed_in(served, ["approve"], LEAD)
        page = (await lead.get("grants")).text
        assert page.count("Revoke now") == 2
        assert "recipient</bdi> = <bdi>&lt;b&gt;eve" in page
        assert '; may differ: <span class="value"><bdi>text</bdi></span>. All other arguments must be equal.' in page
        assert page.count("Revoking also withdraws its approval") == 2
        clerk = await signed_in(served, ["propose"], CLERK)
        assert others not in (await clerk.get("grants")).text
        assert (await clerk.posted(f"grants/{others}/revoke", {"reason": "mine"})).status_code == 409
        revoked = await clerk.posted(f"grants/{own}/revoke", {"reason": "no longer needed"})
        assert revoked.status_code == 303
        page = (await lead.get(revoked.headers["location"].removeprefix("/console/"))).text
        assert "<q><bdi>no longer needed</bdi></q>" in page
        assert page.count("Revoke now") == 1
        assert (await lead.posted(f"grants/{own}/revoke")).status_code == 409
        stored = served.service.tenants["default"].approvals.lasting.get(own)
        assert (stored.state, stored.why) == ("revoked", "no longer needed")


async def test_grants_are_paged(tmp_path: Path) -> None:
    async with desk(tmp_path, "grants.yaml", GOVERNED) as served:
        made = [await granted(served, f"bob-{n}") for n in range(17)]
        lead = await signed_in(served, ["approve"], LEAD)
        page = (await lead.get("grants")).text
        assert len(page.encode()) < 60_000
        assert [each in page for each in made] == [False] * 2 + [True] * 15
        older = re.findall(r"\?active=(\w+)", page)[0]
        page = (await lead.get(f"grants?active={older}")).text
        assert [each in page for each in made] == [True] * 2 + [False] * 15


@pytest.mark.parametrize("database", DATABASES)
async def test_budgets_are_compared_with_the_limits_of_one_subject(tmp_path: Path, database: str) -> None:
    async with desk(tmp_path, "spending.yaml", database=database) as served:
        tenant = served.service.tenants["default"]
        pep = tenant.pep.with_changes(tools={"pay_small": lambda amount: amount})
        call = {"tool": "pay_small", "arguments": {"amount": 120.5}}
        assert (await pep.acall(call, {"claims": CLERK, "idempotency_key": "one"})).verdict == "ALLOW"
        limit, now = pep.manifest.tools["pay_small"].limits[0], time.time()
        take = nothing_of(limit, "pay_small", Session(claims=CLERK), None, "")._replace(amount=1000)
        for name, until in (("running", now + 60), ("lost", now - 60)):
            assert tenant.stores.budgets.reserve(name, [take], now=now, running_until=until)

        lead, clerk = await signed_in(served, ["approve"], LEAD), await signed_in(served, ["propose"], CLERK)
        # Without the claims of the holder, the limit is not known.
        every, own = (await lead.get("budgets")).text, (await clerk.get("budgets")).text
        assert ("in the token" in every, "<svg" in every) == (True, False)
        assert 'aria-label="120.5 spent, 10 reserved, 10 unknown, limit 500"' in own
        narrow = {
            "sub": "clerk",
            "limits": {"small.daily": 500},
            "act": {"sub": "bot", "limits": {"small.daily": 140.5}},
        }
        pasted = (await lead.posted("budgets", {"claims": json.dumps(narrow), "run_id": "run-1"})).text
        assert '10 unknown, limit 140.5"' in pasted
        assert "used up" in pasted
        assert 'run <span class="value"><bdi>clerk run-1</bdi>' in pasted
        assert (await lead.posted("budgets", {"claims": "["})).status_code == 400
        # Without the scope `approve`, the pasted claims are ignored.
        assert "stranger" not in (await clerk.posted("budgets", {"claims": "sub: stranger"})).text
