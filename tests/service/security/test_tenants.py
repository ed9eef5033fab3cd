"""A caller with every scope in one tenant cannot see or change data of another tenant."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, text

from pdp.errors import UsageError
from pdp.service.openapi import openapi_document
from pdp.stores.sql.database import Database
from tests.service.authzen.questions import DIRECTORY, WIRE, project_in, wire
from tests.support import PATIENCE
from tests.support.payments import ARGUMENTS
from tests.support.postgres import DATABASES, empty_database
from tests.support.service import APPROVER, ServedApp, service, settings_on, tenant_on

SECRET = "acme-secret"  # noqa: S105 - a marker to search for in answers
DONE, BEGUN, WAITING = ("0" * 31 + digit for digit in "123")
SESSION = {
    "facts": {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"}, "idempotency_key": "idm-4a2b",
    "run_id": "run-1",
}  # fmt: skip
EXECUTION = {"execution": {"result": {"wire_id": "wire-beta"}}}


def proposal(call_id: str, *, reference: str = "INV-1", **changes: Any) -> dict[str, Any]:
    arguments = {**ARGUMENTS, "reference": reference, **changes}
    session = {**SESSION, "idempotency_key": f"key-{call_id}"}
    return {"id": call_id, "proposal": {"tool": "initiate_wire", "arguments": arguments}, "session": session}


def content(url: str) -> dict[str, list[str]]:
    """Return all rows of a database, grouped by table."""
    with Database.open(url) as database, database.read() as connection:
        names = inspect(connection).get_table_names()
        return {name: sorted(map(str, connection.execute(text(f'SELECT * FROM "{name}"')))) for name in names}  # noqa: S608


def attempts(approval: str, token: str) -> dict[tuple[str, str], list[tuple[str, Any, int | None]]]:
    """Return requests with ids of this tenant, which another tenant sends, and the expected statuses, by endpoint.

    Endpoints that this function does not list may answer with any status. The test searches all answers for data of
    this
    tenant.
    """
    ids = {"{approval_id}": approval, "{token_id}": token, "{tenant}": "acme"}
    asked: dict[tuple[str, str], list[tuple[str, Any, int | None]]] = {
        ("post", "/access/v1/evaluation"): [("", wire(), 200)],
        ("post", "/access/v1/evaluations"): [("", {"evaluations": [wire()]}, 200)],
        ("post", "/access/v1/search/subject"): [("", wire(subject={"type": "user"}), 200)],
        ("post", "/access/v1/search/resource"): [("", wire(resource={"type": "wire_payment"}), 200)],
        ("post", "/access/v1/search/action"): [("", {name: wire()[name] for name in ("subject", "resource")}, 200)],
        # Each tenant has its own call ids, so the other tenant can use the id of this tenant's call for a call of its
        # own.
        ("post", "/v1/proposals"): [
            ("", proposal(DONE), 200), ("", proposal(WAITING), 200),
            ("", {"plan": [WIRE | {"tool": "initiate_wire", "arguments": ARGUMENTS}]}, 200),
        ],
        ("post", "/v1/proposals/{call_id}/result"): [
            (f"/v1/proposals/{call}/result", EXECUTION, 404) for call in (BEGUN, "9" * 32)
        ],
        ("post", "/v1/runs/{run_id}/end"): [("/v1/runs/run-1/end", {}, 204)],
        ("post", "/v1/tools"): [("", {}, 200)],
        ("get", "/v1/approvals"): [("", None, 200), ("/v1/approvals?run_id=run-1&state=pending", None, 200)],
        ("get", "/v1/approvals/{approval_id}"): [("", None, 404)],
        ("post", "/v1/approvals/{approval_id}/grant"): [("", {}, 404)],
        ("post", "/v1/approvals/{approval_id}/deny"): [("", {"reason": "no"}, 404)],
        ("post", "/v1/approvals/{approval_id}/withdraw"): [("", {}, 404)],
        ("post", "/v1/session"): [("", None, 204)],
        ("delete", "/v1/session"): [("", None, 401)],
        ("post", "/v1/tokens"): [
            ("", {"name": "mine", "scopes": ["admin"]}, 201),
            ("", {"name": "mine", "scopes": ["admin"], "tenant": "acme"}, 400),
        ],
        ("delete", "/v1/tokens/{token_id}"): [("", None, 404)],
    }  # fmt: skip
    documented = openapi_document()["paths"]
    every = {(method, path) for path, methods in documented.items() for method in methods}
    listed = {at: asked.get(at, [("", None, None)]) for at in sorted(every)}
    for (_, template), requests in listed.items():
        path = template
        for name, value in ids.items():
            path = path.replace(name, value)
        requests[:] = [(stated or path, body, status) for stated, body, status in requests]
    return listed


async def streamed(served: ServedApp, authorization: str, count: int) -> set[str]:
    """Return the approval ids of the first events that an event stream sends."""
    parts: asyncio.Queue[Any] = asyncio.Queue()
    scope = {
        "type": "http", "method": "GET", "path": "/v1/approvals/events", "query_string": b"", "app": served.app,
        "headers": [(b"authorization", authorization.encode()), (b"last-event-id", b"0")],
    }  # fmt: skip
    never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(served.app(scope, lambda: never, parts.put))
    told: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while len(told) < count:
            part = await parts.get()
            told += re.findall(r'data: {"id":"(.*?)"}', part.get("body", b"").decode())
        served.service.ending.set()
        await task
    return set(told)


@pytest.mark.parametrize("database", DATABASES)
async def test_tenant_cannot_see_or_change_data_of_another_tenant(database: str, tmp_path: Path) -> None:
    for name in ("acme", "beta", "tokens"):
        (tmp_path / name).mkdir()
    urls = {name: empty_database(database, tmp_path / name) for name in ("acme", "beta", "tokens")}
    Database.open(urls["tokens"], upgrade=True).close()
    known = json.loads(json.dumps(DIRECTORY).replace("bene-acme-442", SECRET).replace("officer-124", f"{SECRET}-2"))
    tenants = {
        "acme": tenant_on(urls["acme"], project=project_in(tmp_path / "acme", known)),
        "beta": tenant_on(urls["beta"], project=project_in(tmp_path / "beta")),
    }
    place = f"http://127.0.0.1:9/{SECRET}"
    oidc = [{"issuer": place, "audience": "pdp", "jwks_url": place, "tenant": "acme"}]
    async with service(tmp_path, url=urls["acme"], tenants=tenants, store=urls["tokens"], oidc=oidc) as served:
        acme, approver = served.client(tenant="acme"), served.client(["approve"], APPROVER, tenant="acme")
        asked = proposal(DONE, reference=SECRET)
        first = (await acme.post("/v1/proposals", json=asked)).json()
        assert (await approver.post(f"/v1/approvals/{first['approval']['id']}/grant")).status_code == 200
        assert (await acme.post("/v1/proposals", json=asked)).json()["begun"]
        result = {"execution": {"result": {"wire_id": SECRET}}}
        assert (await acme.post(f"/v1/proposals/{DONE}/result", json=result)).json()["executed"]
        assert (await acme.post("/v1/proposals", json=proposal(BEGUN, amount=9, reference=SECRET))).json()["begun"]
        waiting = (await acme.post("/v1/proposals", json=proposal(WAITING, reference=SECRET))).json()["approval"]["id"]
        token = (await acme.post("/v1/tokens", json={"name": SECRET, "scopes": ["admin"]})).json()["id"]
        before = content(urls["acme"])
        assert SECRET in str(before)

        other = served.client(tenant="beta")
        answers = []
        for (method, template), requests in attempts(waiting, token).items():
            for path, body, status in requests:
                if template != "/v1/approvals/events":
                    answer = await other.request(method, path, json=body)
                    assert status in (None, answer.status_code), (method, path)
                    answers.append(f"{template} {answer.text} {dict(answer.headers)}")
        own = (await other.get("/v1/approvals")).json()["approvals"]
        told = await streamed(served, other.headers["Authorization"], len(own))

        assert [answer for answer in answers if SECRET in answer] == []
        assert len(own) == 2
        assert told == {approval["id"] for approval in own}
        assert content(urls["acme"]) == before
        assert (await acme.get(f"/v1/approvals/{waiting}")).json()["state"] == "pending"
        assert [each["name"] for each in (await acme.get("/v1/tokens")).json()["tokens"]] == ["test", "test", SECRET]


@pytest.mark.parametrize(
    "spelling", ["sqlite:///{}/store.db", "sqlite:///{}/../{name}/store.db", "sqlite:///{}/link.db"]
)
async def test_two_tenants_cannot_use_the_same_store(spelling: str, tmp_path: Path) -> None:
    first = f"sqlite:///{tmp_path}/store.db"
    tenants = {"acme": tenant_on(first), "beta": tenant_on(first)}
    (tmp_path / "link.db").symlink_to(tmp_path / "store.db")
    tenants["beta"]["store"] = spelling.format(tmp_path, name=tmp_path.name)
    with pytest.raises(UsageError, match="the tenants acme and beta have the same store"):
        async with service(tmp_path, url=first, tenants=tenants):
            pass


async def test_token_of_a_removed_tenant_is_rejected(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        answer = await served.client(tenant="gone").get("/v1/manifest")

    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "service.unauthenticated")
    assert settings_on(f"sqlite:///{tmp_path}/x.db").tenants.keys() == {"default"}
