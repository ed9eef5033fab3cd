"""HTTP endpoints for approvals: who may see, grant, deny and withdraw approvals, and how requests wait for a grant."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from pdp.installed import code_url
from pdp.stores.approvals import Approval
from tests.support.payments import session, wire
from tests.support.postgres import DATABASES
from tests.support.service import APPROVER, OFFICER, ServedApp, service

CLERK = {**OFFICER, "sub": "officer-9"}


async def opened(served: ServedApp, *, claims: dict[str, Any] = OFFICER, **changes: Any) -> Approval:
    """Open an approval for the wire of the payments example, and return the pending approval."""
    tenant = served.service.tenants["default"]
    evaluation = await tenant.pep.acall(wire(), session(**{"time": None, "claims": claims, **changes}))
    assert evaluation.approval is not None
    return evaluation.approval


def error(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_approval_is_shown_granted_denied_and_withdrawn(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        approval = await opened(served)
        approver, officer = served.client(["approve"], APPROVER), served.client(["propose"])
        path = f"/v1/approvals/{approval.id}"

        shown = await approver.get(path)
        assert (shown.status_code, shown.json()) == (200, approval.as_json())
        assert (await officer.get(path)).json() == shown.json()
        granted = await approver.post(f"{path}/grant")
        assert granted.status_code == 200
        [grant] = granted.json()["grants"]
        assert granted.json() == {**shown.json(), "state": "granted", "grants": [grant]}
        assert {**grant, "at": None} == {
            "iss": None, "sub": "approver-7", "roles": ["payments.approver"], "at": None, "token": {}, "reach": "once",
            "until": None,
        }  # fmt: skip
        assert error(await approver.post(f"{path}/grant", json={})) == (409, "approvals.not_pending")

        denied = await approver.post(f"{path}/deny", json={"reason": "not this supplier"})
        assert {name: denied.json()[name] for name in ("state", "why", "closed_by")} == {
            "state": "denied", "why": "not this supplier", "closed_by": {"iss": None, "sub": "approver-7"},
        }  # fmt: skip
        other = await opened(served, purpose="another")
        withdrawn = await officer.post(f"/v1/approvals/{other.id}/withdraw")
        assert (withdrawn.status_code, withdrawn.json()["state"]) == (200, "withdrawn")
        assert error(await officer.post(f"/v1/approvals/{other.id}/withdraw")) == (409, "approvals.not_pending")


async def test_service_rejects_unauthorized_grants_denials_and_withdrawals(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        path = f"/v1/approvals/{(await opened(served)).id}"
        acting = {**APPROVER, "act": {"sub": "agent:payments"}}
        refused: list[tuple[list[str], dict[str, Any], str, str]] = [
            (["approve"], {}, "grant", "approvals.no_subject"),
            (["approve"], acting, "grant", "approvals.agent"),
            (["approve"], {**OFFICER, "roles": ["payments.approver"]}, "grant", "approvals.requester"),
            (["approve"], {**APPROVER, "roles": ["teller"]}, "grant", "approvals.not_an_approver"),
            (["approve", "assert"], {}, "grant", "approvals.no_subject"),
            (["approve", "propose"], APPROVER, "withdraw", "approvals.not_a_requester"),
            (["propose", "decide", "audit", "admin", "assert"], APPROVER, "grant", "service.forbidden"),
            (["approve"], OFFICER, "withdraw", "service.forbidden"),
        ]
        for scopes, claims, step, code in refused:
            assert error(await served.client(scopes, claims).post(f"{path}/{step}")) == (403, code)
        for method, url in (("GET", path), ("POST", f"{path}/grant"), ("GET", "/v1/approvals")):
            none = await served.client(token="").request(method, url)
            assert error(none) == (401, "service.unauthenticated")
            forbidden = await served.client(["decide", "audit", "admin"]).request(method, url)
            assert error(forbidden) == (403, "service.forbidden")
        assert (await served.client(["approve"], APPROVER).get(path)).json()["state"] == "pending"


async def test_requester_cannot_grant_own_call_with_the_same_token_or_as_the_same_person(tmp_path: Path) -> None:
    supervisor = {**APPROVER, "iss": "https://id.example", "azp": "desk"}
    other = {**APPROVER, "sub": "approver-8", "iss": "https://id.example"}
    everything = ["propose", "assert", "approve"]
    async with service(tmp_path) as served:
        first, again = (served.client(everything, supervisor) for _ in range(2))
        machine, colleague = served.client(everything, {"sub": "desk"}), served.client(everything, other)
        free = served.client(everything, {**supervisor, "sub": "officer-123"})

        async def asked(by: httpx.AsyncClient, key: str, **claims: Any) -> dict[str, Any]:
            facts = {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"}
            known = {"facts": facts, "claims": {**OFFICER, **claims}, "idempotency_key": key}
            answer = await by.post("/v1/proposals", json={"proposal": wire(), "session": known})
            return dict(answer.json())

        async def granted(by: httpx.AsyncClient, approval_id: str) -> str:
            answer = await by.post(f"/v1/approvals/{approval_id}/grant")
            return str(answer.json().get("state") or answer.json()["error"]["code"])

        # The session may claim any `jti` and `azp`. Therefore, the service takes the requester from the access token.
        own = (await asked(first, "k-1", jti="other", azp="other"))["approval"]["id"]
        for by, expected in (
            (first, "approvals.requester"), (again, "approvals.requester"), (machine, "approvals.not_an_approver"),
            (served.client(["approve"], {**APPROVER, "sub": "desk"}), "approvals.same_token"),
        ):  # fmt: skip
            assert await granted(by, own) == expected
        by_machine = (await asked(machine, "k-2"))["approval"]["id"]
        assert await granted(first, by_machine) == "approvals.same_token"
        assert await granted(colleague, by_machine) == "granted"
        assert await granted(free, (await asked(free, "k-3", sub="officer-9"))["approval"]["id"]) == (
            "approvals.requester"
        )
        # A person who granted the call of another requester cannot run this call.
        assert await granted(colleague, own) == "granted"
        assert (await asked(colleague, "k-1", jti="other", azp="other"))["verdict"] == "STEP_UP"
        assert (await asked(again, "k-1", jti="other", azp="other"))["begun"] is True


async def test_requester_sees_only_own_approvals(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        own, others = await opened(served), await opened(served, claims=CLERK)
        officer, clerk = served.client(["propose"]), served.client(["propose"], CLERK)
        robot = served.client(["propose"], {})

        async def listed(client: httpx.AsyncClient, query: str = "") -> list[str]:
            return [each["id"] for each in (await client.get(f"/v1/approvals{query}")).json()["approvals"]]

        assert (await listed(officer), await listed(clerk), await listed(robot)) == ([own.id], [others.id], [])
        assert await listed(officer, "?subject=officer-9") == []
        assert await listed(served.client(["approve"], APPROVER)) == [own.id, others.id]
        assert await listed(served.client(["propose", "assert"], {})) == [own.id, others.id]
        for client, step in ((clerk, ""), (robot, ""), (clerk, "/withdraw")):
            method = "POST" if step else "GET"
            answer = await client.request(method, f"/v1/approvals/{own.id}{step}")
            assert error(answer) == (404, "approvals.unknown")
            message = f"approval {own.id}: no approval has that id"
            link = code_url("approvals.unknown")
            assert answer.json() == {"error": {"code": "approvals.unknown", "message": message, "link": link}}


@pytest.mark.parametrize("database", DATABASES)
async def test_approvals_are_listed_in_pages(database: str, tmp_path: Path) -> None:
    async with service(tmp_path, database) as served:
        approvals = [await opened(served, purpose=str(number), run_id=f"run-{number % 2}") for number in range(5)]
        approver = served.client(["approve"], APPROVER)
        await approver.post(f"/v1/approvals/{approvals[3].id}/deny")

        async def pages(query: str) -> list[list[str]]:
            after, found = "", []
            while after is not None:
                answer = (await approver.get(f"/v1/approvals?{query}&limit=2{after and f'&after={after}'}")).json()
                found.append([each["id"] for each in answer["approvals"]])
                after = answer["next"]
            return found

        ids = [approval.id for approval in approvals]
        assert await pages("tool=initiate_wire") == [ids[:2], ids[2:4], ids[4:]]
        assert await pages("state=pending") == [ids[:2], [ids[2], ids[4]], []]
        assert await pages("run_id=run-1&subject=officer-123") == [[ids[1], ids[3]], []]
        assert await pages("run_id=run-1&state=denied") == [[ids[3]]]
        assert await pages("tool=INITIATE_WIRE") == await pages("subject=%00%25") == [[]]
        assert await pages("after=none") == [[]]


BAD: list[tuple[str, str, Any]] = [
    ("GET", "?limit=0", None),
    ("GET", "?limit=101", None),
    ("GET", "?limit=%2B1", None),
    ("GET", "?limit=%D9%A1", None),
    ("GET", f"?limit={'9' * 5000}", None),
    ("GET", f"?subject={'a' * 51_000}", None),
    ("GET", "?state=done", None),
    ("GET", "?after=%00", None),
    ("GET", "?page=1", None),
    ("GET", "?limit=1&limit=2", None),
    ("GET", "/ID?wait=56s", None),
    ("GET", "/ID?wait=1m", None),
    ("GET", "/ID?wait=-1", None),
    ("GET", "/ID?waits=1", None),
    ("POST", "/ID/grant", {"claims": {"sub": "boss", "roles": ["payments.approver"]}}),
    ("POST", "/ID/deny", {"reason": 7}),
    ("POST", "/ID/deny", {"why": "no"}),
    ("POST", "/ID/grant", []),
    ("POST", "/ID/withdraw", {"session": {}}),
]


async def test_malformed_approval_requests_are_rejected(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        approval = await opened(served)
        client = served.client(["approve", "propose"], APPROVER)
        for method, path, body in BAD:
            answer = await client.request(method, "/v1/approvals" + path.replace("ID", approval.id), json=body)
            assert (path, *error(answer)) == (path, 400, "service.bad_request")
        for unknown in ("none", "%00", "%F0%9F%98%80", "x" * 5000):
            for method, step in (("GET", ""), ("GET", "?wait=1"), ("POST", "/grant"), ("POST", "/deny")):
                answer = await client.request(method, f"/v1/approvals/{unknown}{step}")
                assert error(answer) == (404, "approvals.unknown")

        assert (await client.get(f"/v1/approvals/{approval.id}")).json() == approval.as_json()


@pytest.mark.parametrize("database", DATABASES)
async def test_request_that_waits_for_an_approval_is_answered_when_the_approval_is_decided(
    database: str, tmp_path: Path
) -> None:
    async with service(tmp_path, database) as served:
        approval, other = await opened(served), await opened(served, purpose="another")
        officer, approver = served.client(["propose"]), served.client(["approve"], APPROVER)
        waits = [asyncio.create_task(officer.get(f"/v1/approvals/{approval.id}?wait=55s")) for _ in range(3)]
        elsewhere = asyncio.create_task(officer.get(f"/v1/approvals/{other.id}?wait=1s"))

        assert (await elsewhere).json() == other.as_json()
        assert [wait.done() for wait in waits] == [False] * 3
        granted = await approver.post(f"/v1/approvals/{approval.id}/grant")
        async with asyncio.timeout(30):
            assert [(await wait).json() for wait in waits] == [granted.json()] * 3
        again = await officer.get(f"/v1/approvals/{approval.id}?wait=55")
        assert again.json() == granted.json()


async def test_one_token_cannot_use_all_slots_for_waiting_requests(tmp_path: Path) -> None:
    async with service(tmp_path, limits={"waiting": 4}) as served:
        approval = await opened(served)
        client, other = (served.client(["approve"], APPROVER) for _ in range(2))
        path = f"/v1/approvals/{approval.id}?wait=55s"
        waits = {asyncio.create_task(client.get(path)) for _ in range(3)}
        done, rest = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        [refused] = [task.result() for task in done]
        assert (*error(refused), refused.headers["retry-after"]) == (503, "service.unavailable", "5")
        rest.add(asyncio.create_task(other.get(path)))
        done, _ = await asyncio.wait(rest, timeout=1)
        assert not done
        await client.post(f"/v1/approvals/{approval.id}/deny")
        assert [(await wait).json()["state"] for wait in rest] == ["denied"] * 3


async def test_request_that_waits_for_an_approval_fails_when_its_token_is_revoked(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        approval = await opened(served)
        client, admin = served.client(["approve"], APPROVER), served.client()
        wait = asyncio.create_task(client.get(f"/v1/approvals/{approval.id}?wait=55s"))
        done, _ = await asyncio.wait((wait,), timeout=1)
        assert not done
        await admin.delete(f"/v1/tokens/{client.headers['authorization'].removeprefix('Bearer pdp_')[:16]}")
        await served.client(["approve"], APPROVER).post(f"/v1/approvals/{approval.id}/deny")

        assert error(await wait) == (401, "service.unauthenticated")


async def test_overdue_approval_is_shown_as_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with service(tmp_path) as served:
        approval = await opened(served)
        client = served.client(["approve"], APPROVER)
        later = time.time() + 3600
        monkeypatch.setattr("pdp.service.approvals.routes.time.time", lambda: later)

        shown = await client.get(f"/v1/approvals/{approval.id}?wait=55s")
        assert shown.json() == {**approval.as_json(), "state": "expired"}
        assert (await client.get("/v1/approvals?state=pending")).json() == {"approvals": [], "next": None}
        assert error(await client.post(f"/v1/approvals/{approval.id}/grant")) == (409, "approvals.expired")
        listed = (await client.get("/v1/approvals?state=expired")).json()["approvals"]
        assert [each["id"] for each in listed] == [approval.id]
