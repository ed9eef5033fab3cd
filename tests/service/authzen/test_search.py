"""Searches for subjects, resources and actions, paged results, and the metadata (AuthZEN 1.0, sections 8 and 9)."""

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from pdp.audit.chain import keyed_hash
from pdp.engine.data import merged_data, read_data
from pdp.errors import FileFaultsError, UsageError
from pdp.json import canonical
from tests.service.authzen.conftest import events, lose_the_stream
from tests.service.authzen.questions import DIRECTORY, ME, PAYEE, WIRE, project_in, wire
from tests.support.postgres import empty_database
from tests.support.service import OFFICER, ServedApp, service, tenant_on

SUBJECT = "/access/v1/search/subject"
RESOURCE = "/access/v1/search/resource"
ACTION = "/access/v1/search/action"
CAN_SEARCH = [
    {"type": "user", "id": "officer-123"},
    {"type": "user", "id": "officer-125"},
]
PAYEES = [{"type": "wire_payment", "id": "bene-acme-441"}, {"type": "wire_payment", "id": "bene-acme-442"}]


def _who(**changes: Any) -> dict[str, Any]:
    return wire(subject={"type": "user"}, **changes)


def _which(**changes: Any) -> dict[str, Any]:
    return wire(resource={"type": "wire_payment"}, **changes)


def _what(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in wire(**changes).items() if name != "action"}


