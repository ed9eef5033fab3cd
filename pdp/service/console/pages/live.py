"""The event stream that tells open pages that an approval has changed. An event has only the approval's id."""

from fastapi import APIRouter
from starlette.requests import Request

from pdp.service.approvals.inbox import InboxStream, LastEventId, approval_stream
from pdp.service.approvals.routes import feed_of
from pdp.service.console.page import ApprovalViewer, ConsoleRoute, current_viewer
from pdp.service.state import Caller

router = APIRouter(route_class=ConsoleRoute)


@router.get("/console/events")
async def follow_changes(request: Request, viewer: ApprovalViewer, last_event_id: LastEventId = None) -> InboxStream:
    """Stream an event `change` for each step of an approval that the viewer may see. Ends with the session."""

    async def current() -> Caller:
        return (await current_viewer(request, viewer)).caller

    feed = feed_of(request, viewer.caller)
    return await approval_stream(viewer.caller, feed, current, last_event_id, name="change")
