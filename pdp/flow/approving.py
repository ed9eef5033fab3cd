"""The approval of one call in flight: found before the policy is asked, opened on STEP_UP, used before a tool runs."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.approvals.approvals import ApprovalRefusedError
from pdp.clock import to_seconds
from pdp.decision import denied
from pdp.errors import AuditError
from pdp.flow.acting import asks_for_action, staged
from pdp.flow.keys import arguments_digest, key_of
from pdp.stores.approval import ApprovalState

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from pdp.approvals.approvals import Approvals
    from pdp.flow.call import Call
    from pdp.flow.keeping import Keeping
    from pdp.stores.approval import Approval

_log = logging.getLogger("pdp.pep")

APPROVAL_INVALID: Final = "approvals.invalid"
"""The code of an approval that does not let its call through; the policy gives the same."""


def find_approval(call: Call, approvals: Approvals, keeping: Keeping, context: dict[str, Any]) -> None:
    """Show the policy, as `context.approval`, the approval that lets exactly this call through, if there is one.

    One that was used up by the very run whose result is kept still counts, however long ago that was: nothing will run
    for it.
    """
    now = context["time"]
    call.approval = approvals.usable(context["call_digest"], now)
    if call.approval is None:
        call.approval = _used(call, approvals, keeping, context["call_digest"])
        now = call.approval.closed_at if call.approval is not None and call.approval.closed_at else now
    context["approval"] = call.approval and call.approval.as_context(now)


def _used(call: Call, approvals: Approvals, keeping: Keeping, call_digest: str) -> Approval | None:
    key = key_of(call)
    found = None if key is None else keeping.keys.look(key, arguments_digest(call), time.time())
    approval_id = getattr(found, "approval_id", None)
    approval = None if approval_id is None else approvals.store.get(approval_id)
    if approval is None or approval.call_digest != call_digest or approval.state is not ApprovalState.CONSUMED:
        return None
    return approval


def open_approval(call: Call, approvals: Approvals, keeping: Keeping) -> None:
    """Open the approval that the policy asks for, or find the one that is pending; stage the action that it is for.

    Raises:
        AuditError: it could not be recorded, and is not opened.
        StoreError: the action cannot be staged.
    """
    tool, decision = call.checked.tool, call.decision
    if tool is None or decision is None or call.body is None:
        return
    context = orjson.loads(call.body)["context"]
    approval = approvals.pending(context["call_digest"], context["time"])
    action = None
    if approval is None:
        if asks_for_action(call):
            in_run = call.session is not None and call.session.run_id is not None
            action = staged(call, keeping.actions, keeping.run_of(call) if in_run else None)
        action_id = action.id if action is not None else None
        approval = approvals.open(call.body, tool.entry, decision.codes, action_id=action_id)
    if approval.action_id is not None and (action is None or action.id != approval.action_id):
        action = keeping.actions.get(approval.action_id)
    call.approval, call.action = approval, action


def use_approval(call: Call, approvals: Approvals, *, within: Connection | None = None) -> None:
    """Use up the approval that let this call through; if that fails, deny the call.

    `within`: the transaction to do it in, where there is one.
    """
    if call.approval is None:
        return
    stated = call.session.time if call.session else None
    try:
        call.approval = approvals.consume(call.approval, stated or to_seconds(time.time()), within=within)
    except ApprovalRefusedError as error:
        call.deny(denied(APPROVAL_INVALID, error.message))
    except AuditError as error:
        _log.exception("the use of an approval could not be recorded, which is a DENY")
        call.deny(denied(error.code, str(error)))
