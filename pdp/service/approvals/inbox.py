"""Server-sent events: what happens to approvals, ids only. Whoever is told reads the approval with their own rights."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Final

import orjson
from fastapi import APIRouter, Header, Query
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from pdp.errors import PdpError
from pdp.service.approvals.feed import ApprovalFeed
from pdp.service.approvals.routes import SCOPES, feed_of, may_see
from pdp.service.errors import HttpError
from pdp.service.models.approvals import Nothing
from pdp.service.requests import ApprovalReader, ServiceRoute
from pdp.service.state import Caller, service_of

router = APIRouter(route_class=ServiceRoute, tags=["approvals"])

_log = logging.getLogger("pdp.service")

_QUIET_SECONDS: Final = 15.0  # after which a comment says that the stream lives
_SEND_SECONDS: Final = 30.0


class InboxStream(EventSourceResponse):
    """A stream of events that ends where a client reads nothing for 30 s."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it."""
        with suppress(SendTimeoutError):
            await super().__call__(scope, receive, send)


LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", pattern="^[0-9]{1,18}$")]


@router.get(
    "/v1/approvals/events",
    response_class=InboxStream,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def follow_approvals(
    request: Request, who: ApprovalReader, _: Annotated[Nothing, Query()], last_event_id: LastEventId = None
) -> InboxStream:
    """Stream what happens to approvals as server-sent events, from now on or after `Last-Event-ID`.

    `id` is the event's number in the record of events, `event` its type, such as `approval.granted`, and `data` is
    `{"id": approval}`. The token is checked again before each event.
    """
    feed = feed_of(request, who)
    seq = await feed.end() if last_event_id is None else int(last_event_id)
    with feed.place(who.principal.id):
        pass  # taken in the stream itself, which may never begin
    return InboxStream(_stream(request, who, feed, seq), ping=0, send_timeout=_SEND_SECONDS)


async def _stream(request: Request, who: Caller, feed: ApprovalFeed, seq: int) -> AsyncIterator[ServerSentEvent]:
    try:
        with feed.place(who.principal.id):
            while not feed.ending.is_set():
                events = await feed.after(seq, _QUIET_SECONDS)
                if not events:
                    who = await _still(request, who)
                    yield ServerSentEvent(comment="waiting")
                for event in events:
                    seq = event.seq
                    who = await _still(request, who)
                    approval_id = str(event.approval_id)
                    if await asyncio.to_thread(_is_theirs, who, approval_id):
                        data = orjson.dumps({"id": approval_id}).decode()
                        yield ServerSentEvent(data, event=event.type, id=str(seq))
    except PdpError as error:
        # Also: the token does not count any more. The client comes again, and is told.
        _log.info("a stream of approvals ends: %s", error.message)


async def _still(request: Request, who: Caller) -> Caller:
    """Return who listens, with the rights of this moment; HttpError where the token does not count any more."""
    now = await service_of(request).authenticated(request)
    if now.id != who.principal.id or now.scopes.isdisjoint(SCOPES):
        raise HttpError(403, "the token has lost its scope")
    return Caller(now, who.tenant)


def _is_theirs(who: Caller, approval_id: str) -> bool:
    approval = who.tenant.approvals.store.get(approval_id)
    return approval is not None and may_see(who, approval)
