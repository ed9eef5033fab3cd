"""One request and several, as AuthZEN 1.0 says (sections 5 to 7 and 10)."""

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


async def test_an_allow_is_true_and_nothing_else_and_is_recorded_before_the_answer(
    served: ServedApp, client: httpx.AsyncClient
) -> None:
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


async def test_a_step_up_is_false_with_reason_and_where_an_approval_is_asked_for(
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


async def test_a_call_that_a_proposal_would_be_rejected_for_is_false(
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


async def test_a_permit_without_arguments_says_that_they_were_not_checked(client: httpx.AsyncClient) -> None:
    lookup = {"subject": ME, "action": {"name": "lookup_beneficiary"}, "resource": PAYEE}
    unchecked = {"decision": True, "context": {"unchecked": ["arguments", "resource"]}}

    assert (await client.post(EVALUATION, json=lookup)).json() == unchecked
    arguments = {"payee_name": "Acme", "invoice_ref": "INV-1"}
    whole = {**lookup, "resource": {"type": "tool", "id": "lookup_beneficiary"}, "context": {"arguments": arguments}}
    assert (await client.post(EVALUATION, json=whole)).json() == {"decision": True}
    assert not (await client.post(EVALUATION, json=whole | {"resource": PAYEE})).json()["decision"]


async def test_values_that_a_call_leaves_out_cannot_be_stated_of_its_resource(tmp_path: Path) -> None:
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


async def test_what_the_manifest_maps_is_filled_in(client: httpx.AsyncClient) -> None:
    body = wire(47500)
    body["context"]["amount"] = 47500

    stated = (await client.post(EVALUATION, json=body)).json()["context"]["reasons"]
    assert (await client.post(EVALUATION, json=wire(47500))).json()["context"]["reasons"] == stated == [EXCEEDED]


async def test_without_assert_the_subject_is_the_tokens_own_with_the_claims_properties(served: ServedApp) -> None:
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
        why = "the token stands for no person" if subject is ME else "the subject is somebody else"
        assert (answer.status_code, answer.json()) == (403, why)


async def test_the_directory_fills_what_a_request_does_not_state(client: httpx.AsyncClient) -> None:
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
    ({"subject": None}, "subject has to be an object"),
    ({"subject": {"type": "user"}}, "subject.id is missing"),
    ({"subject": {"type": "user", "id": 7}}, "subject.id has to be a text"),
    ({"subject": {**ME, "properties": []}}, "subject.properties has to be an object"),
    ({"action": {"name": 123}}, "action.name has to be a text"),
    ({"action": "fly"}, "action has to be an object"),
    ({"resource": {"id": "x"}}, "resource.type is missing"),
    ({"context": "x"}, "context has to be an object"),
]


async def test_what_is_mistyped_missing_or_only_the_services_is_400_as_a_text(client: httpx.AsyncClient) -> None:
    for changes, message in MISTYPED:
        for path in (EVALUATION, EVALUATIONS):
            answer = await client.post(path, json=wire(**changes), headers={"X-Request-ID": "e"})
            assert (answer.status_code, answer.json(), answer.headers["x-request-id"]) == (400, message, "e")
    for name in ("subject", "action", "resource"):
        answer = await client.post(EVALUATION, json={part: value for part, value in wire().items() if part != name})
        assert (answer.status_code, answer.json()) == (400, f"{name} is missing")
    for name in ("approval", "call_digest", "flow", "spent", "time"):
        answer = await client.post(EVALUATION, json=wire(context={**wire()["context"], name: None}))
        assert (answer.status_code, answer.json()) == (400, f"context.{name} is the service's to state")


async def test_what_is_no_json_is_400(client: httpx.AsyncClient) -> None:
    for content, kind in ((b"{}", "text/plain"), (b"{", "application/json"), (b"", "application/json")):
        answer = await client.post(EVALUATION, content=content, headers={"Content-Type": kind})
        assert (answer.status_code, type(answer.json())) == (400, str)


async def test_unknown_fields_are_ignored_at_every_level(client: httpx.AsyncClient) -> None:
    body = wire(47500) | {"evaluations": [{}], "x": 1}
    for name in ("subject", "action", "resource"):
        body[name] = body[name] | {"unknown": {}}

    answer = (await client.post(EVALUATION, json=body)).json()

    assert [reason["code"] for reason in answer["context"]["reasons"]] == ["limits.exceeded"]


async def test_no_or_a_foreign_token_is_401_and_another_scope_403(served: ServedApp) -> None:
    for token in ("", "pdp_x"):
        answer = await served.client(token=token).post(EVALUATION, json=wire())
        assert (answer.status_code, answer.headers["www-authenticate"][:6]) == (401, "Bearer")
    assert (await served.client(["propose"]).post(EVALUATION, json=wire())).status_code == 403


async def test_items_override_whole_entities_and_inherit_the_rest(served: ServedApp, client: httpx.AsyncClient) -> None:
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


async def test_an_item_that_cannot_be_asked_is_false_and_the_others_are_answered(
    served: ServedApp, client: httpx.AsyncClient
) -> None:
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


async def test_a_batch_ends_with_the_item_that_stops_it(served: ServedApp, client: httpx.AsyncClient) -> None:
    for semantic, items, decisions in BATCHES:
        before = len(events(served))
        body = {**wire(), "evaluations": items, "options": {"evaluations_semantic": semantic, "other": 1}}
        answer = (await client.post(EVALUATIONS, json=body)).json()
        assert [item["decision"] for item in answer["evaluations"]] == decisions
        assert len(events(served)) - before == len(decisions)


@pytest.mark.parametrize("absent", [{}, {"evaluations": []}])
async def test_without_items_it_is_one_evaluation(client: httpx.AsyncClient, absent: dict[str, Any]) -> None:
    assert (await client.post(EVALUATIONS, json=wire() | absent)).json() == {"decision": True}
    assert (await client.post(EVALUATIONS, json=absent)).status_code == 400


async def test_a_batch_that_is_malformed_or_too_long_is_refused_whole(
    served: ServedApp, client: httpx.AsyncClient
) -> None:
    malformed: list[tuple[dict[str, Any], int]] = [
        ({"evaluations": {}}, 400), ({"evaluations": [1]}, 400), ({"evaluations": [{}], "options": []}, 400),
        ({"evaluations": [{}], "options": {"evaluations_semantic": "any"}}, 400),
        ({"evaluations": [{}], "options": {"evaluations_semantic": []}}, 400),
        ({"evaluations": [{}], "resource": 1}, 400), ({"evaluations": [{}] * 101}, 413),
    ]  # fmt: skip
    for changes, status in malformed:
        assert (await client.post(EVALUATIONS, json=wire() | changes)).status_code == status
    assert events(served) == []


async def test_what_a_batch_comes_to_when_each_question_is_whole_is_bounded(client: httpx.AsyncClient) -> None:
    shared = {**wire()["context"], "note": "x" * 900_000}

    answer = (await client.post(EVALUATIONS, json=wire(context=shared) | {"evaluations": [{}] * 20})).json()
    errors = [item.get("context", {}).get("error", {}).get("status") for item in answer["evaluations"]]
    assert errors == [None] * 5 + [413] * 15


async def test_a_default_that_no_item_uses_may_be_empty(client: httpx.AsyncClient) -> None:
    body = wire(resource={}) | {"evaluations": [{"resource": PAYEE}]}

    assert (await client.post(EVALUATIONS, json=body)).json() == {"evaluations": [{"decision": True}]}


async def test_a_hundred_are_answered_in_their_order_and_recorded_as_one_chain(
    served: ServedApp, client: httpx.AsyncClient
) -> None:
    items = [{"context": {**wire(24950 + at)["context"]}} for at in range(100)]

    bodies = [client.post(EVALUATIONS, json={**wire(), "evaluations": items}) for _ in range(3)]
    for answer in await asyncio.gather(*bodies):
        assert [item["decision"] for item in answer.json()["evaluations"]] == [True] * 51 + [False] * 49
    recorded = events(served)
    assert [event["seq"] for event in recorded] == list(range(300))
    assert len({event["decision_id"] for event in recorded}) == 300


async def test_what_cannot_be_recorded_is_not_answered(served: ServedApp, client: httpx.AsyncClient) -> None:
    lose_the_stream(served)

    for path, body in ((EVALUATION, wire()), (EVALUATIONS, wire() | {"evaluations": [{}, {}]})):
        answer = await client.post(path, json=body)
        assert (answer.status_code, answer.json()) == (503, "a store or engine cannot be used")


async def test_an_engine_that_gives_no_decision_is_a_deny(served: ServedApp, client: httpx.AsyncClient) -> None:
    served.service.tenants["default"].pep.engine.close()

    answer = (await client.post(EVALUATION, json=wire())).json()
    batch = (await client.post(EVALUATIONS, json=wire() | {"evaluations": [{}, {}]})).json()

    for item in (answer, *batch["evaluations"]):
        assert (item["decision"], item["context"]["reasons"][0]["code"]) == (False, "engine.unavailable")


async def test_an_older_release_than_has_decided_before_is_a_deny(served: ServedApp, client: httpx.AsyncClient) -> None:
    newer = Decision(Verdict.ALLOW, (), (), "decision-1", "sha256:newer", 1_000_000)
    assert not served.service.tenants["default"].pep.newest.is_stale(newer)

    answer = (await client.post(EVALUATION, json=wire())).json()

    assert [reason["code"] for reason in answer["context"]["reasons"]] == ["bundle.stale"]
    assert events(served)[0]["codes"] == ["bundle.stale"]
