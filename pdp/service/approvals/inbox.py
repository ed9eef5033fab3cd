"""Server-sent events about approvals. An event has only an id; reading the approval needs the usual rights."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
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

_QUIET_SECONDS: Final = 15.0  # If a stream has no events, it sends a comment to show that the connection is alive.
SEND_SECONDS: Final = 30.0


class InboxStream(EventSourceResponse):
    """A stream of server-sent events, which closes if the client reads nothing for 30 s."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the stream ends or the client stops reading."""
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
    """Stream approval events as server-sent events.

    The stream begins with the next event, or after the event `Last-Event-ID`. In an event, `id` is its number, `event`
    its type, such as `approval.granted`, and `data` is `{"id": APPROVAL}`. The stream ends when the token is revoked.
    """

    async def current() -> Caller:
        now = await service_of(request).authenticated(request)
        if now.id != who.principal.id or now.scopes.isdisjoint(SCOPES):
            raise HttpError(403, "the token no longer has the required scope")
        return Caller(now, who.tenant)

    return await approval_stream(who, feed_of(request, who), current, last_event_id)


async def approval_stream(
    who: Caller,
    feed: ApprovalFeed,
    current: Callable[[], Awaitable[Caller]],
    last_event_id: str | None,
    name: str | None = None,
) -> InboxStream:
    """Return the stream of the approval events that the caller may see. It ends when `current` raises `HttpError`.

    Args:
        who: the caller.
        feed: the approval events of the caller's tenant.
        current: authenticates the caller again, before each event and every 15 s.
        last_event_id: the number of the client's last event; None means the newest.
        name: the type of every event in the stream; None means the type of the audit event.
    """
    seq = await feed.end() if last_event_id is None else int(last_event_id)
    with feed.place(who.principal.id):
        # This only checks that the caller may open one more stream. The stream takes its own place when it begins, if
        # it ever begins.
        pass
    return InboxStream(_stream(who, feed, current, seq, name), ping=0, send_timeout=SEND_SECONDS)


async def _stream(
    who: Caller, feed: ApprovalFeed, current: Callable[[], Awaitable[Caller]], seq: int, name: str | None
) -> AsyncIterator[ServerSentEvent]:
    try:
        with feed.place(who.principal.id):
            while not feed.ending.is_set():
                events = await feed.after(seq, _QUIET_SECONDS)
                if not events:
                    who = await current()
                    yield ServerSentEvent(comment="waiting")
                for event in events:
                    seq = event.seq
                    who = await current()
                    approval_id = str(event.approval_id)
                    if await asyncio.to_thread(_is_visible, who, approval_id):
                        data = orjson.dumps({"id": approval_id}).decode()
                        yield ServerSentEvent(data, event=name or event.type, id=str(seq))
    except PdpError as error:
        # The token may be invalid by now. In that case the stream ends, and the client gets the error when it
        # reconnects.
        _log.info("stream of approval events closed: %s", error.message)


def _is_visible(who: Caller, approval_id: str) -> bool:
    approval = who.tenant.approvals.store.get(approval_id)
    return approval is not None and may_see(who, approval)
