"""The approval of a call: found before the policy is asked, opened when the policy asks for a person.

Source: tool pattern library, pattern 6 and 9.2: an approval is for one call, and for the action that was staged for it.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from pdp.flow.action import staged_action
from pdp.flow.drive import Work
from pdp.flow.reserve import key_of
from pdp.stores.approvals import ApprovalState
from pdp.stores.keys import Running, Stored, Unknown

if TYPE_CHECKING:
    from collections.abc import Generator

    from pdp.approvals.approvals import Approvals
    from pdp.contract.checks import Checked
    from pdp.flow.drive import Step
    from pdp.flow.parts import Stores
    from pdp.flow.stages import Asked, Decided, Prepared
    from pdp.request import Request
    from pdp.stores.approvals import Approval


def find_approval(
    asked: Asked, checked: Checked, request: Request, approvals: Approvals, stores: Stores
) -> Generator[Step, Any, tuple[Approval | None, Request]]:
    """Return the approval that lets exactly this call through, if there is one, and the request that shows it.

    One that was used up by the very run whose result is stored still counts, however long ago that was: nothing will
    run for it.
    """

    def find() -> tuple[Approval | None, Request]:
        now, call_digest = request.context["time"], request.context["call_digest"]
        approval = approvals.usable(call_digest, now)
        if approval is None:
            approval = _used(asked, checked, call_digest, approvals, stores)
            if approval is None:
                return None, request
            now = approval.closed_at or now
        return approval, request._replace(context={**request.context, "approval": approval.as_context(now)})

    approval_and_request: tuple[Approval | None, Request] = yield Work(
        find, approvals.store.blocking or stores.blocking
    )
    return approval_and_request


def _used(asked: Asked, checked: Checked, call_digest: str, approvals: Approvals, stores: Stores) -> Approval | None:
    key = key_of(asked, checked)
    known = None if key is None else stores.keys.look(key, checked.proposal.digest, time.time())
    approval_id = known.approval_id if isinstance(known, Stored | Running | Unknown) else None
    approval = None if approval_id is None else approvals.store.get(approval_id)
    if approval is None or approval.call_digest != call_digest or approval.state is not ApprovalState.CONSUMED:
        return None
    return approval


def open_approval(
    decided: Decided, prepared: Prepared, approvals: Approvals, stores: Stores
) -> Generator[Step, Any, Decided]:
    """Open the approval that the policy asks for, or find the one that is pending; stage the action that it is for.

    Raises:
        AuditError: it could not be recorded, and is not opened.
        StoreError: the action cannot be staged.
    """

    def open_or_find() -> Decided:
        codes = decided.decision.codes if decided.decision else ()
        approval = approvals.open(
            prepared.body,
            prepared.checked.tool.entry,
            codes,
            stage=partial(staged_action, decided, prepared, stores),
        )
        action = None if approval.action_id is None else stores.actions.get(approval.action_id)
        return decided._replace(approval=approval, action=action)

    opened: Decided = yield Work(open_or_find, approvals.blocking or stores.blocking or stores.reads_sources)
    return opened
