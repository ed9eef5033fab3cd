"""The action of a call that waits for a person, following what the person decides.

Source: tool pattern library, patterns 6 and 7: an approval is a decision on a staged action.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pdp.errors import PdpError
from pdp.stores.actions import ActionState
from pdp.stores.approvals import ApprovalState

if TYPE_CHECKING:
    from pdp.stores.actions import ActionStore
    from pdp.stores.approvals import Approval

_log = logging.getLogger("pdp.approvals")

_FOLLOWING: Final = {
    ApprovalState.GRANTED: ActionState.APPROVED,
    ApprovalState.DENIED: ActionState.DENIED,
    # Nobody may commit it any more; asking again stages another one.
    ApprovalState.WITHDRAWN: ActionState.DENIED,
}


def move_action(actions: ActionStore, approval: Approval) -> None:
    """Approve or deny the action of an approval that was granted, or denied or withdrawn.

    What cannot be moved is logged: it lets nothing through, and whoever commits asks the approval and not the action.
    """
    state = _FOLLOWING.get(approval.state)
    if state is None or approval.action_id is None:
        return
    try:
        action = actions.get(approval.action_id)
        if action is not None and action.state is not state:
            actions.move(action, state, approval_id=approval.id if state is ActionState.APPROVED else None)
    except PdpError:
        _log.exception("the action of approval %s does not follow it", approval.id)
