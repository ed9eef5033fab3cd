"""The run of an agent that a call is held to, and the action of a call with effects. Other calls do not load this.

Source: tool pattern library, pattern 6: staging is the only way to a commit. A commit that the policy allows by itself
is staged and approved in one go: no effect of a commit is without an action, and no action has two effects.
Pattern 6 and 9.1 (`compensation`): a commit names the tool that undoes it.
"""

import logging
from collections.abc import Generator, Mapping
from contextlib import suppress
from typing import Any, Final

from pdp.decision import new_id
from pdp.documents import shown_name
from pdp.errors import UsageError
from pdp.flow.decide import decide
from pdp.flow.drive import Step, Work
from pdp.flow.parts import Parts, Stores
from pdp.flow.stages import Decided, Prepared, Received, arguments_of, result_markings
from pdp.json import JsonValueError, canonical
from pdp.patterns.enforcement import HeldCall
from pdp.patterns.rule import CallFacts
from pdp.patterns.run import Run
from pdp.proposal import Execution
from pdp.session import Session
from pdp.stores.actions import Action, ActionState, ActionStateError, ActionStore

_log = logging.getLogger("pdp.pep")

_COMPENSABLE: Final = (ActionState.COMMITTED, ActionState.FAILED)


def hold(decided: Decided, prepared: Prepared, parts: Parts) -> Generator[Step, Any, HeldCall]:
    """Open the run that the call belongs to, and hold the call to the rules of its pattern; StateError if it cannot."""
    stores = parts.stores
    run = yield Work(lambda: stores.run_of(prepared.asked.session), blocking=stores.reads_sources)
    arguments = arguments_of(prepared.checked.proposal)
    facts = CallFacts(
        caller=prepared.asked.session.caller,
        idempotency_key=prepared.checked.idempotency_key,
        decision_id=decided.decision.decision_id if decided.decision else "",
        markings=result_markings(decided),
        clearances=_clearances(prepared.asked.session.claims),
        resource=prepared.resource,
        approved=prepared.approval is not None,
        now=prepared.asked.received.now,
        time=prepared.request.context["time"],
        inputs=_inputs(prepared),
    )
    return HeldCall(prepared.checked.tool.entry, arguments, run, facts, stores.actions, parts.approvals)


def _clearances(claims: Mapping[str, Any]) -> frozenset[str]:
    """Return what subject and acting agents are all cleared for. An agent that states no clearances narrows nothing."""
    # The policy has checked the shape of the claims: it allowed the call.
    held = frozenset(claims.get("clearances") or ())
    agent = claims.get("act")
    while isinstance(agent, dict):
        if "clearances" in agent:
            held &= frozenset(agent["clearances"] or ())
        agent = agent.get("act")
    return held


def _inputs(prepared: Prepared) -> bytes:
    tool, session = prepared.checked.tool, prepared.asked.session
    if tool.entry.pattern is None:
        return b""
    state = {key: session.state[key] for key in tool.reads if key in session.state}
    try:
        return canonical({"config": dict(prepared.checked.config), "state": state})
    except JsonValueError:
        # A normalizer may make any object of a config: what cannot be compared is like nothing else.
        return new_id().encode()


def staged_action(decided: Decided, prepared: Prepared, stores: Stores) -> Action | None:
    """Return the action that a person is asked about: the one staged in the call's run, or one of the call's own.

    None when the call has no effects. As long as nobody has decided on it, the same call finds the same action again,
    and another call another one.
    """
    if not prepared.checked.tool.has_action:
        return None
    staged = prepared.asked.received.staged
    if staged is not None and staged.payload_digest == prepared.checked.proposal.digest:
        return staged  # and no call's yet: one with another key may still commit it, and then needs its own approval
    if prepared.asked.session.run_id is not None:
        in_run = _staged_in_run(prepared, stores.actions, stores.run_of(prepared.asked.session))
        if in_run is not None:
            return in_run
    action = _stage(decided, prepared, stores.actions, prepared.call_digest)
    return action if action.state is ActionState.STAGED else _stage(decided, prepared, stores.actions)


