"""The approval of one call in flight: found before the policy is asked, opened on STEP_UP, used before a tool runs."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from pdp.approvals.approvals import ApprovalRefusedError
from pdp.clock import to_seconds
from pdp.decision import denied
from pdp.errors import AuditError

if TYPE_CHECKING:
    from pdp.approvals.approvals import Approvals
    from pdp.flow.call import Call

_log = logging.getLogger("pdp.pep")

APPROVAL_INVALID: Final = "approvals.invalid"
"""The code of an approval that does not let its call through; the policy gives the same."""


def find_approval(call: Call, approvals: Approvals, context: dict[str, Any]) -> None:
    """Show the policy, as `context.approval`, the approval that lets exactly this call through, if there is one."""
    call.approval = approvals.usable(context["call_digest"], context["time"])
    context["approval"] = call.approval and call.approval.as_context(context["time"])


def open_approval(call: Call, approvals: Approvals) -> None:
    """Open the approval that the policy asks for, or find the one that is pending.

    Raises:
        AuditError: it could not be recorded, and is not opened.
    """
    tool, decision = call.checked.tool, call.decision
    if tool is not None and decision is not None and call.body is not None:
        call.approval = approvals.open(call.body, tool.entry, decision.codes)


def use_approval(call: Call, approvals: Approvals) -> None:
    """Use up the approval that let this call through; if that fails, deny the call."""
    if call.approval is None:
        return
    stated = call.session.time if call.session else None
    try:
        call.approval = approvals.consume(call.approval, stated or to_seconds(time.time()))
    except ApprovalRefusedError as error:
        call.deny(denied(APPROVAL_INVALID, error.message))
    except AuditError as error:
        _log.exception("the use of an approval could not be recorded, which is a DENY")
        call.deny(denied(error.code, str(error)))
