"""A service in another process sends approval events as a stream of server-sent events."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.service.approvals.elsewhere import Elsewhere, elsewhere
from tests.support import PATIENCE
from tests.support.postgres import DATABASES
from tests.support.service import APPROVER, OFFICER, RunningService, running_service

pytestmark = pytest.mark.process

CLERK = {**OFFICER, "sub": "officer-9"}


class Inbox:
    """A client of one event stream. Each event has a number, a type and an approval id."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def next(self) -> tuple[int, str, str] | None:
        """Return the next event, or None at the end of the stream."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(PATIENCE):
            async for line in self._lines:
                if not line and fields:
                    assert fields.keys() == {"id", "event", "data"}
                    data = json.loads(fields["data"])
                    assert data.keys() == {"id"}
                    return int(fields["id"]), fields["event"], data["id"]
                name, _, value = line.partition(": ")
                if name:
                    fields[name] = value
        return None

    async def told(self) -> tuple[int, str, str]:
        event = await self.next()
        assert event is not None
        return event


@asynccontextmanager
async def inbox(running: RunningService, token: str, **headers: str) -> AsyncIterator[Inbox]:
    async with (
        httpx.AsyncClient(base_url=running.url, headers={"Authorization": f"Bearer {token}", **headers}) as client,
        client.stream("GET", "/v1/approvals/events", timeout=PATIENCE) as answer,
    ):
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert answer.headers["cache-control"].startswith("no-store")
        yield Inbox(answer.aiter_lines())


@pytest.mark.parametrize("database", DATABASES)
async def test_event_stream_sends_events_of_all_processes_in_order(database: str, tmp_path: Path) -> None:
    with running_service(tmp_path, database) as running, elsewhere(running.store) as other:
        before = other.opened(purpose="before")
        async with inbox(running, running.token(["approve"], APPROVER)) as stream:
            approval = await asyncio.to_thread(other.opened)
            await asyncio.to_thread(other.approvals.grant, approval.id, APPROVER)
            answer = await asyncio.to_thread(
                running.client(["approve"], APPROVER).post, f"/v1/approvals/{approval.id}/deny"
            )
            assert answer.status_code == 200
            told = [await stream.told() for _ in range(3)]
        assert told == other.events()[1:]
        assert [(step, of) for _, step, of in told] == [
            ("approval.opened", approval.id), ("approval.granted", approval.id), ("approval.denied", approval.id),
        ]  # fmt: skip

        first = str(other.events()[0][0])
        async with inbox(running, running.token(["approve"], APPROVER), **{"Last-Event-ID": first}) as stream:
            assert [await stream.told() for _ in range(3)] == other.events()[-3:]
        assert other.approvals.get(before.id).state == "pending"

        # A requester gets only events about approvals of their own calls.
        async with inbox(running, running.token(["propose"], CLERK)) as stream:
            await asyncio.to_thread(other.opened, purpose="another")
            own = await asyncio.to_thread(other.opened, CLERK)
            assert (await stream.told())[1:] == ("approval.opened", own.id)


async def test_event_stream_ends_when_its_token_is_revoked(tmp_path: Path) -> None:
    with running_service(tmp_path) as running, elsewhere(running.store) as other:
        admin = running.client(["admin"], {})
        made = admin.post("/v1/tokens", json={"name": "inbox", "scopes": ["approve"], "claims": APPROVER}).json()
        async with inbox(running, made["token"]) as stream:
            await asyncio.to_thread(other.opened)
            assert await stream.next() == other.events()[-1]
            assert admin.delete(f"/v1/tokens/{made['id']}").status_code == 204
            # The service takes seconds to notice the revocation. Until then, the stream may still send events.
            told = 0
            while await next_after(other, stream, f"step {told}") is not None:
                told += 1
        admin.headers["Authorization"] = f"Bearer {made['token']}"
        assert admin.get("/v1/approvals/events").status_code == 401


async def next_after(other: Elsewhere, stream: Inbox, purpose: str) -> tuple[int, str, str] | None:
    await asyncio.to_thread(other.opened, purpose=purpose)
    return await stream.next()


async def test_event_stream_ends_when_the_service_stops(tmp_path: Path) -> None:
    with running_service(tmp_path) as running, elsewhere(running.store) as other:
        approval = other.opened()
        token = running.token(["approve"], APPROVER)
        async with (
            inbox(running, token) as stream,
            httpx.AsyncClient(base_url=running.url, headers={"Authorization": f"Bearer {token}"}) as client,
        ):
            path = f"/v1/approvals/{approval.id}?wait=55s"
            wait = asyncio.create_task(client.get(path, timeout=PATIENCE))
            await asyncio.wait((wait,), timeout=1)
            running.process.send_signal(signal.SIGTERM)
            assert await stream.next() is None
            page = f"{running.url}/console/approvals/{approval.id}"
            assert (await wait).json() == {**approval.as_json(), "url": page}
        assert await asyncio.to_thread(running.process.wait, PATIENCE) == 0
        assert "Traceback" not in running.log.read_text()


async def test_service_rejects_invalid_requests_for_an_event_stream(tmp_path: Path) -> None:
    with running_service(tmp_path, limits={"waiting": 1}) as running:
        client = running.client(["approve"], APPROVER)
        for last in ("x", "-1", "1" * 19, "\xb3", ""):
            answer = client.get("/v1/approvals/events", headers=[(b"Last-Event-ID", last.encode("latin-1"))])
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "service.bad_request")
        assert client.get("/v1/approvals/events?token=x").status_code == 400
        assert running.client(["decide", "audit"]).get("/v1/approvals/events").status_code == 403
        other = running.client(["approve"])
        other.headers["Authorization"] = "Basic eDp4"
        assert other.get("/v1/approvals/events").status_code == 401
        async with inbox(running, running.token(["approve"], APPROVER)):
            answer = client.get("/v1/approvals/events")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
