"""The service decides, begins and finishes proposed calls, checks plans, and rejects invalid requests."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from pdp.flow import reserve
from pdp.stores.sql.database import Database
from tests.support.payments import ARGUMENTS
from tests.support.postgres import DATABASES, empty_database
from tests.support.service import APPROVER, OFFICER, ServedApp, service

WIRE = {"tool": "initiate_wire", "arguments": ARGUMENTS}
SESSION = {"facts": {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"}, "idempotency_key": "idm-4a2b"}
CALL = "0b54d0a1f7d94c0e9a3b8d6f2c1e5a70"
BODY = {"id": CALL, "proposal": WIRE, "session": SESSION}
SENT = {"execution": {"started": True, "attempts": 1, "result": {"wire_id": "wire-1"}}}
CONDITION = (
    "It depends on the arguments: amount has the limit wire.auto_approved; the policy reads amount, resource.id."
)


@pytest.fixture(params=DATABASES)
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServedApp]:
    async with service(tmp_path, request.param) as app:
        yield app


@pytest.fixture
async def in_sqlite(tmp_path: Path) -> AsyncIterator[ServedApp]:
    async with service(tmp_path) as app:
        yield app


async def post(client: httpx.AsyncClient, path: str, body: Any) -> Any:
    answered = await client.post(path, json=body)
    assert answered.status_code == 200, answered.text
    return answered.json()


def shown(answer: dict[str, Any]) -> tuple[Any, ...]:
    approval, action = answer["approval"], answer["action"]
    states = (approval and approval["state"], action and action["state"])
    return (answer["verdict"], answer["begun"], answer["executed"], answer["replayed"], answer["result"], *states)


async def test_proposed_wire_transfer_waits_for_approval_and_begins_once(served: ServedApp) -> None:
    agent, result = served.client(), f"/v1/proposals/{CALL}/result"
    asked = await post(agent, "/v1/proposals", BODY)
    assert shown(asked) == ("STEP_UP", False, False, False, None, "pending", "staged")
    served.service.tenants["default"].approvals.grant(asked["approval"]["id"], dict(APPROVER))

    begun = await post(agent, "/v1/proposals", BODY)
    assert shown(begun) == ("ALLOW", True, False, False, None, "consumed", "approved")
    assert (begun["id"], begun["arguments"]) == (CALL, ARGUMENTS)
    assert await post(agent, "/v1/proposals", BODY) == begun

    done = await post(agent, result, SENT)
    assert shown(done) == ("ALLOW", False, True, False, {"wire_id": "wire-1"}, "consumed", "committed")
    assert await post(agent, result, SENT) == await post(agent, "/v1/proposals", BODY) == done
    replay = await post(agent, "/v1/proposals", {**BODY, "id": None})
    assert shown(replay) == ("ALLOW", False, False, True, {"wire_id": "wire-1"}, "consumed", None)
    assert replay["id"] != CALL

    other = served.client()
    refused = [
        await agent.post("/v1/proposals", json={**BODY, "tool_call_id": "call_1"}),
        await other.post("/v1/proposals", json=BODY),
        await agent.post(result, json={"execution": {"result": {"wire_id": "wire-2"}}}),
        await other.post(result, json=SENT),
        await agent.post("/v1/proposals/never-begun/result", json=SENT),
    ]
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in refused] == [
        (409, "service.conflict"), (409, "service.conflict"), (409, "service.conflict"), (404, "service.not_found"),
        (404, "service.not_found"),
    ]  # fmt: skip


async def test_running_or_unknown_key_is_no_permission_to_run(
    in_sqlite: ServedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserve, "PATIENCE", 0)
    agent, tenant = in_sqlite.client(), in_sqlite.service.tenants["default"]
    body = {**BODY, "proposal": {**WIRE, "arguments": {**ARGUMENTS, "amount": 20}}}
    assert shown(await post(agent, "/v1/proposals", body))[:2] == ("ALLOW", True)
    refused = [await agent.post("/v1/proposals", json={**body, "id": None})]
    tenant.pep.sweep(time.time() + 3600)
    refused.append(await agent.post("/v1/proposals", json=body))
    monkeypatch.setattr(reserve, "time", SimpleNamespace(time=lambda: time.time() + 3600, monotonic=time.monotonic))
    refused.append(await agent.post("/v1/proposals", json={**body, "id": None}))

    assert [(each.status_code, each.json()["error"]["code"], each.headers.get("retry-after")) for each in refused] == [
        (409, "idempotency.in_flight", "5"), (409, "idempotency.unknown", None), (409, "idempotency.unknown", None),
    ]  # fmt: skip
    assert not [word for each in refused for word in ("verdict", "begun") if word in each.json()]
    done = await post(agent, f"/v1/proposals/{CALL}/result", SENT)
    assert shown(await post(agent, "/v1/proposals", body))[1:4] == shown(done)[1:4] == (False, True, False)


async def test_proposal_decided_without_running_reserves_nothing(in_sqlite: ServedApp) -> None:
    agent = in_sqlite.client()
    decided = await post(agent, "/v1/proposals", {**BODY, "run": False})
    assert shown(decided) == ("STEP_UP", False, False, False, None, None, None)
    assert list(in_sqlite.service.tenants["default"].approvals.list()) == []
    denied = await post(agent, "/v1/proposals", {"proposal": {"tool": "no_such", "arguments": {}}})
    assert (denied["verdict"], denied["failed_check"], denied["outcome"]["rejection"]["code"]) == (
        None, "manifest", "INVALID_TOOL_NAME",
    )  # fmt: skip


async def test_model_tool_call_and_plan_are_accepted_as_proposals(in_sqlite: ServedApp) -> None:
    agent = in_sqlite.client()
    call = {"type": "tool_use", "id": "toolu_1", "name": "initiate_wire", "input": ARGUMENTS}
    decided = await post(agent, "/v1/proposals", {"proposal": call, "session": SESSION, "run": False})
    assert (decided["verdict"], decided["trace"]["tool_call_id"]) == ("STEP_UP", "toolu_1")
    plan = await post(agent, "/v1/proposals", {"plan": [{**WIRE, "step_name": "pay"}], "session": SESSION})
    steps: list[dict[str, Any]] = [{"name": "pay", "status": "accepted", "rejection": None, "trips": []}]
    assert (plan["verdict"], plan["acceptable"], plan["plan"], plan["steps"]) == (
        "ALLOW", True, [{**WIRE, "step_name": "pay"}], steps,
    )  # fmt: skip


async def test_session_fields_need_the_scope_assert(in_sqlite: ServedApp) -> None:
    agent = in_sqlite.client(["propose"])
    own = {"purpose": "pay", "idempotency_key": "key", "run_id": "run", "request_id": "req-7", "plan": []}
    decided = await post(agent, "/v1/proposals", {"proposal": WIRE, "run": False, "session": own})
    assert (decided["trace"]["request_id"], decided["trace"]["idempotency_key"]) == ("req-7", "key")
    asserted: dict[str, Any] = {"prompt": [], "home_domains": [], "agent": "a"}
    for name in ("claims", "facts", "prompt", "home_domains", "agent", "state", "config"):
        session = {name: asserted.get(name, {})}
        answered = await agent.post("/v1/proposals", json={"proposal": WIRE, "session": session})
        assert (answered.status_code, answered.json()["error"]["code"]) == (403, "service.forbidden"), name

    asserting = in_sqlite.client(["propose", "assert"], {})
    nobody = await post(asserting, "/v1/proposals", {"proposal": WIRE, "session": SESSION, "run": False})
    stated = {"proposal": WIRE, "session": {**SESSION, "claims": OFFICER}, "run": False}
    assert nobody["codes"] == ["decision.request_invalid"]
    named = await asserting.post("/v1/proposals", json=stated, headers={"X-Request-ID": "req-8"})
    assert (named.json()["verdict"], named.json()["trace"]["request_id"]) == ("STEP_UP", "req-8")


UNREADABLE: list[tuple[str, Any, str]] = [
    ("/v1/proposals", {}, "proposal is missing"),
    ("/v1/proposals", {**BODY, "id": "short"}, "id is not valid: String should match pattern"),
    ("/v1/proposals", {**BODY, "id": 7}, "id must be a text"),
    ("/v1/proposals", {**BODY, "run": "yes"}, "run is not valid: Input should be a valid boolean"),
    ("/v1/proposals", {**BODY, "step_name": 1}, "step_name must be a text"),
    ("/v1/proposals", {**BODY, "approval": None}, "unknown field 'approval'"),
    ("/v1/proposals", {**BODY, "session": None}, "session must be an object"),
    ("/v1/proposals", {**BODY, "session": {"time": "x"}}, "unknown field 'session.time'"),
    ("/v1/proposals", {**BODY, "session": {"run_id": 5}}, "session.run_id must be a text"),
    ("/v1/proposals", {"plan": {}}, "plan must be a list"),
    ("/v1/proposals", {"plan": [], "run": True}, "unknown field 'run'"),
    ("/v1/tools?format=other", {}, "format is not valid: Input should be 'plain'"),
    ("/v1/proposals/x/result", {}, "execution is missing"),
    ("/v1/proposals/x/result", {"execution": {"started": True}}, "execution.Succeeded.result is missing"),
    (
        "/v1/proposals/x/result",
        {"execution": {"result": 1, "failure": {}}},
        "execution.Failed.failure.code is missing",
    ),
    (
        "/v1/proposals/x/result",
        {"execution": {"result": 1, "started": False}},
        "execution.Succeeded.started is not valid",
    ),
    (
        "/v1/proposals/x/result",
        {"execution": {"result": 1, "started": 1}},
        "execution.Succeeded.started is not valid",
    ),
    (
        "/v1/proposals/x/result",
        {"execution": {"result": 1, "attempts": 0}},
        "execution.Succeeded.attempts is not valid",
    ),
    (
        "/v1/proposals/x/result",
        {"execution": {"failure": {"code": "NO"}}},
        "execution.Failed.failure.code is not valid",
    ),
    (
        "/v1/proposals/x/result",
        {"execution": {"result": 1, "error": 1}},
        "unknown field 'execution.Succeeded.error'",
    ),
    ("/v1/runs/run-1/end", {"session": []}, "session must be an object"),
]


async def test_malformed_proposals_are_rejected(in_sqlite: ServedApp) -> None:
    agent = in_sqlite.client()
    for path, body, message in UNREADABLE:
        answered = await agent.post(path, json=body)
        assert (answered.status_code, answered.json()["error"]["code"]) == (400, "service.bad_request"), answered.text
        assert answered.json()["error"]["message"].startswith(message), answered.text


async def test_every_endpoint_needs_the_scope_propose(in_sqlite: ServedApp) -> None:
    agent = in_sqlite.client(["decide", "approve", "audit", "admin", "assert"])
    answers = [
        await agent.post("/v1/proposals", json=BODY),
        await agent.post(f"/v1/proposals/{CALL}/result", json=SENT),
        await agent.post("/v1/runs/run-1/end"),
        await agent.get("/v1/tools"),
        await agent.post("/v1/tools"),
        await agent.get("/v1/manifest"),
    ]
    assert [answer.status_code for answer in answers] == [403] * 6


async def test_service_ends_a_run(in_sqlite: ServedApp) -> None:
    agent = in_sqlite.client()
    answers = [
        await agent.post("/v1/runs/run-1/end"),
        await agent.post("/v1/runs/run-1/end", json={"session": SESSION}),
    ]
    assert [(answer.status_code, answer.content) for answer in answers] == [(204, b"")] * 2


async def test_tool_list_contains_only_tools_that_the_caller_may_call(in_sqlite: ServedApp) -> None:
    agent = in_sqlite.client(["propose", "assert"])
    tools = (await agent.get("/v1/tools", params={"format": "anthropic"})).json()
    assert [(tool["name"], tool["visibility"], tool["condition"]) for tool in tools["tools"]] == [
        ("lookup_beneficiary", "ALLOW", None),
        ("validate_payment", "ALLOW", None),
        (
            "initiate_wire", "DEPENDS",
            CONDITION,
        ),
    ]  # fmt: skip
    assert {*tools["tools"][2]["definition"]} == {"name", "description", "input_schema"}
    manifest = (await agent.get("/v1/manifest")).json()
    assert (tools["manifest_version"], tools["manifest_digest"]) == (manifest["version"], manifest["digest"])
    assert manifest["document"]["tools"].keys() == manifest["tools"].keys() == {tool["name"] for tool in tools["tools"]}

    fewer = {"claims": {**OFFICER, "emts": {"payments.lookup": True}}}
    seen = await post(agent, "/v1/tools", {"session": fewer})
    assert [tool["name"] for tool in seen["tools"]] == ["lookup_beneficiary"]


async def test_service_answers_503_if_the_store_is_unavailable(tmp_path: Path) -> None:
    url = empty_database("sqlite", tmp_path)
    async with service(tmp_path, url=url) as served:
        agent = served.client()
        with Database.open(url) as store, store.write() as connection:
            connection.execute(text("ALTER TABLE pdp_remote_calls RENAME TO away"))
        answered = [
            await agent.post("/v1/proposals", json=BODY),
            await agent.post(f"/v1/proposals/{CALL}/result", json=SENT),
        ]
        assert [(answer.status_code, answer.json()["error"]["code"]) for answer in answered] == [
            (503, "service.unavailable")
        ] * 2