def decide_commit(prepared: Prepared, staged: Action, parts: Parts) -> Generator[Step, Any, Decided | None]:
    """Decide the call that commits a newly staged action, so that whoever has to approve it is asked at once.

    The approval is for exactly that call as this session would make it: with another purpose, fact or key it is another
    call, and asks anew. The key is the session's; where it has none and the tool derives none, the one of the action.
    None where no tool of the manifest commits such an action.
    """
    tool = parts.manifest.tool(staged.kind)
    if tool is None or not tool.has_action:
        return None
    asked = prepared.asked
    session = asked.session.with_changes(request_id=asked.request_id)
    if tool.entry.idempotency.required and not session.idempotency_key and not tool.derives_key:
        session = session.with_changes(idempotency_key=staged.idempotency_key)
    payload = arguments_of(prepared.checked.proposal)["action"]["payload"]
    received = asked.received._replace(staged=staged, transformed=False)
    return (yield from decide(received, {"tool": staged.kind, "arguments": payload}, session, parts))


def approved_action(
    decided: Decided, prepared: Prepared, actions: ActionStore, run: Run, call_id: str | None = None
) -> Action:
    """Return the call's action, approved: by the approval that lets it through, or by the policy alone.

    No two calls get the same one: an action belongs to one approval, and of all that move a staged one, one succeeds.
    `call_id`: the same call that goes on after a crash gets the same one again.

    StoreError: that cannot be stored; ActionStateError: it was denied, or another call or approval has it.
    """
    approval = decided.approval
    if approval is not None and approval.action_id is not None:
        action = actions.get(approval.action_id)
        if action is not None:
            if action.state is not ActionState.APPROVED:
                return actions.move(action, ActionState.APPROVED, approval_id=approval.id)
            if action.approval_id != approval.id:
                raise ActionStateError(f"action {action.id} was approved by another approval than the call's")
            return action
    approval_id = approval.id if approval is not None else None
    in_run = _staged_in_run(prepared, actions, run)
    if approval is None and prepared.checked.tool.commits_staged:
        if in_run is None:
            raise ActionStateError(
                f"the action staged for {decided.tool_name} was committed or denied, or is another call's"
            )
        return actions.move(in_run, ActionState.APPROVED)
    if in_run is not None:
        # Another call of this run may have been quicker: then this one is an effect of its own.
        with suppress(ActionStateError):
            return actions.move(in_run, ActionState.APPROVED, approval_id=approval_id)
    action = _stage(decided, prepared, actions, None if call_id is None else f"call:{call_id}")
    if call_id is not None and action.state is ActionState.APPROVED:
        return action
    return actions.move(action, ActionState.APPROVED, approval_id=approval_id)


def settle(
    action: Action | None, compensates: Action | None, actions: ActionStore, execution: Execution
) -> Action | None:
    """Return a call's action as its run leaves it: committed, failed, or as it was where nobody knows.

    The one that the call takes back (`compensates`) is compensated when the run has succeeded. The run is over: what
    cannot be stored now is logged, and changes nothing about it.
    """
    succeeded = execution.outcome == "succeeded"
    if action is not None and execution.outcome != "unknown":
        action = _moved(action, actions, ActionState.COMMITTED if succeeded else ActionState.FAILED)
    if compensates is not None and succeeded:
        _moved(compensates, actions, ActionState.COMPENSATED)
    return action


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


def _stage(decided: Decided, prepared: Prepared, actions: ActionStore, key: str | None = None) -> Action:
    action = Action.staged(
        kind=decided.tool_name,
        target="/".join(prepared.resource),
        payload_digest=prepared.checked.proposal.digest,
        decision_id=decided.decision.decision_id if decided.decision else "",
        idempotency_key=key,
        now=prepared.asked.received.now,
    )
    return actions.stage(action, prepared.asked.session.caller)


def _staged_in_run(prepared: Prepared, actions: ActionStore, run: Run) -> Action | None:
    """The action that its caller has staged in the run, if nothing has become of it yet; it is this call's then."""
    proposal = prepared.checked.proposal
    action_id = run.bind_staged(proposal.tool, proposal.digest, prepared.call_digest)
    action = None if action_id is None else actions.get(action_id)
    return action if action is not None and action.state is ActionState.STAGED else None


def compensation(
    received: Received, action_id: str, arguments: Any, session: Any, stores: Stores
) -> Generator[Step, Any, tuple[Received, dict[str, Any], Session]]:
    """Return the call of the tool that takes back what an action did, and its session.

    The idempotency key is the action's own: of all that compensate it, whoever they are, one does.

    UsageError: there is no such action, nothing to take back, no tool that does, or no session.
    """
    actions, manifest = stores.actions, received.manifest
    action: Action | None = yield Work(lambda: actions.get(action_id), blocking=actions.blocking)
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
    own = Session.read(session).with_changes(idempotency_key=f"compensation:{action.id}")
    proposal = {"tool": entry.compensation, "arguments": arguments}
    return received._replace(compensates=action), proposal, own
