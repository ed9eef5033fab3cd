"""Calls that wait for approval. The client learns this in the first of these ways that is supported and configured.

    a task     if the request declares the tasks extension; the client polls until there is a result
    a page     if the client opens pages for its user (URL elicitation), and the approval has a page
    a wait     for `hold` seconds, also after a page was opened; clients that ask for progress get reports
    a text     which names the pending call and its approvers, and asks the model to repeat the call

Only the store of approvals records whether a call was approved. A task's id, a sealed state and a client's `accept`
only name the approval, so the call is decided again for the client that asks.
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
DENIED: Final = 403  # The JSON-RPC code for denied requests that have no result. It is outside of the reserved range.

_STATE_SECONDS: Final = 3600.0
_LONGEST: Final = 55.0  # A person has this many seconds to open the approval page.
_LOOK: Final = 0.25  # The number of seconds between two reads of the store.
_KEPT: Final = 600.0  # A task's result is kept for this many seconds after its approval expires.


@dataclass
class _Task:
    approval: Approval
    make: Make
    ends: float
    looked: float = 0.0
    run: asyncio.Future[Answer] | None = None


class Pending:
    """The requests that wait for approval. Tasks end with this process; a repeated call still finds its approval."""

    def __init__(self, settings: GatewaySettings, approvals: Approvals, used: SqlRemoteCalls) -> None:
        self._settings, self._approvals, self._used = settings, approvals, used
        self._security = RequestStateSecurity.ephemeral(ttl=_STATE_SECONDS)
        self._tasks: dict[tuple[str, str | None], _Task] = {}

    def serve(self, server: Server[Any]) -> None:
        """Add methods for tasks to a server, seal its request states, and reject methods that AuthZEN does not map."""
        server.extensions[TASKS] = {}
        server.add_request_handler("tasks/get", types.GetTaskRequestParams, self._get_task)
        server.add_request_handler("tasks/cancel", types.CancelTaskRequestParams, self._cancel_task)
        server.middleware += [admit, RequestStateBoundary(self._security, default_audience=server.name)]

    async def answer(self, ctx: Context, params: types.InputResponseRequestParams, make: Make) -> Answer:
        """Return a request's result. `make` makes the call, and returns the call's result or pending approval.

        Raise `MCPError` if the method cannot return a denial, the request state is invalid or spent, or a store fails.
        """
        if params.request_state is not None:
            approval, opened = await self._resumed(params.request_state, params.input_responses or {})
        else:
            made = await make(ctx)
            if not isinstance(made, Approval):
                return made
            approval, opened, page = made, True, self._page(made)
            declared = ctx.session.client_capabilities or types.ClientCapabilities()
            if ctx.protocol_version >= NEW and ctx.method == "tools/call" and TASKS in (declared.extensions or {}):
                self._tasks = {key: each for key, each in self._tasks.items() if each.ends > time.time()}
                task = _Task(approval, make, datetime.fromisoformat(approval.expires_at).timestamp() + _KEPT)
                self._tasks[approval.id, authenticated_principal(ctx)] = task
                return {**self._task_status(task), "resultType": "task"}
            if page and declared.elicitation and declared.elicitation.url:
                text = self._text(approval)
                if ctx.protocol_version >= NEW:
                    state = json.dumps([approval.id, f"mcp-state:{new_id()}"])
                    asked = {"method": "elicitation/create", "params": {"mode": "url", "message": text, "url": page}}
                    return {"resultType": "input_required", "inputRequests": {"approval": asked}, "requestState": state}
                opened = False
                with suppress(TimeoutError, MCPError):
                    async with asyncio.timeout(_LONGEST):
                        answer = await ctx.session.elicit_url(text, page, approval.id, ctx.request_id)
                        opened = answer.action == "accept"
        until = time.monotonic() + self._settings.hold * opened
        while approval.standing is ApprovalState.PENDING and (left := until - time.monotonic()) > 0:
            # The gateway's progress values are negative and rise towards 0, because the tool's own progress starts at
            # 0.
            await ctx.session.report_progress(-left, None, self._text(approval))
            await asyncio.sleep(min(_LOOK, left))
            approval = await _read_store(self._approvals.get, approval.id)
        return await self._finish(ctx, approval, make)

    async def _finish(self, ctx: Context, approval: Approval, make: Make) -> Answer:
        # If the same call was made before with the approval, this call may return the stored result.
        if approval.standing in (ApprovalState.GRANTED, ApprovalState.CONSUMED):
            made = await make(ctx)
            if not isinstance(made, Approval):
                return made
            approval = made
        if ctx.method in ("resources/read", "prompts/get"):
            raise MCPError(DENIED, self._text(approval))
        return {"content": [{"type": "text", "text": self._text(approval)}], "isError": True, "resultType": "complete"}

    async def _resumed(self, state: str, answers: types.InputResponses) -> tuple[Approval, bool]:
        """Return the approval that a request state names, and whether the client opened the page."""
        approval_id, name = json.loads(state)
        until = time.time() + _STATE_SECONDS
        if not await _read_store(self._used.add, RemoteCall(name, "mcp-state", "", CallState.FINISHED, until, 0.0, {})):
            raise MCPError(types.INVALID_PARAMS, "Invalid or expired requestState")
        opened = getattr(answers.get("approval"), "action", None) == "accept"
        return await _read_store(self._approvals.get, approval_id), opened

    async def _get_task(self, ctx: Context, params: types.GetTaskRequestParams) -> Answer:
        task = self._tasks.get((params.task_id, authenticated_principal(ctx)))
        if task is None:
            raise MCPError(types.INVALID_PARAMS, "no such task")
        if task.run is None and task.looked + _LOOK < time.monotonic():
            task.looked = time.monotonic()
            task.approval = await _read_store(self._approvals.get, task.approval.id)
            if task.run is None and task.approval.standing is not ApprovalState.PENDING:
                task.run = asyncio.ensure_future(self._finish(ctx, task.approval, task.make))
        if task.run is not None:
            await asyncio.wait((task.run,), timeout=_LOOK)
        return {**self._task_status(task), "resultType": "complete"}

    async def _cancel_task(self, ctx: Context, params: types.CancelTaskRequestParams) -> Answer:
        task = self._tasks.get((params.task_id, authenticated_principal(ctx)))
        if task is not None:
            task.run = task.run or asyncio.get_running_loop().create_future()
            task.run.cancel()
        return {}

    def _task_status(self, task: _Task) -> Answer:
        approval, run = task.approval, task.run
        shown: Answer = {"taskId": approval.id, "status": "working", "statusMessage": self._text(approval)}
        if run is not None and run.done():
            shown |= {"status": "cancelled"} if run.cancelled() else {"status": "completed", "result": run.result()}
        ttl = int((task.ends - datetime.fromisoformat(approval.opened_at).timestamp()) * 1000)
        shown |= {"createdAt": approval.opened_at, "lastUpdatedAt": to_seconds(time.time())}
        return {**shown, "ttlMs": ttl, "pollIntervalMs": 1000}

    def _page(self, approval: Approval) -> str | None:
        page = self._settings.approval_page
        return approval.url if page is None else f"{page}{approval.id}"

    def _text(self, approval: Approval) -> str:
        state, why = approval.standing, f": {approval.why}" if approval.why else ""
        known = f"STEP_UP ({', '.join(approval.reasons)}): approval {approval.id} of {approval.tool} is {state}{why}."
        if state is not ApprovalState.PENDING:
            return f"{known} The tool did not run."
        page, command = self._page(approval), grant_command(self._settings.project.absolute(), approval.id)
        how = f"at {page}" if page else f"with `{command}` in their own terminal"
        who = ["the person at this client" if role == SUBJECT else f"the role {role}" for role in approval.approvers]
        by = who[0] if len(who) == approval.quorum == 1 else f"{approval.quorum} of: {', '.join(who) or 'no approver'}"
        until = approval.expires_at
        return f"{known} Until {until}, {by} can grant it {how}. Then make exactly the same call again."


async def _read_store(step: Callable[[Any], Any], subject: Any) -> Any:
    try:
        return await asyncio.to_thread(step, subject)
    except PdpError as error:
        logging.getLogger("pdp.gateway").warning("%s", error)
        raise MCPError(types.INTERNAL_ERROR, f"{error.code}: see the gateway's log. The tool did not run.") from None
