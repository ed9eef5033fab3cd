"""Approvals over HTTP: list, show and wait, grant, deny, withdraw.

Who decides is who the token stands for: no body names anybody else.
"""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import JSONResponse

from pdp.approvals.approvals import ApprovalRefusedError, Refusal
from pdp.service.approvals.feed import TICK
from pdp.service.requests import Caller, HttpError, caller, known_fields, number, query, read_object, service_of
from pdp.service.routing import Routes
from pdp.service.security.principal import Scope
from pdp.session import LONGEST_TEXT
from pdp.stores.approvals import Approval, ApprovalState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.requests import Request

    from pdp.service.approvals.feed import ApprovalFeed

routes = Routes()

SCOPES: Final = (Scope.APPROVE, Scope.PROPOSE)
"""Of which one is needed to see approvals."""

_FILTERS: Final = ("subject", "tool", "run_id")
_WAIT: Final = re.compile(r"(\d{1,2})s?", re.ASCII)
_LONGEST_PAUSE: Final = 5.0  # seconds
_STATUS: Final = {
    Refusal.UNKNOWN: 404,
    Refusal.NO_SUBJECT: 403,
    Refusal.AGENT: 403,
    Refusal.REQUESTER: 403,
    Refusal.SAME_TOKEN: 403,
    Refusal.NOT_AN_APPROVER: 403,
    Refusal.NOT_A_REQUESTER: 403,
}


@routes.at("/v1/approvals", "GET")
async def approvals_page(request: Request) -> JSONResponse:
    """Answer with the approvals that the caller may see, in the order of being opened, page by page.

    The last of a page may be among those whose time is over, which a list of pending ones leaves out.
    """
    who = await caller(request, *SCOPES)
    asked = query(request, "state", "limit", "after", *_FILTERS)
    most = service_of(request).settings.limits.page
    limit, state, after = number(asked, "limit", most, 1, most), asked.get("state"), asked.get("after")
    if after is not None and not (after.isascii() and after.isalnum()):
        raise HttpError(400, "after is not valid", hint="the `next` of the page before")
    if state is not None and state not in set(ApprovalState):
        raise HttpError(400, "state is not valid", hint=f"one of {', '.join(ApprovalState)}")
    texts = {name: asked.get(name) for name in _FILTERS}
    if any(text is not None and len(text) > LONGEST_TEXT for text in texts.values()):
        raise HttpError(400, "a filter is too long", hint=f"{', '.join(_FILTERS)}: {LONGEST_TEXT} characters at most")
    if not _sees_all(who):
        own = who.principal.claims.get("sub")
        if not isinstance(own, str) or texts["subject"] not in (None, own):
            return JSONResponse({"approvals": [], "next": None})
        texts["subject"] = own
    page = await asyncio.to_thread(
        who.tenant.stores.approvals.list,
        state=None if state is None else ApprovalState(state), after=after, limit=limit, **texts,
    )  # fmt: skip
    shown = [each.as_json() for each in page if may_see(who, each)]
    following = page[-1].id if len(page) == limit else None
    return JSONResponse({"approvals": [each for each in shown if state in (None, each["state"])], "next": following})


@routes.at("/v1/approvals/{approval_id}", "GET")
async def awaited(request: Request, approval_id: str) -> JSONResponse:
    """Answer with one approval; with `wait`, once it is decided, or pending as it is when the time is over."""
    who = await caller(request, *SCOPES)
    most = service_of(request).settings.limits.wait_seconds
    wait = _WAIT.fullmatch(query(request, "wait").get("wait", "0"))
    if wait is None or int(wait[1]) > most:
        raise HttpError(400, "wait is not valid", hint=f"at most {most:g}s")
    approval = await asyncio.to_thread(_stored, who, approval_id)
    if approval.standing is ApprovalState.PENDING and int(wait[1]):
        feed = feed_of(request, who)
        with feed.place(who.principal.id):
            approval = await _decided(who, feed, approval_id, int(wait[1]))
        await caller(request, *SCOPES)  # the token may not count any more
    return JSONResponse(approval.as_json())


async def _decided(who: Caller, feed: ApprovalFeed, approval_id: str, seconds: int) -> Approval:
    """Return an approval once it is decided, or as it is when the time is over or the service ends."""
    until = time.monotonic() + seconds
    seq, pause = await feed.end(), TICK
    while True:
        approval = await asyncio.to_thread(_stored, who, approval_id)
        left = until - time.monotonic()
        if approval.standing is not ApprovalState.PENDING or left <= 0 or feed.ending.is_set():
            return approval
        # An event may be there before the record says so, and an end comes without one: it is looked at also then.
        events = await feed.after(seq, min(left, pause), approval_id)
        seq, pause = (events[-1].seq, TICK) if events else (seq, min(2 * pause, _LONGEST_PAUSE))


@routes.at("/v1/approvals/{approval_id}/grant", "POST")
async def grant(request: Request, approval_id: str) -> JSONResponse:
    """Count the caller's approval."""
    who = await caller(request, Scope.APPROVE)
    known_fields(await read_object(request, optional=True))
    return await _step(who, approval_id, lambda claims: who.tenant.approvals.grant(approval_id, claims))


@routes.at("/v1/approvals/{approval_id}/deny", "POST")
async def deny(request: Request, approval_id: str) -> JSONResponse:
    """Deny it, with a `reason` for the record."""
    who = await caller(request, Scope.APPROVE)
    body = await read_object(request, optional=True)
    known_fields(body, "reason")
    why = body.get("reason")
    if why is not None and not isinstance(why, str):
        raise HttpError(400, "reason is not a text")
    return await _step(who, approval_id, lambda claims: who.tenant.approvals.deny(approval_id, claims, why=why))


@routes.at("/v1/approvals/{approval_id}/withdraw", "POST")
async def withdraw(request: Request, approval_id: str) -> JSONResponse:
    """Take it back, as one who asked for it."""
    who = await caller(request, Scope.PROPOSE)
    known_fields(await read_object(request, optional=True))
    return await _step(who, approval_id, lambda claims: who.tenant.approvals.withdraw(approval_id, claims))


def feed_of(request: Request, who: Caller) -> ApprovalFeed:
    """Return the feed of the caller's tenant."""
    return service_of(request).feeds[who.tenant.name]


def may_see(who: Caller, approval: Approval) -> bool:
    """Return whether the caller may see an approval: approvers see all of the tenant, who proposes their own."""
    claims = who.principal.claims
    return _sees_all(who) or (claims.get("iss"), claims.get("sub")) in approval.requesters


def _sees_all(who: Caller) -> bool:
    # Who states for whom it asks may have asked for any of them.
    return who.may(Scope.APPROVE) or who.may(Scope.PROPOSE, Scope.ASSERT)


def _stored(who: Caller, approval_id: str) -> Approval:
    with _refusals():
        approval = who.tenant.approvals.get(approval_id)
    if not may_see(who, approval):
        raise _refused(ApprovalRefusedError(approval_id, Refusal.UNKNOWN))
    return approval


async def _step(who: Caller, approval_id: str, step: Callable[[dict[str, Any]], Approval]) -> JSONResponse:
    def decided() -> Approval:
        _stored(who, approval_id)
        with _refusals():
            return step({**who.principal.claims})

    return JSONResponse((await asyncio.to_thread(decided)).as_json())


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except ApprovalRefusedError as error:
        raise _refused(error) from error


def _refused(error: ApprovalRefusedError) -> HttpError:
    return HttpError(_STATUS.get(error.reason, 409), error.message, code=f"approvals.{error.reason}")
