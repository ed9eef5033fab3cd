"""The action of a call with effects: staged before a person is asked or a commit runs, and moved by what comes of it.

Source: tool pattern library, pattern 6: staging is the only way to a commit. A commit that the policy allows by itself
is staged and approved in one go, so that there is no effect of a commit without its action.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import orjson

from pdp.errors import PdpError
from pdp.execution.actions import ActionState
from pdp.execution.idempotency import has_effects
from pdp.flow.keys import arguments_digest, caller_of
from pdp.manifest.fields import EffectClass, Pattern

if TYPE_CHECKING:
    from pdp.execution.actions import Action, ActionStore
    from pdp.execution.running import Execution
    from pdp.flow.call import Call
    from pdp.patterns.runs import Run

_log = logging.getLogger("pdp.pep")

_COMMITS: Final = (EffectClass.COMMIT_LOW, EffectClass.COMMIT_HIGH)
_OPEN: Final = (ActionState.STAGED, ActionState.APPROVED)


def asks_for_action(call: Call) -> bool:
    """Return whether a STEP_UP of this call stages an action: it has effects, and is not the staging itself."""
    tool = call.checked.tool
    return (
        tool is not None
        and has_effects(tool.entry)
        and tool.entry.effect_class is not EffectClass.STAGE
        and tool.entry.pattern is not Pattern.ACTION_STAGING
    )


def needs_action(call: Call) -> bool:
    """Return whether this call must not run without an action: a commit, or what a person has approved."""
    tool = call.checked.tool
    if tool is None or not asks_for_action(call):
        return False
    return tool.entry.effect_class in _COMMITS or call.approval is not None


def staged(call: Call, actions: ActionStore, run: Run | None = None) -> Action:
    """Return the open action of a call: the one that was staged for it, in its run or by a STEP_UP, or a new one.

    Raises:
        StoreError: it cannot be staged.
    """
    found = _known(call, actions, run)
    if found is not None:
        return found
    request = orjson.loads(call.body or b"{}")
    stage = partial(
        actions.stage,
        owner=caller_of(call.session) if call.session is not None else "",
        kind=call.tool_name,
        target=f"{request['resource']['type']}/{request['resource']['id']}",
        payload_digest=arguments_digest(call),
        decision_id=call.decision.decision_id if call.decision else "",
        now=call.now,
    )
    action = stage(idempotency_key=request["context"]["call_digest"])
    # The same call once more, where it may run more than once, is another effect.
    return action if action.state in _OPEN else stage()


def approved(call: Call, actions: ActionStore, run: Run) -> Action:
    """Return the call's action, approved: by the approval that lets it through, or by the policy alone.

    Raises:
        StoreError: that cannot be kept.
        ActionStateError: another call moved it meanwhile.
    """
    action = staged(call, actions, run)
    if action.state is ActionState.APPROVED:
        return action
    return actions.move(
        action, ActionState.APPROVED, approval_id=call.approval.id if call.approval is not None else None
    )


def settle(action: Action, actions: ActionStore, execution: Execution) -> Action:
    """Return the action as the run leaves it: committed, failed, or as it was where nobody knows.

    The run is over: what cannot be kept now is logged, and changes nothing about it.
    """
    failure = execution.failure
    if failure is not None and failure.details.get("effect") == "unknown":
        return action
    state = ActionState.COMMITTED if failure is None else ActionState.FAILED
    try:
        return actions.move(action, state)
    except PdpError:
        _log.exception("action %s has run, and could not be moved to %s", action.id, state)
        return action


def _known(call: Call, actions: ActionStore, run: Run | None) -> Action | None:
    ids = [
        call.approval.action_id if call.approval is not None else None,
        run.staged_action(call.tool_name, arguments_digest(call)) if run is not None else None,
    ]
    for action_id in ids:
        action = None if action_id is None else actions.get(action_id)
        if action is not None and action.state in _OPEN:
            return action
    return None
