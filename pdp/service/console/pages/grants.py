"""Lasting grants: their calls, people, uses and ends. People revoke grants here."""

import asyncio
import time
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from pdp.approvals.lasting import GrantRefusedError, may_revoke
from pdp.approvals.sentence import person_text
from pdp.clock import to_seconds
from pdp.service.approvals.grants import visible_grant
from pdp.service.approvals.routes import may_see
from pdp.service.console.page import ApprovalViewer, ConsoleRoute, SentForm, Viewer, redirect, render
from pdp.service.console.pages.shown import free_names
from pdp.service.models import Body
from pdp.stores.approvals import ApprovalState
from pdp.stores.grants import GrantState, LastingGrant

router = APIRouter(route_class=ConsoleRoute)

GRANTS: Final = "/console/grants"

_PAGE: Final = 15

Id = Annotated[str, Field(pattern="^[0-9A-Za-z]*$", max_length=64)]


class GrantPages(Body):
    """The ends of earlier pages. `revoked` is the grant that the viewer has just revoked."""

    active: Id = ""
    ended: Id = ""
    revoked: Id = ""


@router.get(GRANTS)
async def show_grants(request: Request, viewer: ApprovalViewer, asked: Annotated[GrantPages, Query()]) -> Response:
    """Show the lasting grants, those that can let calls through first."""
    return await _grants_page(request, viewer, asked)


@router.post(f"{GRANTS}/{{grant_id}}/revoke")
async def revoke(request: Request, viewer: ApprovalViewer, grant_id: str, form: SentForm) -> Response:
    """Revoke a grant as the viewer."""

    def revoked() -> None:
        visible_grant(viewer.caller, grant_id)
        lasting, why = viewer.caller.tenant.approvals.lasting, form.get("reason") or None
        lasting.revoke(grant_id, {**viewer.principal.claims}, why=why)

    try:
        await asyncio.to_thread(revoked)
    except GrantRefusedError as error:
        return await _grants_page(request, viewer, GrantPages(), problem=error.message, status=409)
    return redirect(f"{GRANTS}?revoked={grant_id}")


async def _grants_page(
    request: Request, viewer: Viewer, asked: GrantPages, *, problem: str = "", status: int = 200
) -> Response:
    store, now = viewer.caller.tenant.stores.approvals.lasting, to_seconds(time.time())

    def page(before: str, *, active: bool) -> tuple[list[dict[str, Any]], str | None]:
        found = store.page(_PAGE + 1, active=active, before=before or None)
        shown = [_row(grant, viewer, now) for grant in found[:_PAGE] if may_see(viewer.caller, grant)]
        for row in filter(lambda row: row["may_revoke"], shown):
            approval = viewer.caller.tenant.stores.approvals.get(row["grant"].id)
            row["is_unused"] = approval is not None and approval.standing is ApprovalState.GRANTED
        return shown, found[_PAGE - 1].id if len(found) > _PAGE else None

    active, more_active = await asyncio.to_thread(page, asked.active, active=True)
    ended, more_ended = await asyncio.to_thread(page, asked.ended, active=False)
    values = {"active": active, "more_active": more_active, "ended": ended, "more_ended": more_ended}
    return render(request, "grants.html", status=status, asked=asked, problem=problem, **values)


def _row(grant: LastingGrant, viewer: Viewer, now: str) -> dict[str, Any]:
    state = grant.standing(now)
    entry = viewer.caller.tenant.pep.manifest.tools.get(grant.tool)
    free = free_names(entry) - grant.about.keys()
    return {
        "grant": grant,
        # A limited number is compared like each other argument, unless the governance file frees it.
        "same": {**grant.about, **{name: value for name, value in grant.most.items() if name not in free}},
        "free": {name: grant.most.get(name) for name in sorted(free)},
        "state": state,
        "for": person_text(grant.requesters[0]),
        "by": [(person_text(each.person), each.at) for each in grant.grants],
        "closed_by": None if grant.closed_by is None else person_text(grant.closed_by),
        "may_revoke": state is GrantState.ACTIVE and may_revoke(grant, {**viewer.principal.claims}),
    }
