"""The approval of one call in flight: found before the policy is asked, opened on STEP_UP, used before a tool runs."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from pdp.approvals.approvals import ApprovalRefusedError
from pdp.clock import to_seconds
from pdp.decision import denied
from pdp.errors import AuditError
from pdp.flow.acting import asks_for_action, staged
from pdp.flow.keys import arguments_digest, key_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from pdp.approvals.approval import Approval
    from pdp.approvals.approvals import Approvals
    from pdp.execution.actions import ActionStore
    from pdp.execution.idempotency import IdempotencyStore
    from pdp.flow.call import Call

_log = logging.getLogger("pdp.pep")

APPROVAL_INVALID: Final = "approvals.invalid"
"""The code of an approval that does not let its call through; the policy gives the same."""


def find_approval(call: Call, approvals: Approvals, keys: IdempotencyStore, context: dict[str, Any]) -> None:
    """Show the policy, as `context.approval`, the approval that lets exactly this call through, if there is one.

    One that was used up by the very run whose result is kept still counts: nothing will run for it.
    """
    call.approval = approvals.usable(context["call_digest"], context["time"])
    if call.approval is None:
        call.approval = _used(call, approvals, keys, context["call_digest"])
    context["approval"] = call.approval and call.approval.as_context(context["time"])


def _used(call: Call, approvals: Approvals, keys: IdempotencyStore, call_digest: str) -> Approval | None:
    key = key_of(call)
    found = None if key is None else keys.look(key, arguments_digest(call), time.time())
    approval_id = getattr(found, "approval_id", None)
    approval = None if approval_id is None else approvals.store.get(approval_id)
    return approval if approval is not None and approval.call_digest == call_digest else None


def open_approval(call: Call, approvals: Approvals, actions: ActionStore) -> None:
    """Open the approval that the policy asks for, or find the one that is pending; stage the action that it is for.

    Raises:
        AuditError: it could not be recorded, and is not opened.
        StoreError: the action cannot be staged.
    """
    tool, decision = call.checked.tool, call.decision
    if tool is not None and decision is not None and call.body is not None:
        if asks_for_action(call):
            call.action = staged(call, actions)
        action_id = call.action.id if call.action is not None else None
        call.approval = approvals.open(call.body, tool.entry, decision.codes, action_id=action_id)


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
