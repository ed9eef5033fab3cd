"""Taking back what an action did, by the tool that its entry declares for that.

Source: tool pattern library, pattern 6 and 9.1 (`compensation`): a commit names the tool that undoes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdp.documents import shown_name
from pdp.errors import UsageError
from pdp.session import Session
from pdp.stores.action import ActionState

if TYPE_CHECKING:
    from pdp.manifest.effective import EffectiveManifest
    from pdp.stores.action import Action

_COMPENSABLE: Final = (ActionState.COMMITTED, ActionState.FAILED)


def compensation(
    action_id: str, action: Action | None, arguments: Any, session: Any, manifest: EffectiveManifest
) -> tuple[dict[str, Any], Session]:
    """Return the proposal that takes an action back, and the session that it is made in.

    The idempotency key is the action's own, whatever the session says: of all that compensate it, whoever they are, one
    does.

    Args:
        action_id: the action's id.
        action: the action; None when there is none.
        arguments: those of the compensating tool.
        session: who compensates.
        manifest: where the tools are.

    Raises:
        UsageError: there is no such action, nothing to take back, no tool that does, or no session.
    """
    shown = f"action {shown_name(action_id)}"
    if action is None:
        raise UsageError(f"{shown} is not there", hint="take the id from `Evaluation.action`")
    if action.state not in _COMPENSABLE:
        raise UsageError(f"{shown} is {action.state}", hint="only what was committed, or has failed, is compensated")
    entry = manifest.tools.get(action.kind)
    if entry is None:
        raise UsageError(
            f"{shown}: its kind {shown_name(action.kind)} is not a tool of manifest {manifest.version}",
            hint="compensate it with the manifest that it was committed with",
        )
    if entry.compensation is None:
        raise UsageError(f"{shown}: tool {entry.name} declares no compensation", hint="add `compensation: TOOL`")
    if entry.compensation not in manifest.tools:
        raise UsageError(
            f"{shown}: its compensation {shown_name(entry.compensation)} is not a tool of manifest {manifest.version}",
            hint="declare it in the manifest",
        )
    own = Session.read(session).with_changes(idempotency_key=f"compensation:{action.id}")
    return {"tool": entry.compensation, "arguments": arguments}, own
