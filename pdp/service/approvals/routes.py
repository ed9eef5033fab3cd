"""Approvals over HTTP. The token names the person who approves or denies; a request body cannot name another person."""

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.requests import Request

from pdp.approvals.people import ApprovalRefusedError, Refusal
from pdp.service.approvals.feed import TICK, ApprovalFeed
from pdp.service.errors import HttpError
from pdp.service.models.approvals import (
    ApprovalBody,
    ApprovalsPage,
    ApprovalsQuery,
    Denial,
    GrantChoice,
    Nothing,
    WaitQuery,
)
from pdp.service.requests import ApprovalReader, Approver, Proposer, ServiceRoute, bounded_page, caller
from pdp.service.security.principal import Scope
from pdp.service.state import Caller, service_of
from pdp.stores.approvals import Approval, ApprovalState
from pdp.stores.grants import LastingGrant

router = APIRouter(route_class=ServiceRoute, tags=["approvals"])

SCOPES: Final = (Scope.APPROVE, Scope.PROPOSE)
"""Reading approvals requires a token with one of these scopes."""

_LONGEST_PAUSE: Final = 5.0
STATUS: Final = {
    Refusal.UNKNOWN: 404,
    Refusal.NO_SUBJECT: 403,
    Refusal.AGENT: 403,
    Refusal.REQUESTER: 403,
    Refusal.SAME_TOKEN: 403,
    Refusal.NOT_AN_APPROVER: 403,
    Refusal.NOT_A_REQUESTER: 403,
}


@router.get("/v1/approvals")
async def list_approvals(
    request: Request, who: ApprovalReader, asked: Annotated[ApprovalsQuery, Query()]
) -> ApprovalsPage:
    """List approvals, the oldest first.

    The scope `approve` lists all approvals of the tenant; `propose` lists only approvals that the token's subject
    requested. A page of pending approvals omits expired approvals, so it may have fewer than `limit` entries.
    """
    limit, subject = bounded_page(request, asked.limit), asked.subject
    if not _sees_all(who):
        own = who.principal.claims.get("sub")
        if not isinstance(own, str) or subject not in (None, own):
            return ApprovalsPage(approvals=[], next=None)
        subject = own
    page = await asyncio.to_thread(
        who.tenant.stores.approvals.list,
        state=asked.state, subject=subject, tool=asked.tool, run_id=asked.run_id, after=asked.after, limit=limit,
    )  # fmt: skip
    shown = [ApprovalBody.of(who.tenant.approvals.linked(each)) for each in page if may_see(who, each)]
    following = page[-1].id if len(page) == limit else None
    return ApprovalsPage(approvals=[each for each in shown if asked.state in (None, each.state)], next=following)


@router.get("/v1/approvals/{approval_id}")
async def read_approval(
    request: Request, who: ApprovalReader, approval_id: str, asked: Annotated[WaitQuery, Query()]
) -> ApprovalBody:
    """Return one approval. With `wait`, answer when the approval is not pending, or after the time in `wait`."""
    most, wait = service_of(request).settings.limits.wait_seconds, int(asked.wait.removesuffix("s"))
    if wait > most:
        raise HttpError(400, "wait is too long", hint=f"use at most {most:g}s")
    approval = await asyncio.to_thread(visible_approval, who, approval_id)
    if approval.standing is ApprovalState.PENDING and wait:
        feed = feed_of(request, who)
        with feed.place(who.principal.id):
            approval = await _wait_for_decision(who, feed, approval_id, wait)
        await caller(request, *SCOPES)  # The token may have been revoked while the request waited.
    return ApprovalBody.of(approval)


async def _wait_for_decision(who: Caller, feed: ApprovalFeed, approval_id: str, seconds: int) -> Approval:
    until = time.monotonic() + seconds
    seq, pause = await feed.end(), TICK
    while True:
        approval = await asyncio.to_thread(visible_approval, who, approval_id)
        left = until - time.monotonic()
        if approval.standing is not ApprovalState.PENDING or left <= 0 or feed.ending.is_set():
            return approval
        # The record is always read: an event may arrive before the record changes, and an expiry may have no event.
        events = await feed.after(seq, min(left, pause), approval_id)
        seq, pause = (events[-1].seq, TICK) if events else (seq, min(2 * pause, _LONGEST_PAUSE))


@router.post("/v1/approvals/{approval_id}/grant")
async def grant_approval(who: Approver, approval_id: str, body: GrantChoice | None = None) -> ApprovalBody:
    """Grant the approval as the person that the token names: once, for the run, or until a time."""
    choice = body or GrantChoice()
    return await _step(
        who,
        approval_id,
        lambda claims: who.tenant.approvals.grant(approval_id, claims, reach=choice.reach, until=choice.until),
    )


@router.post("/v1/approvals/{approval_id}/deny")
async def deny_approval(who: Approver, approval_id: str, body: Denial | None = None) -> ApprovalBody:
    """Deny the approval as the person that the token names."""
    why = None if body is None else body.reason
    return await _step(who, approval_id, lambda claims: who.tenant.approvals.deny(approval_id, claims, why=why))


@router.post("/v1/approvals/{approval_id}/withdraw")
async def withdraw_approval(who: Proposer, approval_id: str, _: Nothing | None = None) -> ApprovalBody:
    """Withdraw the approval as one of its requesters."""
    return await _step(who, approval_id, lambda claims: who.tenant.approvals.withdraw(approval_id, claims))


def feed_of(request: Request, who: Caller) -> ApprovalFeed:
    """Return the approval events of the caller's tenant."""
    return service_of(request).feeds[who.tenant.name]


def may_see(who: Caller, approval: Approval | LastingGrant) -> bool:
    """Return whether the caller may see a record: requesters see only their own, approvers all of the tenant."""
    claims = who.principal.claims
    return _sees_all(who) or (claims.get("iss"), claims.get("sub")) in approval.requesters


def _sees_all(who: Caller) -> bool:
    # With the scope `assert`, a token can propose for any subject, so it may also see all approvals.
    return who.may(Scope.APPROVE) or who.may(Scope.PROPOSE, Scope.ASSERT)


def visible_approval(who: Caller, approval_id: str) -> Approval:
    """Return an approval that the caller may see. Raise `ApprovalRefusedError` for any other id."""
    approval = who.tenant.approvals.get(approval_id)
    if not may_see(who, approval):
        raise ApprovalRefusedError(approval_id, Refusal.UNKNOWN)
    return approval


async def _step(who: Caller, approval_id: str, step: Callable[[dict[str, Any]], Approval]) -> ApprovalBody:
    def decided() -> Approval:
        visible_approval(who, approval_id)
        return step({**who.principal.claims})

    return ApprovalBody.of(await asyncio.to_thread(decided))


def refused(error: ApprovalRefusedError) -> HttpError:
    """Return the HTTP error for a grant, denial or withdrawal that the approval rules forbid."""
    return HttpError(STATUS.get(error.reason, 409), error.message, code=error.error_code)
