"""The decisions, one event and one run: filters, pages, hostile texts, and a chain that does not hold."""

import asyncio
import json
import re
from collections.abc import MutableMapping
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest
from sqlalchemy import text

from pdp.audit.chain import AuditEvent
from pdp.clock import to_milliseconds
from pdp.service.console.pages import decisions as decisions_module
from pdp.service.console.pages import runs as runs_module
from pdp.stores.sql import events as events_module
from pdp.stores.sql.database import Database
from tests.service.console import Visitor, signed_in, words_of
from tests.service.console.test_approvals import opened
from tests.support import PATIENCE
from tests.support.postgres import DATABASES
from tests.support.service import APPROVER, ServedApp, service

HOSTILE = "a/../<script>alert(1)</script>\u202e{{7*191}}\x00&id=b#?"
START = 1_782_900_000.0


def record(served: ServedApp, number: int, **fields: Any) -> None:
    event: AuditEvent = {"time": to_milliseconds(START + number), "type": "tool.pay.dispatch", "tool_name": "pay"}
    served.service.tenants["default"].stream.append({**event, **fields})  # type: ignore[typeddict-item]


def rows(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    assert len(answer.text) < 60_000
    return [int(seq) for seq in re.findall(r'<tr data-id="(\d+)">', answer.text)]


async def listed(visitor: Visitor, **filters: Any) -> list[int]:
    """Return the decisions on all pages of the list."""
    answer = await visitor.get("decisions", **filters)
    numbers = rows(answer)
    while older := re.search(r'rel="next" href="\?([^"]*)"', answer.text):
        answer = await visitor.get("decisions", **dict(parse_qsl(unescape(older[1]))))
        assert not {*numbers} & {*rows(answer)}
        numbers += rows(answer)
    return numbers


@pytest.mark.parametrize("database", DATABASES)
async def test_decisions_are_filtered_and_paged(database: str, tmp_path: Path) -> None:
    async with service(tmp_path, database) as served:
        for number in range(120):
            decided = {"verdict": "ALLOW"} if number % 3 else {"verdict": "DENY", "codes": ["a.b"]}
            if number % 10 == 9:
                decided = {"rejection": "schema.invalid"}
            record(served, number, run_id=HOSTILE if number < 3 else f"run-{number}", **decided)
        visitor = await signed_in(served)
        newest = [*range(119, -1, -1)]

        assert await listed(visitor) == newest
        assert await listed(visitor, verdict="DENY", code="a.b") == [
            number for number in newest if number % 3 == 0 and number % 10 != 9
        ]
        assert await listed(visitor, run_id=HOSTILE) == [2, 1, 0]
        assert await listed(visitor, since="2026-07-01T10:00", until="2026-07-01T10:01") == [*range(59, -1, -1)]
        assert await listed(visitor, tool="pay", subject="nobody") == []
        assert "No decision matches" in words_of(await visitor.get("decisions", tool="x"))
        page = await visitor.get("decisions")
        assert "ALLOW: 72 DENY: 36 REJECTED: 12" in words_of(page)
        assert '<rect class="ALLOW"' in page.text
        exported = await visitor.get("decisions/export", verdict="REJECTED")
        assert [json.loads(line)["seq"] for line in exported.text.splitlines()] == [*range(119, 0, -10)]
        for odd in ({"since": "2026-13-01T00:00"}, {"verdict": "\x00"}, {"before": "-1"}, {"before": ""}, {"x": "1"}):
            assert (await visitor.get("decisions", **odd)).status_code == 400


async def test_only_auditors_see_decisions(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        record(served, 0, verdict="ALLOW")
        visitor = await signed_in(served, ["approve", "propose"])

        for path in ("decisions", "decisions/0", "decisions/export", "decisions/events", "runs?id=a"):
            assert (path, (await visitor.get(path)).status_code) == (path, 403)
        auditor = await signed_in(served, ["audit"])
        assert (await auditor.get("")).headers["location"] == "/console/decisions"


async def test_event_shows_reasons_and_what_belongs_to_it(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        approval = await opened(served)
        tenant = served.service.tenants["default"]
        tenant.approvals.deny(approval.id, APPROVER, why="the invoice <b>is</b> unknown")
        visitor = await signed_in(served)
        [seq] = await listed(visitor, verdict="STEP_UP")

        page = words_of(await visitor.get(f"decisions/{seq}"))
        assert "officer-123 called initiate_wire" in page
        assert "limits.exceeded : " in page
        assert "officer-123 asked for an approval of initiate_wire" in page
        assert "approver-7 denied the approval of initiate_wire" in page
        assert "The event is unchanged and continues the chain of the event before it." in page
        assert "Digest of the arguments hmac-sha256:" in page
        event = await visitor.get(f"decisions/{seq}/event")
        assert event.json()["approval_id"] == approval.id
        run = await visitor.get("runs", id="run-0", at=seq)
        assert "The person said: the invoice <b>is</b> unknown" in words_of(run)
        assert (await visitor.get("runs/run-0")).headers["location"] == "/console/runs?id=run-0"
        for unknown, status in (("99", 404), ("x", 400), ("9" * 30, 400)):
            assert (await visitor.get(f"decisions/{unknown}")).status_code == status


async def test_hostile_texts_are_shown_as_text(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        whole = dict.fromkeys(("subject", "agent", "tool_call_id", "reason", "idempotency_key"), HOSTILE * 6)
        flow = {"arguments": [{"path": HOSTILE, "role": "url", "sources": ["model"]}] * 400, "untrusted": [HOSTILE]}
        texts = {**whole, "run_id": HOSTILE, "tool_name": HOSTILE, "codes": [HOSTILE], "flow": flow}
        for number in range(60):
            record(served, number, verdict="DENY", sources=["x" * 70] * 1000, approval_id=HOSTILE, **texts)
        record(served, 60, type=f"approval.{HOSTILE}", **texts)
        visitor = await signed_in(served)

        assert await listed(visitor) == [*range(59, -1, -1)]
        for page in ("decisions", "decisions/59", "decisions/60", "runs"):
            answer = await visitor.get(page, **{"id": HOSTILE} if page == "runs" else {})
            assert answer.status_code == 200
            assert len(answer.text) < 60_000, page
            assert not [each for each in ("<script>", "\u202e", "\x00", "1337") if each in answer.text]
            assert '<span class="cp">U+202E</span>' in answer.text


async def test_changed_event_is_shown_with_its_fault(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        for number in range(5):
            record(served, number, verdict="ALLOW")
        visitor = await signed_in(served)
        with (
            Database.open(served.service.tenants["default"].settings.store) as database,
            database.write() as connection,
        ):
            connection.execute(text("UPDATE pdp_audit SET line = replace(line, 'ALLOW', 'DENY') WHERE seq = 1"))
            connection.execute(text("UPDATE pdp_audit SET line = '[]' WHERE seq = 4"))

        for seq, fault in ((0, "The event is unchanged"), (1, "event 1: the hash does not match"), (4, "not an event")):
            assert fault in words_of(await visitor.get(f"decisions/{seq}"))
        assert rows(await visitor.get("decisions")) == [4, 3, 2, 1, 0]


async def test_run_shows_what_tainted_it_and_where_values_came_from(tmp_path: Path) -> None:
    def flow(source: str, *untrusted: str) -> dict[str, Any]:
        return {"arguments": [{"path": "/to", "role": "address", "sources": [source]}], "untrusted": [*untrusted]}

    async with service(tmp_path) as served:
        visitor = await signed_in(served)
        record(served, 0, verdict="ALLOW", run_id="r", tool_name="read_mail", flow=flow("prompt"))
        record(served, 1, type="tool.read_mail.result", run_id="r", tool_name="read_mail", outcome="done")
        record(served, 2, verdict="DENY", run_id="r", tool_name="send", flow=flow("untrusted", "read_mail"))
        record(served, 3, verdict="DENY", run_id="another")

        page = words_of(await visitor.get("runs", id="r"))

        parts = [
            "ALLOW nobody called read_mail", "/to is in your own words", "read_mail ran: done",
            "From here on, the run has read untrusted text in results of: read_mail", "DENY nobody called send",
            "check this /to was read in the result of a tool, and you did not name it",
        ]  # fmt: skip
        assert re.search(".*".join(map(re.escape, parts)), page)
        assert "another" not in page


async def test_open_page_is_told_about_new_decisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions_module, "_TICK", 0.01)
    sent: asyncio.Queue[bytes] = asyncio.Queue()
    async with service(tmp_path) as served:
        visitor = await signed_in(served)
        cookie = "; ".join(f"{name}={value}" for name, value in visitor.client.cookies.items())
        scope = {
            "type": "http", "method": "GET", "path": "/console/decisions/events", "query_string": b"verdict=DENY",
            "headers": [(b"host", b"127.0.0.1:8181"), (b"cookie", cookie.encode())], "scheme": "http",
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: MutableMapping[str, Any]) -> None:
            await sent.put(message.get("body", b""))

        async with asyncio.timeout(PATIENCE):
            serving = asyncio.create_task(served.app(scope, receive, send))
            assert await sent.get() == b""  # the head
            await asyncio.to_thread(record, served, 0, verdict="ALLOW")
            await asyncio.to_thread(record, served, 1, verdict="DENY")
            seq = served.service.tenants["default"].stream.last_seq()
            assert await sent.get() == f'event: change\r\ndata: {{"id":{seq}}}\r\n\r\n'.encode()
            await visitor.posted("sign-out")
            await asyncio.to_thread(record, served, 2, verdict="DENY")
            await serving


async def test_run_is_found_among_many_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (events_module, runs_module):
        monkeypatch.setattr(module, "SEARCHED", 20)
    async with service(tmp_path) as served:
        await opened(served)  # The run `run-0` has two events.
        for number in range(100):
            record(served, number, verdict="ALLOW", run_id="r" if number in (10, 50) else "another")
        visitor = await signed_in(served)

        assert "asked for an approval" in words_of(await visitor.get("runs", id="run-0"))
        answer = await visitor.get("runs", id="r")
        assert "The events that were searched do not name this run." in words_of(answer)
        seen: list[str] = []
        while earlier := re.search(r'rel="prev" href="([^"]*)"', answer.text):
            answer = await visitor.get("runs", **dict(parse_qsl(urlsplit(unescape(earlier[1])).query)))
            seen += re.findall(r'href="/console/decisions/(\d+)"', answer.text)
        assert seen == ["52", "12"]
        near = await visitor.get("runs", id="r", at=42)
        assert re.findall(r'href="/console/decisions/(\d+)"', near.text) == []
        later = re.search(r'rel="next" href="([^"]*)"', near.text)
        assert later
        answer = await visitor.get("runs", **dict(parse_qsl(urlsplit(unescape(later[1])).query)))
        assert re.findall(r'href="/console/decisions/(\d+)"', answer.text) == ["52"]
