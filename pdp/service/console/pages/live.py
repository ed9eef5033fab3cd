"""The event stream that tells open pages that an approval has changed. An event has only the approval's id."""

from fastapi import APIRouter
from starlette.requests import Request

from pdp.service.approvals.inbox import InboxStream, LastEventId, approval_stream
from pdp.service.approvals.routes import feed_of
from pdp.service.console.page import ApprovalViewer, ConsoleRoute, viewer_of
from pdp.service.console.texts import text
from pdp.service.errors import HttpError
from pdp.service.state import Caller

router = APIRouter(route_class=ConsoleRoute)


@router.get("/console/events")
async def follow_changes(request: Request, viewer: ApprovalViewer, last_event_id: LastEventId = None) -> InboxStream:
    """Stream an event `change` for each step of an approval that the viewer may see. Ends with the session."""

    async def current() -> Caller:
        now = await viewer_of(request)
        if now is None or now.principal.id != viewer.principal.id:
            raise HttpError(403, text("error.session"))
        return now.caller

    feed = feed_of(request, viewer.caller)
    return await approval_stream(viewer.caller, feed, current, last_event_id, name="change")
