"""The decisions: the audit stream with filters, a chart, a live list and an export; and one event of the stream."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

import orjson
from fastapi import APIRouter, Query
from pydantic import AfterValidator, Field
from sse_starlette import ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from pdp.audit.chain import EMPTY
from pdp.engine.bundle.file import baseline_bundle_path, read_bundle
from pdp.errors import PdpError
from pdp.ledger.words import origins
from pdp.opa.modules import modules_of_bundle
from pdp.opa.rules import rule_sites, sites_by_code
from pdp.project.file import read_project
from pdp.service.approvals.inbox import SEND_SECONDS, InboxStream
from pdp.service.approvals.routes import feed_of
from pdp.service.console.page import (
    AuditViewer,
    ConsoleRoute,
    SentForm,
    Viewer,
    current_viewer,
    render,
    require_scope,
)
from pdp.service.console.pages.recorded import RUNNING, recorded_values
from pdp.service.console.texts import text
from pdp.service.console.visible import json_text, shown_text, with_marks
from pdp.service.errors import HttpError
from pdp.service.models import DIGITS, Body
from pdp.service.security.principal import Scope
from pdp.stores.sql.audit import SqlAudit
from pdp.stores.sql.events import REJECTED, AuditRow, Wanted

router = APIRouter(route_class=ConsoleRoute)

DECISIONS: Final = "/console/decisions"
VERDICTS: Final = ("ALLOW", "STEP_UP", "DENY", REJECTED)

_log = logging.getLogger("pdp.service")

_PAGE: Final = 50
_EXPORTED: Final = 1_000
_TICK: Final = 0.5  # While a page is open, new decisions are looked for once in this many seconds.
_QUIET_TICKS: Final = 28
_LARGEST: Final = 2**53
_BUDGET: Final = 20_000  # Characters of HTML for the values of a page. Longer values are cut after that.
_UNITS: Final = {10: 86_400, 13: 3_600, 15: 600, 16: 60, 19: 1}
_FIRST: Final = "0000-01-01T00:00:00"
_SHOWN: Final = 20  # The most events that belong to an event, and lines about its values, that its page shows.
_LINKED: Final = frozenset(("seq", "type", "time", "verdict", "codes", "hash", "prev_hash", "flow"))
"""Fields of an event that its page does not list, because other parts of the page show them."""


_STEPS: Final = frozenset(("opened", "granted", "denied", "withdrawn", "expired", "consumed"))


def _checked_time(value: str) -> str:
    if value:
        datetime.fromisoformat(value)
    return value


Text = Annotated[str, Field(max_length=256)]
Time = Annotated[str, Field(pattern=r"^(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2})?)?$"), AfterValidator(_checked_time)]
Seq = Annotated[int, DIGITS, Field(ge=0, le=_LARGEST)]


class DecisionQuery(Body):
    """The filters of the decisions, in UTC. An empty field filters nothing. A page shows events before `before`."""

    verdict: Literal["", "ALLOW", "STEP_UP", "DENY", "REJECTED"] = ""
    tool: Text = ""
    code: Text = ""
    subject: Text = ""
    run_id: Text = ""
    since: Time = ""
    until: Time = ""
    before: Seq | None = None

    @property
    def wanted(self) -> Wanted:
        """The filters for the audit stream."""
        times = {"since": _with_milliseconds(self.since), "until": _with_milliseconds(self.until)}
        values: dict[str, Any] = self.model_dump(exclude={"before"}) | times
        return Wanted(**{name: value for name, value in values.items() if value})

    def address(self, **changes: int | None) -> str:
        """Return the query of a URL with these filters."""
        return urlencode(
            {name: value for name, value in (self.model_dump() | changes).items() if value not in ("", None)}
        )


def _with_milliseconds(time: str) -> str | None:
    return f"{_full(time)}.000Z" if time else None


Filters = Annotated[DecisionQuery, Query()]


@router.get(DECISIONS)
async def show_decisions(request: Request, viewer: AuditViewer, asked: Filters) -> Response:
    """Show the newest decisions that match the filters, and how many there are over time."""

    def read() -> dict[str, Any]:
        found = stream_of(viewer).search(asked.wanted, _PAGE, before=asked.before)
        rows, used = [], 0
        for row in found.rows:
            rows.append(shown := _list_row(row))
            used += sum(map(len, shown.values()))
            if used > _BUDGET:
                break
        is_cut = len(rows) < len(found.rows)
        return {
            "rows": rows,
            "older": asked.address(before=found.rows[len(rows) - 1].seq if is_cut else found.older)
            if is_cut or found.older is not None
            else None,
            "back_to": found.back_to if found.older is not None and not is_cut and len(rows) < _PAGE else None,
            "chart": chart(stream_of(viewer).counts(asked.wanted)),
        }

    values = await asyncio.to_thread(read)
    is_live = asked.before is None and not asked.until
    return render(request, "decisions.html", asked=asked, verdicts=VERDICTS, is_live=is_live, **values)


def _list_row(row: AuditRow) -> dict[str, str]:
    """Return the cells of a decision as HTML."""
    event = event_of(row)
    cells = {
        "tool": with_marks(event["tool_name"] or text("decisions.no_tool"), 60),
        "codes": with_marks(" ".join(event["codes"]) or event["rejection"] or "", 120),
        "subject": with_marks(event["subject"] or "", 40),
        "run": with_marks(event["run_id"] or "", 40),
        "run_link": run_address(event["run_id"], row.seq),
    }
    return {"seq": str(row.seq), "time": event["time"], "verdict": row.verdict or "", **cells}


def event_of(row: AuditRow) -> dict[str, Any]:
    """Return the event of a row, with a value for each field. All fields of a damaged event are empty."""
    try:
        event: dict[str, Any] = orjson.loads(row.line)
        AuditRow.of(event, row.seq, row.line)
    except (ValueError, KeyError, TypeError, AttributeError):
        event = {}
    return {**EMPTY, "time": row.time or "", "type": row.type, "hash": "", **event, "seq": row.seq}


def run_address(run_id: str | None, seq: int | None) -> str:
    """Return the address of the page of a run, near the event `seq`. The id may contain any character."""
    if run_id is None:
        return ""
    return "/console/runs?" + urlencode({"id": run_id} | ({} if seq is None else {"at": seq}))


def chart(counts: Mapping[str, Mapping[str, int]]) -> dict[str, Any] | None:
    """Return the bars of the chart: their place, their height by verdict, and the numbers as a table."""
    if not counts:
        return None
    unit = _UNITS[len(next(iter(counts)))]
    starts = {when: datetime.fromisoformat(_full(when)).replace(tzinfo=UTC).timestamp() for when in counts}
    first, most = min(starts.values()), max(sum(of_one.values()) for of_one in counts.values())
    bars = []
    for when, of_one in counts.items():
        below = 0.0
        for verdict in VERDICTS:
            height = 100 * of_one.get(verdict, 0) / most
            below += height
            if height:
                place = {"x": 10 * int((starts[when] - first) // unit), "y": round(100 - below, 2)}
                bars.append({**place, "height": round(height, 2), "verdict": verdict})
    numbers = {_full(when)[:19].replace("T", " "): of_one for when, of_one in counts.items()}
    totals = {verdict: sum(of_one.get(verdict, 0) for of_one in counts.values()) for verdict in VERDICTS}
    width = 10 + 10 * int((max(starts.values()) - first) // unit)
    return {"bars": bars, "width": width, "numbers": numbers, "totals": totals}


def _full(start: str) -> str:
    """Return the first second of a part of the time, such as `2026-07-01T10` or `2026-07-01T10:3` (ten minutes)."""
    return start + _FIRST[len(start) :]


@router.get(f"{DECISIONS}/export")
async def export_decisions(viewer: AuditViewer, asked: Filters) -> Response:
    """Return up to 1,000 events of the decisions that match the filters, the newest first, as JSON Lines."""
    found = await asyncio.to_thread(stream_of(viewer).search, asked.wanted, _EXPORTED, before=asked.before)
    return _file("decisions.jsonl", "".join(row.line + "\n" for row in found.rows), "application/x-ndjson")


@router.get(f"{DECISIONS}/events")
async def follow_decisions(request: Request, viewer: AuditViewer, asked: Filters) -> InboxStream:
    """Stream an event `change` when there are new decisions that match the filters. Ends with the session."""
    feed, stream = feed_of(request, viewer.caller), stream_of(viewer)

    async def ticks(last: int) -> AsyncIterator[ServerSentEvent]:
        quiet = 0
        try:
            with feed.place(viewer.principal.id):
                while not feed.ending.is_set():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(feed.ending.wait(), _TICK)
                    now = await asyncio.to_thread(stream.last_seq)
                    found = await asyncio.to_thread(stream.search, asked.wanted, 1, before=now + 1, after=last)
                    last, quiet = now, quiet + 1
                    if found.rows or quiet > _QUIET_TICKS:
                        quiet = 0
                        require_scope(await current_viewer(request, viewer), Scope.AUDIT)
                        change = ServerSentEvent(orjson.dumps({"id": last}).decode(), event="change")
                        yield change if found.rows else ServerSentEvent(comment="waiting")
        except PdpError as error:
            _log.info("stream of decisions closed: %s", error.message)

    with feed.place(viewer.principal.id):
        pass  # This only checks that the viewer may open one more stream.
    return InboxStream(ticks(await asyncio.to_thread(stream.last_seq)), ping=0, send_timeout=SEND_SECONDS)


@router.get(f"{DECISIONS}/{{seq}}")
async def show_event(request: Request, viewer: AuditViewer, seq: Seq) -> Response:
    """Show one event of the stream: what it records, what belongs to it, and its place in the hash chain."""
    return await _event_page(request, viewer, seq)


@router.post(f"{DECISIONS}/{{seq}}")
async def decide_again(request: Request, viewer: AuditViewer, seq: Seq, form: SentForm) -> Response:
    """Decide the recorded request of an event with the chosen bundle, and show the answer beside the recorded one."""
    return await _event_page(request, viewer, seq, form.get("bundle", RUNNING))


async def _event_page(request: Request, viewer: Viewer, seq: int, choice: str | None = None) -> Response:
    def read() -> dict[str, Any]:
        stream = stream_of(viewer)
        row, event = _stored(viewer, seq)
        both = *stream.of_decision(event), *stream.of_approval(event["approval_id"] or "")
        related = {other.seq: other for other in both if other.seq != seq}
        titles = rule_titles(viewer.caller.tenant.settings.project, event["bundle_revision"] or "")
        return {
            "event": event,
            "row": row,
            "says": says(event),
            "flow": [*islice(origins(event["flow"]), _SHOWN)],
            "codes": [(code, titles.get(code)) for code in event["codes"]],
            "fields": _fields(event),
            "others": [_other(related[number]) for number in sorted(related)[:_SHOWN]],
            "run_link": run_address(event["run_id"], seq),
            "fault": stream.link_fault(seq),
            "last": stream.last_seq(),
            "recorded": recorded_values(viewer, event, choice) if row.verdict else None,
        }

    values = await asyncio.to_thread(read)
    return render(request, "event.html", **values)


@router.get(f"{DECISIONS}/{{seq}}/event")
async def export_event(viewer: AuditViewer, seq: Seq) -> Response:
    """Return one event of the stream as it is stored, as a JSON file."""
    row, _ = await asyncio.to_thread(_stored, viewer, seq)
    return _file(f"event-{seq}.json", row.line, "application/json")


def _file(name: str, content: str, kind: str) -> Response:
    return Response(content, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})


def _stored(viewer: Viewer, seq: int) -> tuple[AuditRow, dict[str, Any]]:
    rows = stream_of(viewer).lines(seq - 1, 1)
    if not rows or rows[0].seq != seq:
        raise HttpError(404, text("event.unknown", seq=seq))
    return rows[0], event_of(rows[0])


def _other(row: AuditRow) -> dict[str, Any]:
    event = event_of(row)
    return {"seq": row.seq, "says": says(event), "time": event["time"], "verdict": row.verdict}


def says(event: Mapping[str, Any]) -> str:
    """Return in one sentence what an event records, as HTML."""
    kind: str = event["type"]
    values = {
        "who": with_marks(event["subject"] or text("event.nobody"), 80),
        "tool": with_marks(event["tool_name"] or text("decisions.no_tool"), 80),
        "outcome": with_marks(event["outcome"] or "", 40),
        "error": with_marks(event["error_code"] or "", 80),
        "kind": with_marks(kind, 120),
    }
    ending = kind.rpartition(".")[2]
    if kind.startswith("tool.") and ending == "dispatch":
        name = "decided"
    elif kind.startswith("tool.") and ending == "result":
        name = "failed" if event["error_code"] else "ended"
    else:
        name = ending if kind == f"approval.{ending}" and ending in _STEPS else "other"
    return shown_text(f"event.says.{name}", **values)


def _fields(event: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the fields that an event holds, with their names as people read them, and their values as HTML."""
    shown: list[tuple[str, str]] = []
    used = 0
    for name, value in event.items():
        if name in _LINKED or value is None or value in ([], ()):
            continue
        try:
            label = text(f"event.field.{name}")
        except KeyError:
            label = name
        shown.append((label, with_marks(json_text(value), 600 if used < _BUDGET else 40)))
        used += len(shown[-1][1])
    return shown


@lru_cache(maxsize=8)
def rule_titles(project: Path, revision: str) -> Mapping[str, str]:
    """Return the titles of the rules by reason code, if the project's bundle has this revision."""
    try:
        bundle = read_bundle(read_project(project).bundle or baseline_bundle_path())
    except PdpError:
        return {}
    if bundle.revision != revision:
        return {}
    sites = sites_by_code(rule_sites(modules_of_bundle("", bundle.modules)))
    return {code: next((site.title for site in of_code if site.title), "") for code, of_code in sites.items()}


def stream_of(viewer: Viewer) -> SqlAudit:
    """Return the audit stream of the viewer's tenant."""
    return viewer.caller.tenant.stream
