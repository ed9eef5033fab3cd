"""The OpenAPI document says what the application serves: each route, and each example as it is answered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from itertools import zip_longest
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import jsonschema_rs

from pdp.service.app import HttpApp
from pdp.service.openapi import openapi_document
from pdp.service.settings import ServiceSettings, TenantSettings
from tests.support.payments import EXAMPLE
from tests.support.service import APPROVER, OFFICER, service

DOCUMENT = openapi_document()


class Step(NamedTuple):
    """One request of the story: who sends which example, and the status of the answer."""

    who: str
    method: str
    path: str
    example: str | None = None
    status: int = 200


PEOPLE: dict[str, tuple[list[str], dict[str, Any]]] = {
    "nobody": ([], {}),
    "agent": (["decide", "propose", "assert"], OFFICER),
    "supervisor": (["approve"], APPROVER),
    "auditor": (["audit"], {}),
    "admin": (["admin"], {}),
}
STORY = (
    Step("nobody", "get", "/healthz"),
    Step("nobody", "get", "/readyz"),
    Step("nobody", "get", "/.well-known/authzen-configuration"),
    Step("nobody", "get", "/.well-known/authzen-configuration/{tenant}"),
    Step("admin", "post", "/v1/tokens", "supervisor", 201),
    Step("admin", "get", "/v1/tokens"),
    Step("admin", "delete", "/v1/tokens/{id}", None, 204),
    Step("agent", "get", "/openapi.json"),
    Step("agent", "get", "/v1/manifest"),
    Step("agent", "get", "/v1/tools"),
    Step("agent", "post", "/v1/tools", "visible"),
    Step("agent", "post", "/access/v1/evaluation", "permitted"),
    Step("agent", "post", "/access/v1/evaluation", "step_up"),
    Step("agent", "post", "/access/v1/evaluations", "two"),
    Step("agent", "post", "/access/v1/search/subject", "who"),
    Step("agent", "post", "/access/v1/search/resource", "which"),
    Step("agent", "post", "/access/v1/search/action", "what"),
    Step("agent", "post", "/v1/proposals", "plan"),
    Step("agent", "post", "/v1/proposals", "decided"),
    Step("agent", "post", "/v1/proposals", "to_withdraw"),
    Step("agent", "post", "/v1/approvals/{approval_id}/withdraw", "withdrawn"),
    Step("agent", "post", "/v1/proposals", "to_deny"),
    Step("supervisor", "post", "/v1/approvals/{approval_id}/deny", "denied"),
    Step("agent", "post", "/v1/proposals", "step_up"),
    Step("supervisor", "get", "/v1/approvals"),
    Step("agent", "get", "/v1/approvals/{approval_id}"),
    Step("supervisor", "post", "/v1/approvals/{approval_id}/grant", "nothing"),
    Step("agent", "post", "/v1/proposals", "granted"),
    Step("agent", "post", "/v1/proposals/{call_id}/result", "sent"),
    Step("agent", "post", "/v1/proposals", "replayed"),
    Step("agent", "post", "/v1/runs/{run_id}/end", "end", 204),
    Step("agent", "post", "/v1/hooks/{client}", "denied"),
    Step("auditor", "get", "/v1/audit"),
    Step("auditor", "get", "/metrics"),
    Step("supervisor", "post", "/v1/session", None, 204),
    Step("supervisor", "delete", "/v1/session", None, 204),
)
# Their examples are shorter than the answers, and the others' are whole.
LONG = ("/openapi.json", "/v1/manifest")
NUMBERS = ("age_seconds", "running_until")
# Of these, an example shows one; where two of its ids are the same, so are those of the answers.
PLACEHOLDER = re.compile(
    r"((?:hmac-)?sha256:[0-9a-f]{64}|pdp_[\w-]{59}|\b[0-9a-f]{32}\b|\b[0-9a-f]{16}\b|\d{4}-\d\d-\d\dT[\d:.]+Z)",
    re.ASCII,
)


def test_the_document_and_the_application_name_the_same_endpoints() -> None:
    tenant = TenantSettings(project=EXAMPLE / "pdp.yaml", store="sqlite://")
    app = HttpApp(ServiceSettings(tenants={"default": tenant}))
    served = {
        (path, method.lower()) for path, methods in app.routes.paths.items() for method in methods.keys() - {"HEAD"}
    }
    named = {(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert served == named


def test_the_story_tells_every_example() -> None:
    told = {(step.path, step.method, step.example) for step in STORY}
    shown = {
        (path, method, example)
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
        for example in body_examples(operation) or [None]
    }
    # A stream, which tests/service/approvals follows.
    assert shown - told == {("/v1/approvals/events", "get", None)}
    assert told <= shown


def test_every_example_keeps_its_schema() -> None:
    faults = [
        (path, method, name, str(error.message))
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
        for part in [operation.get("requestBody", {}), *map(resolved, operation["responses"].values())]
        for kind, content in part.get("content", {}).items()
        for name, example in content["examples"].items()
        for error in validator(content["schema"]).iter_errors(example["value"])
    ]
    assert faults == []


async def test_every_example_is_answered_as_it_says(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        clients: dict[str, httpx.AsyncClient] = {}
        real: dict[str, str] = {}
        for step in STORY:
            if step.who not in clients:
                scopes, claims = PEOPLE[step.who]
                clients[step.who] = served.client(scopes, claims, token=None if scopes else "")
            answer = await send(clients[step.who], step, real)
            assert answer.status_code == step.status, (step, answer.text)
            differences = list(check(step, answer, real))
            assert differences == [], (step, answer.text)


async def send(client: httpx.AsyncClient, step: Step, real: dict[str, str]) -> httpx.Response:
    operation = DOCUMENT["paths"][step.path][step.method]
    stated = [resolved(parameter) for parameter in operation.get("parameters", ())]
    shown = [each for each in stated if "example" in each]
    given = {
        place: {each["name"]: with_real_ids(each["example"], real) for each in shown if each["in"] == place}
        for place in ("path", "query")
    }
    bodies = body_examples(operation)
    return await client.request(
        step.method, step.path.format(**given["path"]), params=given["query"],
        json=with_real_ids(bodies[step.example]["value"], real) if step.example in bodies else None,
    )  # fmt: skip


def check(step: Step, answer: httpx.Response, real: dict[str, str]) -> Iterator[str]:
    """Yield what an answer has that its schema does not allow, and how it is not the example."""
    stated = resolved(DOCUMENT["paths"][step.path][step.method]["responses"][str(step.status)])
    for name, header in stated.get("headers", {}).items():
        if resolved(header).get("required") and name not in answer.headers:
            yield f"no header {name}"
    if "content" not in stated:
        yield from [answer.text] if answer.content else []
        return
    kind, content = next(iter(stated["content"].items()))
    if not answer.headers["content-type"].startswith(kind):
        yield answer.headers["content-type"]
    body: Any = answer.json() if kind == "application/json" else answer.text
    schema = validator(content["schema"])
    yield from (f"{error.instance_path}: {error.message}" for error in schema.iter_errors(body))
    examples = content["examples"]
    example = examples[step.example] if step.example in examples else next(iter(examples.values()))
    shown: Any = example["value"]
    if step.path in LONG:
        shown, body = (
            {name: part[name] for name in ("openapi", "version", "digest") if name in part} for part in (shown, body)
        )
    if step.path != "/metrics":
        yield from differences(shown, body, real, "")


def validator(schema: dict[str, Any]) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({**schema, "components": DOCUMENT["components"]})


def differences(shown: Any, actual: Any, real: dict[str, str], at: str) -> Iterator[str]:
    """Yield where an answer is not what is shown; ids are those of the run, and the same where they are the same."""
    if isinstance(shown, dict) and isinstance(actual, dict):
        for name in sorted(shown.keys() | actual.keys()):
            yield from differences(shown.get(name), actual.get(name), real, f"{at}.{name}")
    elif isinstance(shown, list) and isinstance(actual, list):
        for place, (one, other) in enumerate(zip_longest(shown, actual)):
            yield from differences(one, other, real, f"{at}[{place}]")
    elif isinstance(shown, str) and isinstance(actual, str):
        for place, (one, other) in enumerate(zip_longest(PLACEHOLDER.split(shown), PLACEHOLDER.split(actual))):
            # Between two placeholders stands text; two times may be the same by chance.
            known = (
                one if place % 2 == 0 else other if str(one).endswith("Z") else real.setdefault(str(one), str(other))
            )
            if other != known:
                yield f"{at}: {other!r} for {known!r}, shown as {one!r}"
    elif shown != actual and not (at.endswith(NUMBERS) and type(shown) is type(actual)):
        yield f"{at}: {actual!r} for {shown!r}"


def with_real_ids(value: Any, real: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: with_real_ids(part, real) for name, part in value.items()}
    if isinstance(value, list):
        return [with_real_ids(part, real) for part in value]
    return real.get(value, value) if isinstance(value, str) else value


def body_examples(operation: dict[str, Any]) -> dict[str, Any]:
    content = operation.get("requestBody", {}).get("content", {})
    examples: dict[str, Any] = content.get("application/json", {}).get("examples", {})
    return examples


def resolved(part: dict[str, Any]) -> dict[str, Any]:
    names = part["$ref"].removeprefix("#/").split("/") if "$ref" in part else []
    whole: dict[str, Any] = reduce(getitem, names, DOCUMENT) if names else part
    return whole
