"""Single and batch evaluations follow sections 5 to 7 and 10 of AuthZEN 1.0."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from pdp.decision import Decision, Verdict
from pdp.documents import read_document
from pdp.json import canonical
from tests.service.authzen.conftest import events, lose_the_stream
from tests.service.authzen.questions import ME, PAYEE, SCOPED, WIRE, project_in, wire
from tests.support.payments import ARGUMENTS, EXAMPLE, REMEDY
from tests.support.postgres import empty_database
from tests.support.service import OFFICER, ServedApp, service, tenant_on

EVALUATION = "/access/v1/evaluation"
EVALUATIONS = "/access/v1/evaluations"
FLY = {"name": "fly"}

EXCEEDED = {
    "code": "limits.exceeded",
    "message": "The amount is above what the subject may do without approval.",
    "details": {
        "approval": {
            "approvers": ["payments.approver"], "expires": "PT1H", "expires_seconds": 3600, "quorum": 1,
            "unless_within_limits": True,
        },
        "argument": "amount", "held": 25000, "limit": "wire.auto_approved", "value": 47500,
    },
    "remedy": REMEDY,
}  # fmt: skip


async def test_evaluation_answers_allow_with_true_and_records_it(served: ServedApp, client: httpx.AsyncClient) -> None:
    answer = await client.post(EVALUATION, json=wire(), headers={"X-Request-ID": "req-7"})

    assert (answer.status_code, answer.json()) == (200, {"decision": True})
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"] == "req-7"
    tenant = served.service.tenants["default"]
    manifest = tenant.pep.manifest
    whole = wire(
        subject={**ME, "properties": SCOPED},
        action={
            **WIRE,
            "properties": {
                "tool": "initiate_wire", "manifest_version": manifest.version, "manifest_digest": manifest.digest,
            },
        },
        resource={**PAYEE, "properties": {}},
    )  # fmt: skip
    [event] = events(served)
    stated = {name: event[name] for name in event if event[name] not in (None, [])}
    assert stated == {
        "type": "access.evaluation", "request_id": "req-7", "subject": "officer-123", "pdp_action": "initiate_wire",
        "tool_name": "initiate_wire", "manifest_version": manifest.version, "manifest_digest": manifest.digest,
        "arguments_digest": tenant.pep.audit.digest(canonical(whole)), "verdict": "ALLOW", "outcome": "not_executed",
        "codes": ["effects.gate_satisfied", "risk.acceptable"], "seq": 0,
        **{name: event[name] for name in ("time", "decision_id", "bundle_revision", "prev_hash", "hash")},
    }  # fmt: skip


async def test_evaluation_answers_step_up_with_false_reasons_and_approval_endpoint(
    client: httpx.AsyncClient,
) -> None:
    answer = (await client.post(EVALUATION, json=wire(47500))).json()

    context = answer["context"]
    assert answer == {
        "decision": False,
        "context": {
            "verdict": "STEP_UP",
            "evaluation_id": context["evaluation_id"],
            "evaluated_at": context["evaluated_at"],
            "reason_admin": {"403": f"limits.exceeded: {EXCEEDED['message']} {REMEDY}"},
            "reasons": [EXCEEDED],
            "needs_approval": {
                "approvers": ["payments.approver"],
                "quorum": 1,
                "expires": "PT1H",
                "endpoint": "http://127.0.0.1:8181/v1/proposals",
            },
        },
    }


REJECTED = {
    "mistyped": ({"arguments": {**ARGUMENTS, "amount": 20000, "reference": 7}}, "arguments.reference"),
    "undeclared": ({"arguments": {**ARGUMENTS, "amount": 20000, "note": "x"}}, "'note'"),
    "missing": ({"arguments": {"amount": 20000, "beneficiary_id": "bene-acme-441"}}, "source_account"),
    "no object": ({"arguments": []}, "arguments"),
    "another payee": ({"arguments": {**ARGUMENTS, "amount": 20000, "beneficiary_id": "x"}}, "resource.id"),
    "another amount": ({"amount": 5}, "context.amount"),
    "no key": ({"idempotency_key": None}, "idempotency key"),
    "no text as key": ({"idempotency_key": 7}, "idempotency_key"),
    "a long key": ({"idempotency_key": "k" * 5000}, "idempotency_key"),
}


async def test_evaluation_denies_a_call_that_violates_its_contract(
    served: ServedApp, client: httpx.AsyncClient
) -> None:
    for changes, place in REJECTED.values():
        body = wire()
        body["context"] |= changes

        answer = (await client.post(EVALUATION, json=body)).json()
        items = [{"context": body["context"]}, {}]
        batch = (await client.post(EVALUATIONS, json={**wire(), "evaluations": items})).json()

        [reason] = answer["context"]["reasons"]
        assert (answer["decision"], reason["code"]) == (False, "decision.request_invalid")
        assert reason["message"].startswith("initiate_wire: ")
        assert place in reason["message"]
        assert [item["decision"] for item in batch["evaluations"]] == [False, True]
    assert [event["verdict"] for event in events(served)] == ["DENY", "DENY", "ALLOW"] * len(REJECTED)


async def test_evaluation_without_call_arguments_says_that_arguments_and_resource_are_unchecked(
    client: httpx.AsyncClient,
) -> None:
    lookup = {"subject": ME, "action": {"name": "lookup_beneficiary"}, "resource": PAYEE}
    unchecked = {"decision": True, "context": {"unchecked": ["arguments", "resource"]}}

    assert (await client.post(EVALUATION, json=lookup)).json() == unchecked
    arguments = {"payee_name": "Acme", "invoice_ref": "INV-1"}
    whole = {**lookup, "resource": {"type": "tool", "id": "lookup_beneficiary"}, "context": {"arguments": arguments}}
    assert (await client.post(EVALUATION, json=whole)).json() == {"decision": True}
    assert not (await client.post(EVALUATION, json=whole | {"resource": PAYEE})).json()["decision"]


async def test_evaluation_denies_a_resource_that_contradicts_the_call_arguments(tmp_path: Path) -> None:
    manifest, governance = (read_document(EXAMPLE / name).value for name in ("manifest.json", "governance.yaml"))
    manifest["tools"][2]["schema"]["properties"]["owner"] = {"type": "string"}
    governance["actions"]["initiate_wire"]["resource"]["owner"] = "$arguments.owner"
    project = project_in(tmp_path)
    stated = {"manifest": manifest, "governance": governance}
    for name, value in stated.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    project.write_text(json.dumps({**json.loads(project.read_text()), **{name: f"{name}.json" for name in stated}}))
    url = empty_database("sqlite", tmp_path)
    async with service(tmp_path, url=url, tenants={"default": tenant_on(url) | {"project": project}}) as opened:
        client = opened.client(["decide", "assert"], {})

        async def answer(**properties: Any) -> Any:
            return (await client.post(EVALUATION, json=wire(resource={**PAYEE, "properties": properties}))).json()

        assert await answer() == {"decision": True}
        assert await answer(markings=[]) == {"decision": True, "context": {"unchecked": ["resource"]}}
        refused = await answer(owner="me")
        assert not refused["decision"]
        assert refused["context"]["reasons"][0]["message"] == "initiate_wire: resource.owner differs from the arguments"


async def test_evaluation_adds_context_fields_that_the_manifest_maps_from_the_arguments(
    client: httpx.AsyncClient,
) -> None:
    body = wire(47500)
    body["context"]["amount"] = 47500

    stated = (await client.post(EVALUATION, json=body)).json()["context"]["reasons"]
    assert (await client.post(EVALUATION, json=wire(47500))).json()["context"]["reasons"] == stated == [EXCEEDED]


async def test_evaluation_of_another_subject_requires_the_scope_assert(served: ServedApp) -> None:
    own = served.client(["decide"], OFFICER)
    boast = {**ME, "properties": {"limits": {"wire.auto_approved": 1e9}}}

    assert (await own.post(EVALUATION, json=wire())).json() == {"decision": True}
    assert not (await own.post(EVALUATION, json=wire(47500, subject=boast))).json()["decision"]
    for subject, client in (
        ({"type": "user", "id": "officer-124"}, own),
        ({"type": "service", "id": "officer-123"}, own),
        (ME, served.client(["decide"], {})),
    ):
        answer = await client.post(EVALUATION, json=wire(subject=subject))
        why = "the token has no subject" if subject is ME else "the subject is not that of the token"
        assert (answer.status_code, answer.json()) == (403, why)


async def test_directory_adds_missing_properties_of_subject_and_resource(client: httpx.AsyncClient) -> None:
    async def decision(**changes: Any) -> Any:
        return (await client.post(EVALUATION, json=wire(**changes))).json()["decision"]

    other, stated = {"type": "user", "id": "officer-124"}, {"limits": {"wire.auto_approved": 20000}}
    assert not await decision(subject=other)
    assert await decision(subject={**other, "properties": stated})
    assert not await decision(subject={**other, "properties": {**stated, "scopes": []}})
    assert not await decision(subject={"type": "user", "id": "nobody"})
    secret = {"type": "wire_payment", "id": "bene-globex-1"}
    assert not await decision(resource=secret)
    assert await decision(resource={**secret, "properties": {"markings": []}})


MISTYPED: list[tuple[dict[str, Any], str]] = [
    ({"subject": None}, "subject must be an object"),
    ({"subject": {"type": "user"}}, "subject.id is missing"),
    ({"subject": {"type": "user", "id": 7}}, "subject.id must be a text"),
    ({"subject": {**ME, "properties": []}}, "subject.properties must be an object"),
    ({"action": {"name": 123}}, "action.name must be a text"),
    ({"action": "fly"}, "action must be an object"),
    ({"resource": {"id": "x"}}, "resource.type is missing"),
    ({"context": "x"}, "context must be an object"),
]


async def test_evaluation_rejects_mistyped_missing_and_reserved_fields(client: httpx.AsyncClient) -> None:
    for changes, message in MISTYPED:
        for path in (EVALUATION, EVALUATIONS):
            answer = await client.post(path, json=wire(**changes), headers={"X-Request-ID": "e"})
            assert (answer.status_code, answer.json(), answer.headers["x-request-id"]) == (400, message, "e")
    for name in ("subject", "action", "resource"):
        answer = await client.post(EVALUATION, json={part: value for part, value in wire().items() if part != name})
        assert (answer.status_code, answer.json()) == (400, f"{name} is missing")
    for name in ("approval", "call_digest", "flow", "spent", "time"):
        answer = await client.post(EVALUATION, json=wire(context={**wire()["context"], name: None}))
        assert (answer.status_code, answer.json()) == (400, f"context.{name} is set by the service")


async def test_evaluation_rejects_a_body_that_is_not_json(client: httpx.AsyncClient) -> None:
    for content, kind in ((b"{}", "text/plain"), (b"{", "application/json"), (b"", "application/json")):
        answer = await client.post(EVALUATION, content=content, headers={"Content-Type": kind})
        assert (answer.status_code, type(answer.json())) == (400, str)


async def test_evaluation_ignores_unknown_fields_at_every_level(client: httpx.AsyncClient) -> None:
    body = wire(47500) | {"evaluations": [{}], "x": 1}
    for name in ("subject", "action", "resource"):
        body[name] = body[name] | {"unknown": {}}

    answer = (await client.post(EVALUATION, json=body)).json()

    assert [reason["code"] for reason in answer["context"]["reasons"]] == ["limits.exceeded"]


async def test_evaluation_answers_401_to_an_invalid_token_and_403_to_a_missing_scope(served: ServedApp) -> None:
    for token in ("", "pdp_x"):
        answer = await served.client(token=token).post(EVALUATION, json=wire())
        assert (answer.status_code, answer.headers["www-authenticate"][:6]) == (401, "Bearer")
    assert (await served.client(["propose"]).post(EVALUATION, json=wire())).status_code == 403


async def test_batch_item_overrides_default_subject_action_or_resource(
    served: ServedApp, client: httpx.AsyncClient
) -> None:
    items = [{}, {"action": FLY}, {"context": {}}, {"subject": {"type": "user", "id": "clerk-1"}}, wire(47500)]

    answer = (await client.post(EVALUATIONS, json={**wire(), "evaluations": items})).json()

    codes = [
        [reason["code"] for reason in item.get("context", {}).get("reasons", ())] for item in answer["evaluations"]
    ]
    assert list(answer) == ["evaluations"]
    assert codes[:2] == [[], ["manifest.unknown_action"]]
    assert "idempotency.key_missing" in codes[2]
    assert codes[3:] == [["scopes.missing"], ["limits.exceeded"]]
    recorded = events(served)
    assert [event["codes"] for event in recorded[1:]] == codes[1:]
    assert [event["decision_id"] for event in recorded[1:]] == [
        item["context"]["evaluation_id"] for item in answer["evaluations"][1:]
    ]


async def test_malformed_batch_item_is_answered_with_false(served: ServedApp, client: httpx.AsyncClient) -> None:
    body = {name: value for name, value in wire().items() if name != "action"}

    answer = await client.post(EVALUATIONS, json={**body, "evaluations": [{}, {"action": WIRE}, {"action": {}}]})

    def refused(message: str) -> dict[str, Any]:
        return {"decision": False, "context": {"error": {"status": 400, "message": message}}}

    assert (answer.status_code, answer.json()) == (
        200,
        {
            "evaluations": [
                refused("action is missing"),
                {"decision": True},
                refused("action.name is missing"),
            ]
        },
    )
    assert [(event["verdict"], event["codes"]) for event in events(served)] == [
        ("DENY", ["decision.request_invalid"]),
        ("ALLOW", ["effects.gate_satisfied", "risk.acceptable"]),
        ("DENY", ["decision.request_invalid"]),
    ]


BATCHES: list[tuple[str, list[Any], list[bool]]] = [
    ("execute_all", [{}, {"action": FLY}, {}], [True, False, True]),
    ("deny_on_first_deny", [{}, {"action": FLY}, {}], [True, False]),
    ("deny_on_first_deny", [{}, {"action": {}}, {}], [True, False]),
    ("deny_on_first_deny", [{}, {}], [True, True]),
    ("permit_on_first_permit", [{"action": FLY}, {}, {}], [False, True]),
    ("permit_on_first_permit", [{"action": FLY}], [False]),
]


async def test_batch_stops_early_if_evaluations_semantic_requires_it(
    served: ServedApp, client: httpx.AsyncClient
) -> None:
    for semantic, items, decisions in BATCHES:
        before = len(events(served))
        body = {**wire(), "evaluations": items, "options": {"evaluations_semantic": semantic, "other": 1}}
        answer = (await client.post(EVALUATIONS, json=body)).json()
        assert [item["decision"] for item in answer["evaluations"]] == decisions
        assert len(events(served)) - before == len(decisions)


@pytest.mark.parametrize("absent", [{}, {"evaluations": []}])
async def test_batch_without_items_is_answered_as_a_single_request(
    client: httpx.AsyncClient, absent: dict[str, Any]
) -> None:
    assert (await client.post(EVALUATIONS, json=wire() | absent)).json() == {"decision": True}
    assert (await client.post(EVALUATIONS, json=absent)).status_code == 400


async def test_malformed_or_too_long_batch_is_rejected(served: ServedApp, client: httpx.AsyncClient) -> None:
    malformed: list[tuple[dict[str, Any], int]] = [
        ({"evaluations": {}}, 400), ({"evaluations": [1]}, 400), ({"evaluations": [{}], "options": []}, 400),
        ({"evaluations": [{}], "options": {"evaluations_semantic": "any"}}, 400),
        ({"evaluations": [{}], "options": {"evaluations_semantic": []}}, 400),
        ({"evaluations": [{}], "resource": 1}, 400), ({"evaluations": [{}] * 101}, 413),
    ]  # fmt: skip
    for changes, status in malformed:
        assert (await client.post(EVALUATIONS, json=wire() | changes)).status_code == status
    assert events(served) == []


async def test_batch_with_too_large_total_size_is_rejected(client: httpx.AsyncClient) -> None:
    shared = {**wire()["context"], "note": "x" * 900_000}

    answer = (await client.post(EVALUATIONS, json=wire(context=shared) | {"evaluations": [{}] * 20})).json()
    errors = [item.get("context", {}).get("error", {}).get("status") for item in answer["evaluations"]]
    assert errors == [None] * 5 + [413] * 15


async def test_batch_default_that_every_item_overrides_may_be_empty(client: httpx.AsyncClient) -> None:
    body = wire(resource={}) | {"evaluations": [{"resource": PAYEE}]}

    assert (await client.post(EVALUATIONS, json=body)).json() == {"evaluations": [{"decision": True}]}


async def test_batch_of_100_items_is_answered_and_recorded_in_order(
    served: ServedApp, client: httpx.AsyncClient
) -> None:
    items = [{"context": {**wire(24950 + at)["context"]}} for at in range(100)]

    bodies = [client.post(EVALUATIONS, json={**wire(), "evaluations": items}) for _ in range(3)]
    for answer in await asyncio.gather(*bodies):
        assert [item["decision"] for item in answer.json()["evaluations"]] == [True] * 51 + [False] * 49
    recorded = events(served)
    assert [event["seq"] for event in recorded] == list(range(300))
    assert len({event["decision_id"] for event in recorded}) == 300


async def test_evaluation_fails_if_it_cannot_be_recorded(served: ServedApp, client: httpx.AsyncClient) -> None:
    lose_the_stream(served)

    for path, body in ((EVALUATION, wire()), (EVALUATIONS, wire() | {"evaluations": [{}, {}]})):
        answer = await client.post(path, json=body)
        assert (answer.status_code, answer.json()) == (503, "a store or engine is unavailable")


async def test_evaluation_is_denied_if_the_engine_fails(served: ServedApp, client: httpx.AsyncClient) -> None:
    served.service.tenants["default"].pep.engine.close()

    answer = (await client.post(EVALUATION, json=wire())).json()
    batch = (await client.post(EVALUATIONS, json=wire() | {"evaluations": [{}, {}]})).json()

    for item in (answer, *batch["evaluations"]):
        assert (item["decision"], item["context"]["reasons"][0]["code"]) == (False, "engine.unavailable")


async def test_evaluation_is_denied_if_the_bundle_is_older_than_a_known_one(
    served: ServedApp, client: httpx.AsyncClient
) -> None:
    newer = Decision(Verdict.ALLOW, (), (), "decision-1", "sha256:newer", 1_000_000)
    assert not served.service.tenants["default"].pep.newest.is_stale(newer)

    answer = (await client.post(EVALUATION, json=wire())).json()

    assert [reason["code"] for reason in answer["context"]["reasons"]] == ["bundle.stale"]
    assert events(served)[0]["codes"] == ["bundle.stale"]
