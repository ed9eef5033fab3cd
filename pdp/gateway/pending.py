"""How a client hears of a call that waits for a person: by the first of these that it can, and that is configured.

    a task     its request declares the tasks extension: it asks again until there is a result
    a page     it opens pages for its person (URL elicitation), and there is one to approve on
    a wait     for `hold` seconds, also after a page was opened; progress is reported to a client that asks for it
    a text     of what is pending, who may grant it, and that the same call is to be made again

Whether somebody approved stands in the store of approvals alone. A task's id, a sealed state, a client's `accept`: each
says which approval is asked about, and no more. The call is decided anew, for whoever asks now.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity, authenticated_principal
from mcp.shared.exceptions import MCPError

from pdp.approvals.approvals import Approvals
from pdp.clock import to_seconds
from pdp.decision import new_id
from pdp.errors import PdpError
from pdp.gateway.config import GatewaySettings
from pdp.gateway.methods import NEW, admit
from pdp.manifest.fields import SUBJECT
from pdp.project.file import grant_command
from pdp.stores.approvals import Approval, ApprovalState
from pdp.stores.remote_calls import CallState, RemoteCall
from pdp.stores.sql.records import SqlRemoteCalls

Context = ServerRequestContext[Any]
Answer = dict[str, Any]
Make = Callable[[Context], Awaitable[Answer | Approval]]

TASKS: Final = "io.modelcontextprotocol/tasks"
DENIED: Final = 403  # the JSON-RPC code where no result can say so; outside the range that JSON-RPC reserves

_STATE_SECONDS: Final = 3600.0
_LONGEST: Final = 55.0  # seconds that a person has to open a page
_LOOK: Final = 0.25  # seconds between looks into the store
_KEPT: Final = 600.0  # seconds that a task's result is kept beyond its approval


@dataclass
class _Task:
    approval: Approval
    make: Make
    ends: float
    looked: float = 0.0
    run: asyncio.Future[Answer] | None = None


class Pending:
    """The requests that wait. Tasks are of this process: after its end, the same call finds its approval."""

    def __init__(self, settings: GatewaySettings, approvals: Approvals, used: SqlRemoteCalls) -> None:
        self._settings, self._approvals, self._used = settings, approvals, used
        self._security = RequestStateSecurity.ephemeral(ttl=_STATE_SECONDS)
        self._tasks: dict[tuple[str, str | None], _Task] = {}

    def serve(self, server: Server[Any]) -> None:
        """Add to a server what clients ask of tasks, seal its states, and refuse methods that the mapping lacks."""
        server.extensions[TASKS] = {}
        server.add_request_handler("tasks/get", types.GetTaskRequestParams, self._get_task)
        server.add_request_handler("tasks/cancel", types.CancelTaskRequestParams, self._cancel_task)
        server.middleware += [admit, RequestStateBoundary(self._security, default_audience=server.name)]

    async def answer(self, ctx: Context, params: types.InputResponseRequestParams, make: Make) -> Answer:
        """Return the result of a request; `make` makes its call and returns its result, or the approval it waits for.

        MCPError: it is denied and has no other result; a state is not ours, or came before; a store cannot be used.
        """
        if params.request_state is not None:
            approval, opened = await self._returned(params.request_state, params.input_responses or {})
        else:
            made = await make(ctx)
            if not isinstance(made, Approval):
                return made
            approval, opened, page = made, True, self._settings.approval_page
            declared = ctx.session.client_capabilities or types.ClientCapabilities()
            if ctx.protocol_version >= NEW and ctx.method == "tools/call" and TASKS in (declared.extensions or {}):
                self._tasks = {key: each for key, each in self._tasks.items() if each.ends > time.time()}
                task = _Task(approval, make, datetime.fromisoformat(approval.expires_at).timestamp() + _KEPT)
                self._tasks[approval.id, authenticated_principal(ctx)] = task
                return {**self._standing(task), "resultType": "task"}
            if page and declared.elicitation and declared.elicitation.url:
                text, url = self._text(approval), f"{page}{approval.id}"
                if ctx.protocol_version >= NEW:
                    state = json.dumps([approval.id, f"mcp-state:{new_id()}"])
                    asked = {"method": "elicitation/create", "params": {"mode": "url", "message": text, "url": url}}
                    return {"resultType": "input_required", "inputRequests": {"approval": asked}, "requestState": state}
                opened = False
                with suppress(TimeoutError, MCPError):
                    async with asyncio.timeout(_LONGEST):
                        answer = await ctx.session.elicit_url(text, url, approval.id, ctx.request_id)
                        opened = answer.action == "accept"
        until = time.monotonic() + self._settings.hold * opened
        while approval.standing is ApprovalState.PENDING and (left := until - time.monotonic()) > 0:
            # Negative and rising: the tool's own progress, from 0 on, is higher.
            await ctx.session.report_progress(-left, None, self._text(approval))
            await asyncio.sleep(min(_LOOK, left))
            approval = await _stored(self._approvals.get, approval.id)
        return await self._ended(ctx, approval, make)

    async def _ended(self, ctx: Context, approval: Approval, make: Make) -> Answer:
        # Where a call like this one has used the approval, its result may be replayed.
        if approval.standing in (ApprovalState.GRANTED, ApprovalState.CONSUMED):
            made = await make(ctx)
            if not isinstance(made, Approval):
                return made
            approval = made
        if ctx.method in ("resources/read", "prompts/get"):
            raise MCPError(DENIED, self._text(approval))
        return {"content": [{"type": "text", "text": self._text(approval)}], "isError": True, "resultType": "complete"}

    async def _returned(self, state: str, answers: types.InputResponses) -> tuple[Approval, bool]:
        """Return the approval of a state that came back, and whether the page was opened."""
        approval_id, name = json.loads(state)
        until = time.time() + _STATE_SECONDS
        if not await _stored(self._used.add, RemoteCall(name, "mcp-state", "", CallState.FINISHED, until, 0.0, {})):
            raise MCPError(types.INVALID_PARAMS, "Invalid or expired requestState")
        opened = getattr(answers.get("approval"), "action", None) == "accept"
        return await _stored(self._approvals.get, approval_id), opened

    async def _get_task(self, ctx: Context, params: types.GetTaskRequestParams) -> Answer:
        task = self._tasks.get((params.task_id, authenticated_principal(ctx)))
        if task is None:
            raise MCPError(types.INVALID_PARAMS, "no such task")
        if task.run is None and task.looked + _LOOK < time.monotonic():
            task.looked = time.monotonic()
            task.approval = await _stored(self._approvals.get, task.approval.id)
            if task.run is None and task.approval.standing is not ApprovalState.PENDING:
                task.run = asyncio.ensure_future(self._ended(ctx, task.approval, task.make))
        if task.run is not None:
            await asyncio.wait((task.run,), timeout=_LOOK)
        return {**self._standing(task), "resultType": "complete"}

    async def _cancel_task(self, ctx: Context, params: types.CancelTaskRequestParams) -> Answer:
        task = self._tasks.get((params.task_id, authenticated_principal(ctx)))
        if task is not None:
            task.run = task.run or asyncio.get_running_loop().create_future()
            task.run.cancel()
        return {}

    def _standing(self, task: _Task) -> Answer:
        approval, run = task.approval, task.run
        shown: Answer = {"taskId": approval.id, "status": "working", "statusMessage": self._text(approval)}
        if run is not None and run.done():
            shown |= {"status": "cancelled"} if run.cancelled() else {"status": "completed", "result": run.result()}
        ttl = int((task.ends - datetime.fromisoformat(approval.opened_at).timestamp()) * 1000)
        shown |= {"createdAt": approval.opened_at, "lastUpdatedAt": to_seconds(time.time())}
        return {**shown, "ttlMs": ttl, "pollIntervalMs": 1000}

    def _text(self, approval: Approval) -> str:
        state, why = approval.standing, f": {approval.why}" if approval.why else ""
        known = f"STEP_UP ({', '.join(approval.reasons)}): approval {approval.id} of {approval.tool} is {state}{why}."
        if state is not ApprovalState.PENDING:
            return f"{known} Nothing was run."
        page, command = self._settings.approval_page, grant_command(self._settings.project.absolute(), approval.id)
        how = f"at {page}{approval.id}" if page else f"by `{command}` in a terminal of their own"
        who = ["the person at this client" if role == SUBJECT else f"the role {role}" for role in approval.approvers]
        by = f"{approval.quorum} of: {', '.join(who) or 'nobody'}"
        return (
            f"{known} Until {approval.expires_at} it is granted {how}, by {by}. Then make exactly the same call again."
        )


async def _stored(step: Callable[[Any], Any], subject: Any) -> Any:
    """Return what a store says; MCPError: it cannot be used."""
    try:
        return await asyncio.to_thread(step, subject)
    except PdpError as error:
        logging.getLogger("pdp.gateway").warning("%s", error)
        raise MCPError(types.INTERNAL_ERROR, f"{error.code}: the gateway's log says more. Nothing was run.") from None
