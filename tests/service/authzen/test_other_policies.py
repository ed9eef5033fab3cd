"""The AuthZEN endpoints work with a policy that is not about tool calls: the Todo scenario of AuthZEN."""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pdp.engine.bundle.file import Bundle
from pdp.opa.local import local_opa
from pdp.service.settings import AuthzenSettings
from tests.service.authzen.conftest import events
from tests.support import ROOT
from tests.support.postgres import empty_database
from tests.support.service import ServedApp, service, tenant_on

pytestmark = pytest.mark.opa

POLICY = ROOT / "tests/support/rego_todo/todo.rego"


def _person(name: str, *roles: str) -> dict[str, Any]:
    return {"email": f"{name}@smiths.example", "roles": list(roles)}


DATA = {
    "directory": {
        "subjects": {
            "user": {
                "rick": _person("rick", "admin", "evil_genius"),
                "morty": _person("morty", "editor"),
                "summer": _person("summer", "editor"),
                "beth": _person("beth", "viewer"),
                "jerry": _person("jerry", "viewer"),
            }
        },
        "resources": {
            "todo": {
                "todo-1": {"ownerID": "rick@smiths.example"},
                "todo-2": {"ownerID": "morty@smiths.example"},
                "todo-3": {"ownerID": "morty@smiths.example"},
            }
        },
    }
}

Opened = Callable[..., AbstractAsyncContextManager[ServedApp]]


@pytest.fixture
def url(opa: Path) -> Iterator[str]:
    """Run an OPA with the Todo policy and return its URL."""
    bundle = Bundle("todo", 0, b"", DATA, {"custom/todo.rego": POLICY.read_text()}, 0)
    with local_opa(opa, bundle=bundle) as running:
        yield running.url


@pytest.fixture
def opened(tmp_path: Path, url: str) -> Opened:
    def open_with(entrypoint: str = "custom/todo/allow", **searches: str) -> AbstractAsyncContextManager[ServedApp]:
        store = empty_database("sqlite", tmp_path)
        authzen = AuthzenSettings(entrypoint=entrypoint, opa_url=url, **searches)
        return service(tmp_path, url=store, tenants={"default": tenant_on(store, authzen=authzen)})

    return open_with


def _client(served: ServedApp) -> httpx.AsyncClient:
    return served.client(["decide", "assert"], {})


def _asked(who: str, action: str, owner: str = "rick", **more: Any) -> dict[str, Any]:
    todo = {"type": "todo", "id": "todo-9", "properties": {"ownerID": f"{owner}@smiths.example"}}
    return {"subject": {"type": "user", "id": who}, "action": {"name": action}, "resource": todo, **more}


PERMITTED = [
    ("rick", "can_read_user", "rick", True), ("jerry", "can_read_user", "rick", True),
    ("nobody", "can_read_user", "rick", False), ("beth", "can_read_todos", "rick", True),
    ("rick", "can_create_todo", "rick", True), ("summer", "can_create_todo", "rick", True),
    ("jerry", "can_create_todo", "rick", False), ("rick", "can_update_todo", "morty", True),
    ("morty", "can_update_todo", "morty", True), ("morty", "can_update_todo", "rick", False),
    ("beth", "can_update_todo", "beth", False), ("rick", "can_delete_todo", "morty", True),
    ("summer", "can_delete_todo", "summer", True), ("summer", "can_delete_todo", "morty", False),
    ("rick", "can_fly", "rick", False),
]  # fmt: skip


async def test_authzen_todo_scenario_passes_as_single_requests_and_as_a_batch(opened: Opened) -> None:
    async with opened() as served:
        client = _client(served)
        asked = [_asked(who, action, owner) for who, action, owner, _ in PERMITTED]
        answers = [(await client.post("/access/v1/evaluation", json=one)).json() for one in asked]
        batch = (await client.post("/access/v1/evaluations", json={"evaluations": asked})).json()

        assert answers == [{"decision": decision} for *_, decision in PERMITTED]
        assert batch == {"evaluations": answers}
        recorded = events(served)
        assert [(event["verdict"], event["subject"], event["pdp_action"]) for event in recorded] == [
            ("ALLOW" if decision else "DENY", who, action) for who, action, _, decision in PERMITTED
        ] * 2


