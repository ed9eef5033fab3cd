"""One run: its calls in order, with their verdicts, results, approvals, and where their values came from."""

import asyncio
from collections.abc import Sequence
from operator import itemgetter
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from pdp.ledger.words import origin
from pdp.service.approvals.routes import may_see
from pdp.service.console.page import SIGNED_IN, AuditViewer, ConsoleRoute, Viewer, redirect, render
from pdp.service.console.pages.decisions import Seq, event_of, run_address, says, stream_of
from pdp.service.console.visible import with_marks
from pdp.service.models import Body
from pdp.stores.sql.events import SEARCHED, AuditRow, Wanted

router = APIRouter(route_class=ConsoleRoute)

_PAGE: Final = 60
_VALUES: Final = 8  # The most values of one call whose origin is shown.
_BUDGET: Final = 15_000  # Characters of HTML for the texts of a page, after which a page ends.


class RunQuery(Body):
    """A run, the number of one of its events, near which the search begins, and the end of a page."""

    id: Annotated[str, Field(max_length=256)]
    at: Seq | None = None
    before: Seq | None = None


@router.get("/console/runs")
async def show_run(request: Request, viewer: AuditViewer, asked: Annotated[RunQuery, Query()]) -> Response:
    """Show the calls of one run in their order. The id is in the query, because it may contain any character."""

    def read() -> dict[str, Any]:
        stream, wanted = stream_of(viewer), Wanted(run_id=asked.id, every=True)
        at = _last_step(viewer, asked.id) if asked.at is None else asked.at
        # The search reads as many events before `at` as after it, or it begins at the newest event.
        before = at + SEARCHED // 2 if asked.before is None and at is not None else asked.before
        found = stream.search(wanted, _PAGE, before=before)
        steps = _steps(viewer, found.rows)
        older = found.older if len(steps) == len(found.rows) else steps[0]["seq"]
        has_later = before is not None and before <= stream.last_seq()
        return {
            "steps": steps,
            "older": None if older is None else f"{run_address(asked.id, asked.at)}&before={older}",
            "later": run_address(asked.id, before + SEARCHED // 2) if before is not None and has_later else None,
            "back_to": found.back_to,
        }

    return render(request, "run.html", asked=asked, **await asyncio.to_thread(read))


@router.get("/console/runs/{run_id:path}", dependencies=[SIGNED_IN])
async def find_run(run_id: str) -> Response:
    """Open the page of a run."""
    return redirect(run_address(run_id, None))


def _last_step(viewer: Viewer, run_id: str) -> int | None:
    """Return the number of the last event of the run's newest approval, because approvals are found at once."""
    store = viewer.caller.tenant.stores.approvals
    found = store.page(1, run_id=run_id) or store.page(1, waiting_at="", run_id=run_id)
    rows = stream_of(viewer).of_approval(found[0].id) if found else ()
    return rows[-1].seq if rows else None


def _steps(viewer: Viewer, rows: Sequence[AuditRow]) -> list[dict[str, Any]]:
    """Return what the page shows of events, the oldest first. If the newest are long, the older are left out."""
    steps: list[dict[str, Any]] = []
    used = 0
    for row in rows:
        event = event_of(row)
        flow = event["flow"] or {}
        origins = [(argument.get("path"), *origin(argument)) for argument in flow.get("arguments") or ()]
        origins.sort(key=itemgetter(2))  # Values that nobody vouches for are first.
        values = [(with_marks(path, 80), phrase, is_vouched) for path, phrase, is_vouched in origins[:_VALUES]]
        step = {
            "seq": row.seq, "time": event["time"], "verdict": row.verdict, "says": says(event),
            "codes": with_marks(" ".join(event["codes"]), 120) if row.verdict else "",
            "approval_id": event["approval_id"], "why": _why(viewer, event),
            "untrusted": {str(tool) for tool in flow.get("untrusted") or ()}, "values": values,
        }  # fmt: skip
        steps.append(step)
        used += len(step["says"]) + len(step["codes"]) + sum(len(path) for path, _, _ in values)
        if used > _BUDGET:
            break
    tainted: set[str] = set()
    for step in reversed(steps):
        step["tainted_by"] = sorted(step["untrusted"] - tainted)
        tainted |= step["untrusted"]
    return steps[::-1]


def _why(viewer: Viewer, event: dict[str, Any]) -> str | None:
    """Return the reason that a person gave for denying or withdrawing an approval, if the viewer may see it."""
    if event["type"] not in ("approval.denied", "approval.withdrawn"):
        return None
    approval = viewer.caller.tenant.approvals.store.get(event["approval_id"] or "")
    return approval.why if approval is not None and may_see(viewer.caller, approval) else None
