"""The OpenAPI document describes every endpoint and answer of the application, and client generators can read it."""

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
from starlette.routing import Route

from pdp.service.openapi import openapi_document
from tests.service.authzen.questions import wire as question
from tests.support.payments import wire
from tests.support.service import APPROVER, OFFICER, ServedApp, service

DOCUMENT = openapi_document()
OPERATIONS = {
    (method, path): operation for path, methods in DOCUMENT["paths"].items() for method, operation in methods.items()
}
SESSION = {"facts": {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"}, "run_id": "run-1"}
SENT = {"execution": {"result": {"wire_id": "wire-1"}}}


def parts(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every object in the OpenAPI document, with the key of the object in the parent object."""
    if isinstance(value, dict):
        yield name, value
    for key, part in value.items() if isinstance(value, dict) else [(name, each) for each in value]:
        if isinstance(part, dict | list):
            yield from parts(part, key)


def closed(value: Any) -> Any:
    """Return the document with schemas that reject unknown fields, unless a schema allows unknown fields."""
    if isinstance(value, list):
        return [closed(part) for part in value]
    if not isinstance(value, dict):
        return value
    limit = {"additionalProperties": False} if isinstance(value.get("properties"), dict) and "type" in value else {}
    return {**limit, **{name: closed(part) for name, part in value.items()}}


STRICT = closed(DOCUMENT["components"])


class Story:
    """A client that checks every answer of the service against the OpenAPI document."""

    def __init__(self, served: ServedApp) -> None:
        self.clients = {
            "agent": served.client(["decide", "propose", "assert"], OFFICER),
            "supervisor": served.client(["approve"], APPROVER),
            "auditor": served.client(["audit"], {}),
            "admin": served.client(["admin"], {}),
            "anyone": served.client(token=""),
        }

    async def __call__(
        self, who: str, method: str, path: str, body: Any = None, status: int = 200, **names: str
    ) -> Any:
        answer = await self.clients[who].request(method, path.format(**names), json=body)
        assert answer.status_code == status, (path, answer.text)
        stated = OPERATIONS[method, path]["responses"][str(status)]
        if "content" not in stated:
            assert answer.content == b""
            return None
        kind, content = next(iter(stated["content"].items()))
        assert answer.headers["content-type"].partition(";")[0] == kind
        if kind != "application/json":
            return answer.text
        schema = jsonschema_rs.Draft202012Validator({**closed(content["schema"]), "components": STRICT})
        assert [f"{error.instance_path}: {error.message}" for error in schema.iter_errors(answer.json())] == []
        return answer.json()


def test_openapi_document_lists_every_endpoint_of_the_application(app_routes: list[Any]) -> None:
    served = {
        (method.lower(), route.path)
        for route in app_routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    # The pages of the console are for people and not part of the API.
    api = {(method, path) for method, path in served if not path.startswith("/console")}
    assert api - {("get", "/docs")} == set(OPERATIONS)


@pytest.fixture
async def app_routes(tmp_path: Path) -> list[Any]:
    async with service(tmp_path) as served:
        return list(served.app.routes)


def test_openapi_document_can_be_read_by_client_generators() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    used = {part["$ref"].removeprefix("#/components/schemas/") for _, part in parts(DOCUMENT) if "$ref" in part}
    assert used == schemas.keys()
    for name, part in parts(DOCUMENT):
        assert part.get("type") != "array" or isinstance(part.get("items"), dict), (name, part)
        if isinstance(part.get("properties"), dict):
            assert [key for key, schema in part["properties"].items() if isinstance(schema, bool)] == []
        if name == "requestBody":
            assert {"type": "null"} not in part["content"]["application/json"]["schema"].get("anyOf", ())
    names = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(set(names)) == len(names)
    undescribed = {name for name, schema in schemas.items() if not schema.get("description")}
    assert undescribed == {"JsonObject"}


async def test_service_answers_match_their_openapi_schemas(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        tell = Story(served)
        for path in ("/healthz", "/readyz", "/.well-known/authzen-configuration", "/openapi.json"):
            await tell("anyone", "get", path)
        await tell("anyone", "get", "/.well-known/authzen-configuration/{tenant}", tenant="default")

        order = {"name": "new", "scopes": ["approve"], "claims": APPROVER, "expires_in": 60}
        token = await tell("admin", "post", "/v1/tokens", order, 201)
        await tell("admin", "get", "/v1/tokens")
        await tell("admin", "delete", "/v1/tokens/{token_id}", None, 204, token_id=token["id"])

        await tell("agent", "get", "/v1/manifest")
        await tell("agent", "get", "/v1/tools")
        await tell("agent", "post", "/v1/tools", {"session": SESSION})

        permitted, refused = question(), question(47500)
        assert (await tell("agent", "post", "/access/v1/evaluation", permitted)).keys() == {"decision", "context"}
        assert not (await tell("agent", "post", "/access/v1/evaluation", refused))["decision"]
        await tell("agent", "post", "/access/v1/evaluations", {"evaluations": [permitted, refused]})
        await tell("agent", "post", "/access/v1/evaluations", permitted)
        await tell("agent", "post", "/access/v1/search/subject", {**permitted, "subject": {"type": "user"}})
        await tell("agent", "post", "/access/v1/search/resource", {**permitted, "resource": {"type": "wire_payment"}})
        await tell(
            "agent", "post", "/access/v1/search/action", {name: permitted[name] for name in ("subject", "resource")}
        )
        await tell("anyone", "post", "/access/v1/evaluation", permitted, 401)

        await tell("agent", "post", "/v1/proposals", {"plan": [wire()], "session": SESSION})
        await tell("agent", "post", "/v1/proposals", {"proposal": {"tool": "nothing"}, "run": False})
        ends: tuple[tuple[str, str, Any], ...] = (
            ("agent", "withdraw", {}),
            ("supervisor", "deny", {"reason": "no"}),
            ("supervisor", "grant", None),
        )
        for number, (who, step, body) in enumerate(ends):
            call: dict[str, Any] = {
                "id": f"{number:032}",
                "proposal": wire(reference=f"INV-{number}"),
                "session": {**SESSION, "idempotency_key": f"key-{number}"},
            }
            asked = await tell("agent", "post", "/v1/proposals", call)
            assert asked["verdict"] == "STEP_UP"
            await tell("agent", "get", "/v1/approvals/{approval_id}", approval_id=asked["approval"]["id"])
            await tell(who, "post", f"/v1/approvals/{{approval_id}}/{step}", body, approval_id=asked["approval"]["id"])
            await tell(who, "get", "/v1/approvals")
            answer = await tell("agent", "post", "/v1/proposals", call)
            assert answer["begun"] is (step == "grant")
        assert (await tell("agent", "post", "/v1/proposals/{call_id}/result", SENT, call_id=call["id"]))["executed"]
        await tell("agent", "post", "/v1/proposals/{call_id}/result", {}, 400, call_id=call["id"])
        assert (await tell("agent", "post", "/v1/proposals", {**call, "id": "9" * 32}))["replayed"]
        await tell("agent", "post", "/v1/runs/{run_id}/end", None, 204, run_id="run-1")
        await tell("anyone", "post", "/v1/hooks/{client}", {}, client="claude-code")

        await tell("auditor", "get", "/v1/audit")
        await tell("auditor", "get", "/metrics")
        await tell("supervisor", "post", "/v1/session", None, 204)
        await tell("supervisor", "delete", "/v1/session", None, 204)


async def test_docs_page_loads_only_files_of_this_service(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        client = served.client(token="")
        page = await client.get("/docs")
        policy, text = page.headers["content-security-policy"], page.text
        assets = re.findall(r'(?:href|src)="(.*?)"', text) + re.findall(r"url: '(.*?)'", text)
        answers: dict[str, httpx.Response] = {name: await client.get(str(page.url.join(name))) for name in assets}
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)

    assert len(assets) == 4
    assert {(name, answer.status_code, answer.url.host) for name, answer in answers.items()} == {
        (name, 200, page.url.host) for name in assets
    }
    assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy
    assert "http" not in policy
