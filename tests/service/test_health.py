"""Liveness and readiness of the service. The audit stream can be read page by page."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from pdp.engine.bundle.file import read_bundle
from pdp.service.approvals import sweep
from pdp.stores.sql import events
from pdp.stores.sql.tables import SCHEMA
from tests.support import PATIENCE, ROOT
from tests.support.hostile_opa import HostileOpa, Peer, http, result
from tests.support.postgres import DATABASES, empty_database
from tests.support.servers.opa import KINDS, opa_server, url_of
from tests.support.service import service, tenant_on

BUNDLE = read_bundle(ROOT / "bundles" / "payments.tar.gz")
DENY = (
    b'{"verdict":"DENY","reasons":[{"code":"x.y","message":"","details":{}}],"obligations":[],'
    b'"bundle":{"revision":"r","release":1}}'
)
EVALUATION = {
    "subject": {"type": "user", "id": "officer-123"},
    "action": {"name": "payments.lookup"},
    "resource": {"type": "account", "id": "1"},
}


def aged(answer: dict[str, Any]) -> dict[str, Any]:
    """Return a readiness answer without the age of the bundle, which differs in each answer."""
    age = answer["engine"].pop("age_seconds", 0)
    assert age >= 0
    return answer


@pytest.mark.parametrize("database", DATABASES)
async def test_service_is_ready_with_working_engine_and_store(tmp_path: Path, database: str) -> None:
    async with service(tmp_path, database) as served:
        client = served.client(token="")
        alive, ready = await client.get("/healthz"), await client.get("/readyz")
        assert [(await client.head(path)).status_code for path in ("/healthz", "/readyz")] == [200, 200]

    assert (alive.status_code, alive.json()) == (200, {"status": "ok"})
    assert (ready.status_code, aged(ready.json())) == (
        200,
        {
            "status": "ready",
            "engine": {
                "status": "ready",
                "name": "embedded",
                "bundle_revision": BUNDLE.revision,
                "release": BUNDLE.release,
            },
            "store": {"status": "ready", "revision": "0007"},
        },
    )


@pytest.mark.parametrize("database", DATABASES)
async def test_service_is_unready_with_tables_of_another_release(tmp_path: Path, database: str) -> None:
    url = empty_database(database, tmp_path)
    async with service(tmp_path, url=url) as served:
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text("UPDATE pdp_schema SET version_num = '0099'"))
        engine.dispose()
        ready = await served.client(token="").get("/readyz")

    assert (ready.status_code, ready.json()["status"], ready.json()["store"]) == (
        503,
        "unready",
        {
            "status": "unready",
            "code": "store.schema",
            "reason": "the database's tables belong to another release of tool-pdp",
        },
    )


async def test_service_is_unready_if_its_opa_is_down(tmp_path: Path) -> None:
    tenant = tenant_on(f"sqlite:///{tmp_path}/store.db", opa_url=f"unix://{tmp_path}/nobody.sock")
    async with service(tmp_path, tenants={"default": tenant}) as served:
        ready = await served.client(token="").get("/readyz")

    assert (ready.status_code, ready.json()) == (
        503,
        {
            "status": "unready",
            "engine": {
                "status": "unready",
                "name": "sidecar",
                "code": "engine.unavailable",
                "reason": "the engine does not decide; see the log",
            },
            "store": {"status": "ready", "revision": "0007"},
        },
    )


@pytest.mark.opa
@pytest.mark.parametrize("loaded", [False, True], ids=["no policy", "a policy and a missing bundle"])
@pytest.mark.parametrize("kind", KINDS)
async def test_service_is_unready_if_opa_has_no_active_bundle(kind: str, tmp_path: Path, loaded: bool) -> None:
    options = ("--set=services.x.url=http://127.0.0.1:1", "--set=bundles.late.service=x")
    with opa_server(kind, *options) as client:
        if loaded:
            text = (
                (ROOT / "tests/support/rego_sidecar/decision.rego")
                .read_text()
                .replace("null", '{"revision":"r","release":1}')
            )
            client.update_policy_from_string(text, "decision.rego", rego_compat=False)
        tenant = tenant_on(f"sqlite:///{tmp_path}/store.db", opa_url=url_of(client))
        async with service(tmp_path, tenants={"default": tenant}) as served:
            ready = await served.client(token="").get("/readyz")

    assert (ready.status_code, ready.json()["engine"]) == (
        503,
        {
            "status": "unready",
            "name": "sidecar",
            "code": "engine.not_ready",
            "reason": "OPA has not activated its bundles, or a plugin is not ready; see: pdp opa status",
        },
    )


@pytest.mark.parametrize(("answers", "code"), [(True, "engine.not_ready"), (False, "engine.timeout")])
async def test_service_is_unready_if_opa_does_not_report_its_health(tmp_path: Path, answers: bool, code: str) -> None:
    def behave(peer: Peer) -> None:
        while peer.request():
            if peer.last_request.startswith(b"POST"):
                peer.send(result(DENY))
            elif answers:
                peer.send(http(b"{}", status=b"401 Unauthorized"))
            else:
                peer.wait_until_closed()

    with HostileOpa(behave) as opa:
        tenant = tenant_on(f"sqlite:///{tmp_path}/store.db", opa_url=opa.url)
        async with service(tmp_path, tenants={"default": tenant}) as served:
            ready = await served.client(token="").get("/readyz")

    assert (ready.status_code, ready.json()["engine"]["code"]) == (503, code)


async def test_log_says_once_that_engine_and_store_are_down_and_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_WATCH_SECONDS", 0.05)
    url, is_down = empty_database("sqlite", tmp_path), False

    def behave(peer: Peer) -> None:
        while peer.request():
            good = result(DENY) if peer.last_request.startswith(b"POST") else http(b"{}")
            peer.send(http(b"{}", status=b"500 No") if is_down else good)

    def changes() -> list[str]:
        return [
            f"{each.levelname} {each.getMessage()}" for each in caplog.records if "default: the " in each.getMessage()
        ]

    with HostileOpa(behave) as opa:
        async with service(tmp_path, url=url, tenants={"default": tenant_on(url, opa_url=opa.url)}) as served:
            for is_down in (True, False):
                caplog.clear()
                engine = create_engine(url)
                with engine.begin() as connection:
                    revision = {"to": "0099" if is_down else SCHEMA}
                    connection.execute(text("UPDATE pdp_schema SET version_num = :to"), revision)
                engine.dispose()
                async with asyncio.timeout(PATIENCE):
                    while len(changes()) < 2:  # noqa: ASYNC110 - the log has no event
                        await asyncio.sleep(0.01)
                for _ in range(3):
                    served.service.readiness._until = 0.0
                    await served.service.readiness.answer()
                shown = sorted(re.sub(r"\d+ s|: .*", "", change.partition("default: ")[2]) for change in changes())
                word = "down" if is_down else "back after "
                assert shown == [f"the engine is {word}", f"the store is {word}"]
                assert {change.partition(" ")[0] for change in changes()} == {"ERROR" if is_down else "WARNING"}


async def test_readiness_does_not_reveal_which_tenant_is_unready(tmp_path: Path) -> None:
    tenants = {
        "default": tenant_on(f"sqlite:///{tmp_path}/a.db"),
        "other": tenant_on(f"sqlite:///{tmp_path}/b.db", opa_url=f"unix://{tmp_path}/nobody.sock"),
    }
    async with service(tmp_path, tenants=tenants) as served:
        ready = await served.client(token="").get("/readyz")

    assert (ready.status_code, ready.json()) == (503, {"status": "unready"})


@pytest.mark.parametrize("database", DATABASES)
async def test_audit_events_are_read_in_pages(tmp_path: Path, database: str) -> None:
    async with service(tmp_path, database) as served:
        client = served.client(["decide", "audit"])
        for _ in range(3):
            assert (await client.post("/access/v1/evaluation", json=EVALUATION)).status_code == 200
        first = (await client.get("/v1/audit", params={"limit": 2})).json()
        rest = (await client.get("/v1/audit", params={"after": first["last"]})).json()
        none = (await client.get("/v1/audit", params={"after": rest["last"]})).json()

    events = [*first["events"], *rest["events"]]
    assert [(event["seq"], event["type"]) for event in events] == [(seq, "access.evaluation") for seq in range(3)]
    assert [event["hash"] for event in events][:-1] == [event["prev_hash"] for event in events][1:]
    assert (first["last"], rest["last"], none) == (1, 2, {"events": [], "last": 2})


async def test_audit_events_are_filtered_and_pages_continue_after_the_last_searched_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "SEARCHED", 3)
    async with service(tmp_path) as served:
        client = served.client(["audit"])
        log = served.service.tenants["default"].stream
        for number in range(10):
            log.append({
                "time": f"2026-07-{number + 1:02}T10:00:00.000Z", "type": "tool.pay.dispatch", "verdict": "DENY",
                "tool_name": f"pay{number % 2}", "run_id": "r", "subject": "ann", "codes": (f"a.{number % 5}",),
            })  # fmt: skip

        async def found(**wanted: str) -> list[int]:
            numbers: list[int] = []
            after = -1
            while True:
                answer = await client.get("/v1/audit", params={**wanted, "after": after, "limit": 2})
                numbers += [event["seq"] for event in answer.json()["events"]]
                if answer.json()["last"] == after:
                    return numbers
                after = answer.json()["last"]

        assert await found() == await found(run_id="r", subject="ann") == [*range(10)]
        assert await found(tool="pay1") == [1, 3, 5, 7, 9]
        assert await found(code="a.3") == [3, 8]
        assert await found(since="2026-07-03T12:00:00+02:00", until="2026-07-05T10:00:00Z") == [2, 3]
        assert await found(subject="bob") == await found(code="a") == []
        wrong = [
            await client.get("/v1/audit", params={"since": text}) for text in ("x", "2026-07-03", "2026-07-03T12:00")
        ]
        assert [answer.status_code for answer in wrong] == [400] * 3


async def test_audit_endpoint_rejects_invalid_pages_and_missing_scopes(tmp_path: Path) -> None:
    queries = (
        "after=x", "after=-2", "after=9223372036854775808", "limit=0", "limit=101", "limit=٣", "limit=%2B1",
        "limit=1_0", "after=1.0", "after=%201",
    )  # fmt: skip
    async with service(tmp_path) as served:
        auditor, nobody = served.client(["audit"]), served.client(token="")
        other = served.client(["decide", "propose", "approve", "admin", "assert"])
        for query in queries:
            answer = await auditor.get(f"/v1/audit?{query}")
            assert (query, answer.status_code, answer.json()["error"]["code"]) == (query, 400, "service.bad_request")
        for path in ("/v1/audit", "/metrics"):
            assert [(await client.get(path)).status_code for client in (nobody, other)] == [401, 403]