async def test_separately_configured_policy_gets_the_authzen_request_unchanged(opened: Opened) -> None:
    async with opened() as served:
        asked = _asked("beth", "can_update_todo", context={"time": "1985-10-26T01:22-07:00", "approval": 1})
        asked["subject"]["properties"] = {"roles": ["evil_genius"]}

        assert (await _client(served).post("/access/v1/evaluation", json=asked)).json() == {"decision": True}


async def test_custom_policy_entrypoint_may_return_a_context_or_only_a_boolean_but_not_an_invalid_answer(
    opened: Opened,
) -> None:
    async with opened("custom/todo/access") as served:
        answer = await _client(served).post("/access/v1/evaluation", json=_asked("morty", "can_delete_todo"))
        assert answer.json() == {"decision": False, "context": {"roles": ["editor"]}}
    async with opened("custom/todo/verdict") as served:
        for who, decision in (("rick", True), ("morty", False)):
            answer = await _client(served).post("/access/v1/evaluation", json=_asked(who, "can_delete_todo"))
            assert answer.json() == {"decision": decision}
    async with opened("custom/todo/broken") as served:
        answer = await _client(served).post("/access/v1/evaluation", json=_asked("rick", "can_delete_todo"))
        assert [reason["code"] for reason in answer.json()["context"]["reasons"]] == ["engine.answer_invalid"]


async def test_search_uses_the_directory_or_configured_rules(opened: Opened) -> None:
    async def found(client: httpx.AsyncClient, kind: str, who: str, action: str) -> Any:
        asked = {**_asked(who, action), kind: {"type": {"subject": "user"}.get(kind, "todo"), "id": "ignored"}}
        if kind == "action":
            asked = {**_asked(who, action)} | {"resource": {"type": "todo", "id": "todo-2"}}
        answer = await client.post(f"/access/v1/search/{kind}", json=asked)
        return (
            answer.json()
            if answer.status_code != 200
            else [item.get("id", item.get("name")) for item in answer.json()["results"]]
        )

    async with opened() as served:
        client = _client(served)
        assert await found(client, "subject", "", "can_create_todo") == ["morty", "rick", "summer"]
        assert await found(client, "resource", "morty", "can_update_todo") == ["todo-2", "todo-3"]
        assert await found(client, "action", "morty", "") == "this search is not supported"
        metadata = (await client.get("/.well-known/authzen-configuration")).json()
        assert "search_action_endpoint" not in metadata
        assert "search_subject_endpoint" in metadata
    async with opened(resource_search="custom/todo/owned", action_search="custom/todo/actions") as served:
        client = _client(served)
        assert await found(client, "resource", "morty", "can_update_todo") == ["todo-2", "todo-3"]
        assert await found(client, "resource", "rick", "can_update_todo") == ["todo-1"]
        assert await found(client, "action", "morty", "") == [
            "can_create_todo", "can_delete_todo", "can_read_todos", "can_read_user", "can_update_todo",
        ]  # fmt: skip
        assert await found(client, "action", "beth", "") == ["can_read_todos", "can_read_user"]
    async with opened(resource_search="custom/todo/unlisted") as served:
        assert await found(_client(served), "resource", "rick", "can_update_todo") == "a store or engine is unavailable"


@pytest.mark.parametrize(
    "stated",
    [
        {"entrypoint": "custom/todo/allow"},
        {"opa_url": "http://127.0.0.1"},
        {"action_search": "custom/todo/actions"},
        {"entrypoint": "../allow", "opa_url": "http://127.0.0.1"},
    ],
)
def test_service_rejects_incomplete_policy_settings(stated: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"entrypoint|opa_url"):
        AuthzenSettings(**stated)
