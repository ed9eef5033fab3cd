"""Rules of the patterns that lead to an effect: action-staging and approval-request (tool pattern library, 6 and 7)."""

from typing import Any, Final

import orjson

from pdp.approvals.approvals import Approvals
from pdp.errors import PdpError
from pdp.json import canonical, digest
from pdp.patterns.exceptions import PatternFault
from pdp.patterns.rule import PatternCall, PatternResult, PatternRule, add_snapshots
from pdp.proposal import Execution
from pdp.session import LONGEST_TEXT
from pdp.stores.actions import Action, ActionState
from pdp.stores.approvals import Approval, ApprovalState

_ADDRESSEES: Final = ("queue", "principal")
_CARRIED: Final = ("rationale", "evidence", "sla")


class ActionStaging(PatternRule):
    """Rules for a tool that stages an effect as an action. It needs no function, because the store stages actions."""

    def before(self, call: PatternCall) -> Execution | None:
        """Stage the action, or return the action that was staged before with the same idempotency key."""
        intent = call.arguments["action"]
        if call.entry.commits is not None and intent["kind"] not in call.entry.commits:
            raise PatternFault("action_staging.unknown_kind", f"the tool only stages {', '.join(call.entry.commits)}")
        target = intent["targetSor"]
        if intent.get("targetRef"):
            target = f"{target}/{intent['targetRef']}"
        key = _key(call)
        try:
            new = Action.staged(
                kind=intent["kind"],
                target=target,
                payload_digest=digest(canonical(intent["payload"])),
                decision_id=call.facts.decision_id,
                idempotency_key=key,
                now=call.facts.now,
            )
            action = call.actions.stage(new, call.facts.caller)
        except PdpError as error:
            raise PatternFault("action_staging.refused", error.message) from error
        call.staged = action if action.state is ActionState.STAGED else None
        if action.state in (ActionState.STAGED, ActionState.APPROVED):
            call.run.keep_staged(action.kind, action.payload_digest, action.id)
        return Execution(
            result={
                "id": action.id,
                "kind": action.kind,
                "target": action.target,
                "state": str(action.state),
                "idempotencyKey": action.idempotency_key,
            }
        )


def _key(call: PatternCall) -> str | None:
    """Return the session's idempotency key, else the model's, else a derived one. None if there is no key."""
    proposed = call.arguments.get("idempotencyKey")
    key = call.facts.idempotency_key
    if key is None or (proposed and key.startswith("derived:")):
        key = proposed
    if proposed and proposed != key:
        raise PatternFault("action_staging.other_key", "the call's idempotency key differs from the proposed one")
    if key and len(key) > LONGEST_TEXT:
        message = f"the idempotency key has {len(key)} characters; the limit is {LONGEST_TEXT}"
        raise PatternFault("action_staging.key_too_long", message)
    return key or None


def check_staged(call: PatternCall) -> None:
    """Reject a commit without approval unless exactly this action was staged (pdp/manifest/rules/forbidden.py)."""
    payload = digest(canonical(call.arguments))
    if not call.facts.approved and call.run.staged_action(call.entry.name, payload) is None:
        raise PatternFault(
            "commit.unstaged", f"no action of kind {call.entry.name} with these arguments was staged in this run"
        )


class ApprovalRequest(PatternRule):
    """Rules for a tool that creates an approval task for a queue or person. Deciding the approval decides the task."""

    def before(self, call: PatternCall) -> Execution | None:
        """Check that the task is complete, has one addressee and a pending approval, and store the task there."""
        subject = call.arguments["subject"]
        if subject["type"].lower() not in ("action", "decision"):
            raise PatternFault(
                "approval_request.other_subject", "the subject of an approval must be an action or a decision"
            )
        if sum(bool(call.arguments.get(name)) for name in _ADDRESSEES) != 1:
            raise PatternFault("approval_request.addressee", "a task must be assigned to either a queue or a principal")
        approvals = call.approvals
        approval = None if approvals is None else _pending_approval(call, approvals)
        task = _task_members(call, approval)
        missing = [name for name in _CARRIED if not task.get(name)]
        if missing:
            raise PatternFault("approval_request.incomplete", f"the task lacks {', '.join(missing)}")
        if approvals is not None and approval is not None:
            try:
                approvals.request(approval.id, task, call.facts.time)
            except PdpError as error:
                raise PatternFault("approval_request.refused", error.message) from error
            task["approval"] = approval.id
        call.task = task
        return None

    def after(self, call: PatternCall, checked: PatternResult) -> PatternResult:
        """Check that the returned task has the requested subject and addressee."""
        task = checked.execution.result
        if task["subject"] != call.arguments["subject"]:
            raise PatternFault("approval_request.other_subject", "approval was requested for a different target")
        if any(task.get(name) != call.arguments.get(name) for name in _ADDRESSEES):
            raise PatternFault(
                "approval_request.addressee", "the task is assigned to another queue or principal than requested"
            )
        add_snapshots(task["evidence"], call.run)
        return checked


def _pending_approval(call: PatternCall, approvals: Approvals) -> Approval:
    """Return the caller's pending approval for the action or decision that the task is about."""
    subject, caller = call.arguments["subject"], tuple(orjson.loads(call.facts.caller))
    for approval in approvals.store.list(state=ApprovalState.PENDING, subject=caller[1]):
        is_about = approval.action_id if subject["type"].lower() == "action" else approval.decision_id
        asked_by = approval.requesters[0]
        if is_about == subject["id"] and (asked_by.iss or "", asked_by.sub) == caller:
            return approval
    raise PatternFault("approval_request.nothing_pending", "the caller has no pending approval for that id")


def _task_members(call: PatternCall, approval: Approval | None) -> dict[str, Any]:
    """Return the requested members of the task. Members that are missing come from the approval."""
    task = {name: call.arguments[name] for name in (*_ADDRESSEES, *_CARRIED) if call.arguments.get(name)}
    if approval is not None:
        task.setdefault("rationale", ", ".join(approval.reasons))
        task.setdefault("evidence", [{"source": {"id": approval.decision_id, "kind": "decision"}}])
    return {"sla": call.entry.approval.expires if approval is None else approval.lifetime, **task}
