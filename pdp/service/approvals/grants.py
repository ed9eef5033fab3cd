"""Lasting grants over HTTP. A grant is made by `POST /v1/approvals/{id}/grant` with the reach `run` or `until`."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request

from pdp.approvals.lasting import GrantUnknownError
from pdp.service.approvals.routes import may_see
from pdp.service.models.approvals import Denial, GrantBody, GrantsPage, GrantsQuery
from pdp.service.requests import ApprovalReader, ServiceRoute, bounded_page
from pdp.service.state import Caller
from pdp.stores.grants import GrantState, LastingGrant

router = APIRouter(route_class=ServiceRoute, tags=["approvals"])


@router.get("/v1/grants")
async def list_grants(request: Request, who: ApprovalReader, asked: Annotated[GrantsQuery, Query()]) -> GrantsPage:
    """List lasting grants, the oldest first.

    The scope `approve` lists all grants of the tenant; `propose` lists only grants for the token's subject.
    A page may have fewer than `limit` entries.
    """
    limit, state = bounded_page(request, asked.limit), GrantState.ACTIVE if asked.active else None
    page = await asyncio.to_thread(
        who.tenant.stores.approvals.lasting.list, state=state, after=asked.after, limit=limit
    )
    shown = [GrantBody.of(grant) for grant in page if may_see(who, grant)]
    following = page[-1].id if len(page) == limit else None
    return GrantsPage(grants=[each for each in shown if state in (None, each.state)], next=following)


@router.get("/v1/grants/{grant_id}")
async def read_grant(who: ApprovalReader, grant_id: str) -> GrantBody:
    """Return one lasting grant."""
    return GrantBody.of(await asyncio.to_thread(visible_grant, who, grant_id))


@router.post("/v1/grants/{grant_id}/revoke")
async def revoke_grant(who: ApprovalReader, grant_id: str, body: Denial | None = None) -> GrantBody:
    """Revoke a lasting grant as the person that the token names. It ends at once."""

    def revoked() -> LastingGrant:
        visible_grant(who, grant_id)
        why = None if body is None else body.reason
        return who.tenant.approvals.lasting.revoke(grant_id, {**who.principal.claims}, why=why)

    return GrantBody.of(await asyncio.to_thread(revoked))


def visible_grant(who: Caller, grant_id: str) -> LastingGrant:
    """Return a grant that the caller may see. Raise `GrantUnknownError` for any other id."""
    grant = who.tenant.approvals.lasting.get(grant_id)
    if not may_see(who, grant):
        raise GrantUnknownError(f"grant {grant_id}: no grant has that id")
    return grant