async def _results(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    answer = await client.post(path, json=body)
    # A search request contains no arguments of a call, so the answer lists arguments and resource as unchecked.
    context = {"unchecked": ["arguments", "resource"]}
    assert (answer.status_code, answer.json()) == (200, {"results": answer.json()["results"], "context": context})
    return answer.json()["results"]


async def test_search_returns_exactly_the_entities_that_evaluations_allow(client: httpx.AsyncClient) -> None:
    assert await _results(client, SUBJECT, _who()) == CAN_SEARCH
    assert await _results(client, SUBJECT, wire(5, subject={"type": "user"})) == [
        CAN_SEARCH[0], {"type": "user", "id": "officer-124"}, CAN_SEARCH[1],
    ]  # fmt: skip
    assert await _results(client, RESOURCE, _which()) == PAYEES
    assert await _results(client, ACTION, _what()) == [
        {"name": "initiate_wire"}, {"name": "lookup_beneficiary"}, {"name": "validate_payment"},
    ]  # fmt: skip
    clerk = {"type": "user", "id": "clerk-1"}
    assert await _results(client, ACTION, _what(subject=clerk)) == [{"name": "lookup_beneficiary"}]

    for kind, path, body in (("subject", SUBJECT, _who()), ("resource", RESOURCE, _which())):
        found = await _results(client, path, body)
        known: Any = DIRECTORY["directory"][f"{kind}s"]
        for name in known[body[kind]["type"]]:
            entity = {**body[kind], "id": name}
            changes: dict[str, Any] = {kind: entity}
            answer = (await client.post("/access/v1/evaluation", json=wire(**changes))).json()
            assert answer["decision"] == (entity in found)


async def test_search_ignores_the_id_of_the_searched_entity(client: httpx.AsyncClient) -> None:
    searched = {"type": "user", "id": 7, "properties": {"scopes": ["everything"]}}

    assert await _results(client, SUBJECT, wire(subject=searched)) == CAN_SEARCH


async def test_authzen_search_with_unknown_entities_finds_nothing(client: httpx.AsyncClient) -> None:
    nobody = {"type": "user", "id": "nobody"}
    assert await _results(client, SUBJECT, wire(subject={"type": "robot"})) == []
    assert await _results(client, SUBJECT, wire(subject={"type": "service"})) == []
    assert await _results(client, SUBJECT, _who(action={"name": "fly"})) == []
    assert await _results(client, RESOURCE, _which(subject=nobody)) == []
    assert await _results(client, RESOURCE, wire(resource={"type": "corpus"})) == []
    assert await _results(client, ACTION, _what(subject=nobody)) == []


DEEP = base64.urlsafe_b64encode(b"[" * 1000 + b"]" * 1000).decode()


UNASKABLE: list[tuple[str, dict[str, Any], str]] = [
    (SUBJECT, _who(resource={"type": "x"}), "resource.id is missing"),
    (SUBJECT, wire(subject={}), "subject.type is missing"),
    (SUBJECT, {"subject": {"type": "user"}, "resource": PAYEE}, "action is missing"),
    (RESOURCE, {"resource": {"type": "x"}, "action": WIRE}, "subject is missing"),
    (ACTION, {"subject": ME}, "resource is missing"),
    (ACTION, _what(page=[]), "page must be an object"),
    (ACTION, _what(page={"limit": -1}), "page.limit is not valid: Input should be greater than or equal to 0"),
    (ACTION, _what(page={"limit": True}), "page.limit is not valid: Input should be a valid integer"),
    (ACTION, _what(page={"token": 1}), "page.token must be a text"),
    (ACTION, _what(page={"token": "é.x"}), "page.token is not valid for this search"),
    (ACTION, _what(page={"token": "W10=.x"}), "page.token is not valid for this search"),
    (ACTION, _what(page={"token": f"{DEEP}.x"}), "page.token is not valid for this search"),
    (ACTION, _what(context={"time": "x"}), "context.time is set by the service"),
]


async def test_malformed_searches_are_rejected(client: httpx.AsyncClient) -> None:
    for path, body, message in UNASKABLE:
        answer = await client.post(path, json=body)
        assert (answer.status_code, answer.json()) == (400, message)


async def test_search_for_another_subject_requires_the_scope_assert(served: ServedApp) -> None:
    own = served.client(["decide"], OFFICER)

    assert await _results(own, RESOURCE, _which()) == PAYEES
    for path, body in ((SUBJECT, _who()), (SUBJECT, {}), (ACTION, _what(subject={"type": "user", "id": "clerk-1"}))):
        assert (await own.post(path, json=body)).status_code == 403


async def test_search_pages_together_contain_all_results(client: httpx.AsyncClient) -> None:
    first = (await client.post(RESOURCE, json=_which(page={"limit": 1}))).json()
    token = first["page"]["next_token"]
    second = (await client.post(RESOURCE, json=_which(page={"token": token}))).json()
    third = (await client.post(RESOURCE, json=_which(page={"token": second["page"]["next_token"], "limit": 1}))).json()

    assert list(first) == ["page", "results", "context"]
    assert [first["results"], second["results"], third] == [
        PAYEES[:1], PAYEES[1:], {"page": {"next_token": ""}, "results": [], "context": first["context"]},
    ]  # fmt: skip
    whole = (await client.post(RESOURCE, json=_which(page={}))).json()
    assert whole == {"page": {"next_token": ""}, "results": PAYEES, "context": first["context"]}
    nothing = (await client.post(RESOURCE, json=_which(page={"limit": 0}))).json()
    assert (nothing["results"], nothing["page"]["next_token"] != "") == ([], True)


async def test_page_token_of_another_search_is_rejected(served: ServedApp, client: httpx.AsyncClient) -> None:
    first = (await client.post(RESOURCE, json=_which(page={"limit": 1}))).json()
    token = first["page"]["next_token"]
    somebody = served.client(["decide", "assert"], {})
    for asking, path, body in (
        (client, RESOURCE, _which(page={"token": token, "limit": 2})),
        (client, RESOURCE, wire(7, resource={"type": "wire_payment"}, page={"token": token})),
        (client, SUBJECT, _who(page={"token": token})),
        (somebody, RESOURCE, _which(page={"token": token})),
        (client, RESOURCE, _which(page={"token": f"x{token}"})),
    ):
        answer = await asking.post(path, json=body)
        assert (answer.status_code, answer.json()[:11]) == (
            400,
            "page.token " if "limit" not in body["page"] else "page.limit ",
        )


async def test_page_token_signed_with_a_guessed_key_is_rejected(client: httpx.AsyncClient) -> None:
    principal = client.headers["authorization"].removeprefix("Bearer pdp_")[:16]
    question = canonical(["default", principal, "resource", _which()])
    content = base64.urlsafe_b64encode(canonical([1_000_000, None, None]))
    for name in (b"default", b""):
        seal = keyed_hash(name, b"tool-pdp search page")
        token = f"{content.decode()}.{seal(content + b'.' + question)}"
        answer = await client.post(RESOURCE, json=_which(page={"token": token}))
        assert (answer.status_code, answer.json()) == (400, "page.token is not valid for this search")


async def test_page_token_of_another_policy_revision_is_rejected(served: ServedApp, client: httpx.AsyncClient) -> None:
    first = (await client.post(RESOURCE, json=_which(page={"limit": 1}))).json()
    principal = client.headers["authorization"].removeprefix("Bearer pdp_")[:16]
    question = canonical(["default", principal, "resource", _which()])
    seal = served.service.tenants["default"].access.seal
    limit, after, known = json.loads(base64.urlsafe_b64decode(first["page"]["next_token"].partition(".")[0]))

    for revision, status in ((known, 200), ("sha256:older", 400)):
        content = base64.urlsafe_b64encode(canonical([limit, after, revision]))
        token = f"{content.decode()}.{seal(content + b'.' + question)}"
        answer = await client.post(RESOURCE, json=_which(page={"token": token}))
        assert answer.status_code == status
    assert answer.json() == "the policy has changed since the previous page"


async def test_search_is_recorded_once_with_a_result_digest(served: ServedApp, client: httpx.AsyncClient) -> None:
    await client.post(RESOURCE, json=_which(), headers={"X-Request-ID": "s-1"})

    audit = served.service.tenants["default"].pep.audit
    [event] = events(served)
    assert {name: value for name, value in event.items() if value not in (None, [])} == {
        "type": "access.search", "request_id": "s-1", "subject": "officer-123", "pdp_action": "initiate_wire",
        "result_digest": audit.digest(canonical(PAYEES)), "outcome": "not_executed", "seq": 0,
        **{name: event[name] for name in ("time", "arguments_digest", "bundle_revision", "prev_hash", "hash")},
    }  # fmt: skip
    lose_the_stream(served)
    assert (await client.post(RESOURCE, json=_which())).status_code == 503


async def test_one_search_evaluates_a_limited_number_of_entities(tmp_path: Path) -> None:
    people: dict[str, Any] = {f"clerk-{at:03}": {"scopes": []} for at in range(25)} | {
        "officer-123": {"scopes": ["payments.lookup"]}
    }
    data: dict[str, Any] = {"directory": {"subjects": {"user": people}}}
    url = empty_database("sqlite", tmp_path)
    tenant = tenant_on(url) | {"project": project_in(tmp_path, data)}
    asked = wire(subject={"type": "user"}, action={"name": "lookup_beneficiary"})
    async with service(tmp_path, url=url, tenants={"default": tenant}, limits={"batch": 2}) as served:
        client = served.client(["decide", "assert"], {})
        pages = [(await client.post(SUBJECT, json=asked)).json()]
        while token := pages[-1]["page"]["next_token"]:
            pages.append((await client.post(SUBJECT, json={**asked, "page": {"token": token}})).json())

    assert [page["results"] for page in pages] == [[], [{"type": "user", "id": "officer-123"}]]


@pytest.mark.parametrize(
    ("directory", "place"),
    [
        ({"subjects": []}, "subjects"),
        ({"resources": {"todo": 1}}, "resources.todo"),
        ({"subjects": {"user": {"alice": ["admin"]}}}, "subjects.user.alice"),
    ],
)
def test_malformed_directory_is_rejected_with_its_location(
    tmp_path: Path, directory: dict[str, Any], place: str
) -> None:
    file = tmp_path / "data.json"
    file.write_bytes(canonical({"directory": directory}))
    with pytest.raises(FileFaultsError, match=rf"data.json:1:\d+: `directory.{place}` must be a mapping"):
        read_data([file])
    with pytest.raises(UsageError, match=f"data: `directory.{place}` must be a mapping"):
        merged_data({"directory": directory})


async def test_metadata_lists_the_authzen_endpoints(tmp_path: Path) -> None:
    url = empty_database("sqlite", tmp_path)
    public = "https://pdp.example.com"
    endpoints = {
        "access_evaluation_endpoint": f"{public}/access/v1/evaluation",
        "access_evaluations_endpoint": f"{public}/access/v1/evaluations",
        "search_subject_endpoint": f"{public}/access/v1/search/subject",
        "search_resource_endpoint": f"{public}/access/v1/search/resource",
        "search_action_endpoint": f"{public}/access/v1/search/action",
    }
    async with service(tmp_path, url=url, public_url=f"{public}/") as served:
        anybody = served.client(token="")
        answers = [
            (await anybody.get(f"/.well-known/authzen-configuration{tenant}")) for tenant in ("", "/default", "/other")
        ]

    assert [(answer.status_code, answer.json()) for answer in answers] == [
        (200, {"policy_decision_point": public, **endpoints}),
        (200, {"policy_decision_point": f"{public}/default", **endpoints}),
        (404, "unknown tenant"),
    ]
    assert answers[0].headers["content-type"] == "application/json"
