"""The action of a call with effects: staged before a person is asked or a commit runs, and moved by what comes of it.

Source: tool pattern library, pattern 6: staging is the only way to a commit. A commit that the policy allows by itself
is staged and approved in one go, so that there is no effect of a commit without its action, and no action of two.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import orjson

from pdp.flow.keys import arguments_digest, caller_of
from pdp.manifest.fields import EffectClass, Pattern
from pdp.stores.action import ActionState, ActionStateError
from pdp.stores.key import has_effects

if TYPE_CHECKING:
    from pdp.execution.run import Execution
    from pdp.flow.call import Call
    from pdp.patterns.run import Run
    from pdp.stores.action import Action, ActionStore

_log = logging.getLogger("pdp.pep")

_COMMITS: Final = (EffectClass.COMMIT_LOW, EffectClass.COMMIT_HIGH)


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


def staged(call: Call, actions: ActionStore, run: Run | None) -> Action:
    """Return the action that a person is asked about: the one staged in the call's run, or one of the call's own.

    As long as nobody has decided on it, the same call finds the same action again, and another call another one.

    Raises:
        StoreError: it cannot be staged.
    """
    found = None if run is None else _staged_in_run(call, actions, run)
    if found is not None:
        return found
    action = _stage(call, actions, _call_digest(call))
    return action if action.state is ActionState.STAGED else _stage(call, actions)


def approved(call: Call, actions: ActionStore, run: Run) -> Action:
    """Return the call's action, approved: by the approval that lets it through, or by the policy alone.

    No two calls get the same one: an approval is used once, an action belongs to one approval, and of all that move a
    staged action one gets through.

    Raises:
        StoreError: that cannot be kept.
        ActionStateError: it was denied, or another call or approval has it.
    """
    approval = call.approval
    if approval is not None and approval.action_id is not None:
        action = actions.get(approval.action_id)
        if action is not None:
            if action.state is not ActionState.APPROVED:
                return actions.move(action, ActionState.APPROVED, approval_id=approval.id)
            if action.approval_id != approval.id:
                raise ActionStateError(f"action {action.id} was approved by another approval than the call's")
            return action
    approval_id = approval.id if approval is not None else None
    found = _staged_in_run(call, actions, run)
    if approval is None and _only_what_is_staged(call):
        if found is None:
            raise ActionStateError(
                f"the action staged for {call.tool_name} was committed or denied, or is another call's"
            )
        return actions.move(found, ActionState.APPROVED)
    if found is not None:
        # Another call of this run may have been quicker: then this one is an effect of its own.
        with suppress(ActionStateError):
            return actions.move(found, ActionState.APPROVED, approval_id=approval_id)
    return actions.move(_stage(call, actions), ActionState.APPROVED, approval_id=approval_id)


def settle(action: Action, actions: ActionStore, execution: Execution) -> Action:
    """Return the action as the run leaves it: committed, failed, or as it was where nobody knows.

    The run is over: what cannot be kept now is logged, and changes nothing about it.
    """
    failure = execution.failure
    if failure is not None and failure.details.get("effect") == "unknown":
        return action
    return _moved(action, actions, ActionState.COMMITTED if failure is None else ActionState.FAILED)


def compensate(action: Action, actions: ActionStore) -> Action:
    """Return an action whose compensation has run as compensated; what cannot be kept now is logged.

    Several calls may see that one run's result: whoever comes first moves it.
    """
    return _moved(action, actions, ActionState.COMPENSATED)


def _moved(action: Action, actions: ActionStore, state: ActionState) -> Action:
    try:
        return actions.move(action, state)
    except Exception:  # noqa: BLE001 - whatever it was, the tool has run
        with suppress(Exception):
            now = actions.get(action.id)
            if now is not None and now.state is state:
                return now
        _log.critical(
            "what action %s stands for has run, and it could not be moved to %s", action.id, state, exc_info=True
        )
        return action


def _stage(call: Call, actions: ActionStore, key: str | None = None) -> Action:
    request = orjson.loads(call.body or b"{}")
    return actions.stage(
        owner=caller_of(call.session) if call.session is not None else "",
        kind=call.tool_name,
        target=f"{request['resource']['type']}/{request['resource']['id']}",
        payload_digest=arguments_digest(call),
        decision_id=call.decision.decision_id if call.decision else "",
        idempotency_key=key,
        now=call.now,
    )


def _call_digest(call: Call) -> str:
    request = orjson.loads(call.body or b"{}")
    return str(request["context"]["call_digest"])


def _staged_in_run(call: Call, actions: ActionStore, run: Run) -> Action | None:
    """The action that its caller has staged in the run, if nothing has become of it yet; it is this call's then."""
    action_id = run.bind_staged(call.tool_name, arguments_digest(call), _call_digest(call))
    action = None if action_id is None else actions.get(action_id)
    return action if action is not None and action.state is ActionState.STAGED else None


def _only_what_is_staged(call: Call) -> bool:
    """Whether the entry excuses the call from approval, and so admits only what was staged (pdp/patterns/acting.py)."""
    entry = call.checked.tool.entry if call.checked.tool is not None else None
    return (
        entry is not None
        and entry.effect_class is EffectClass.COMMIT_HIGH
        and bool(entry.approval.unless_within_limits)
    )
