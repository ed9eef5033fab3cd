"""Policy decisions for the tool calls of AI agents.

    from pdp import Pep, Session

    pep = Pep.from_files("manifest.json", governance="governance.yaml")
    session = Session(claims={"sub": "officer-123", "emts": {"payments.lookup": True}})
    evaluation = pep.decide({"tool": "lookup_beneficiary", "arguments": {"payee_name": "Acme"}}, session)
    print(evaluation.verdict, evaluation.codes)

What is listed in `__all__` is the public interface. It is imported when it is first used: `import pdp` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdp.approvals.approval import Approval, ApprovalState, Grant
    from pdp.approvals.approvals import ApprovalRefusedError, Approvals, Refusal
    from pdp.approvals.sql_store import SqlApprovals
    from pdp.approvals.store import ApprovalStore, MemoryApprovals
    from pdp.audit import AuditEvent, AuditLog, FileAudit, MemoryAudit
    from pdp.contract.planning import PlanningPolicy
    from pdp.contract.registry import Registry
    from pdp.contract.tool_contract import (
        DROP_STEP,
        ToolConfigParam,
        ToolContract,
        ToolInvariant,
        ToolStateEffect,
        ToolStateRead,
    )
    from pdp.decision import Decision, Obligation, Reason, Verdict
    from pdp.engine.embedded import EmbeddedEngine
    from pdp.engine.protocol import Engine
    from pdp.engine.shadow import ShadowEngine
    from pdp.engine.shadow_difference import Difference
    from pdp.engine.shadow_record import ShadowCounts
    from pdp.engine.sidecar import SidecarEngine
    from pdp.engine.trust import BundleTrust, ReleaseFloor
    from pdp.engine.watching import BundleHealth, WatchingEngine
    from pdp.errors import PdpError
    from pdp.execution.action_memory import MemoryActions
    from pdp.execution.action_sql import SqlActions
    from pdp.execution.actions import Action, ActionState
    from pdp.execution.events import ToolEvent
    from pdp.execution.failures import ToolArgumentError, ToolError, ToolUnavailableError
    from pdp.execution.idempotency_memory import MemoryIdempotency
    from pdp.execution.idempotency_sql import SqlIdempotency
    from pdp.execution.telemetry import Telemetry
    from pdp.flow.call import Evaluation
    from pdp.flow.guard import ToolDeniedError, ToolFailedError
    from pdp.flow.planning import PlanEvaluation
    from pdp.flow.visibility import Visibility
    from pdp.loop.agent_loop import AgentLoop, ToolIterationsExceededError, TooManyCallsError
    from pdp.loop.messages import Message, ModelRequest, ToolCall, Turn
    from pdp.loop.output import OutputInvalidError
    from pdp.obligations.obligation import Delivery, ObligationError, ObligationHandler
    from pdp.patterns.current import pinned
    from pdp.patterns.deployment import Deployment, Pin
    from pdp.patterns.runs import RunClosedError, RunsFullError
    from pdp.pep import Pep
    from pdp.proposal import Failure, FailureCode, Outcome, Proposal
    from pdp.request import Request
    from pdp.session import Session
    from pdp.store.store import Store

__version__ = "0.1.0"

_HOMES = {
    "Action": "pdp.execution.actions",
    "ActionState": "pdp.execution.actions",
    "AgentLoop": "pdp.loop.agent_loop",
    "Approval": "pdp.approvals.approval",
    "ApprovalRefusedError": "pdp.approvals.approvals",
    "ApprovalState": "pdp.approvals.approval",
    "ApprovalStore": "pdp.approvals.store",
    "Approvals": "pdp.approvals.approvals",
    "AuditEvent": "pdp.audit",
    "AuditLog": "pdp.audit",
    "BundleHealth": "pdp.engine.watching",
    "BundleTrust": "pdp.engine.trust",
    "DROP_STEP": "pdp.contract.tool_contract",
    "Decision": "pdp.decision",
    "Delivery": "pdp.obligations.obligation",
    "Deployment": "pdp.patterns.deployment",
    "Difference": "pdp.engine.shadow_difference",
    "EmbeddedEngine": "pdp.engine.embedded",
    "Engine": "pdp.engine.protocol",
    "Evaluation": "pdp.flow.call",
    "Failure": "pdp.proposal",
    "FailureCode": "pdp.proposal",
    "FileAudit": "pdp.audit",
    "Grant": "pdp.approvals.approval",
    "MemoryActions": "pdp.execution.action_memory",
    "MemoryApprovals": "pdp.approvals.store",
    "MemoryAudit": "pdp.audit",
    "MemoryIdempotency": "pdp.execution.idempotency_memory",
    "Message": "pdp.loop.messages",
    "ModelRequest": "pdp.loop.messages",
    "Obligation": "pdp.decision",
    "ObligationError": "pdp.obligations.obligation",
    "ObligationHandler": "pdp.obligations.obligation",
    "Outcome": "pdp.proposal",
    "OutputInvalidError": "pdp.loop.output",
    "PdpError": "pdp.errors",
    "Pep": "pdp.pep",
    "Pin": "pdp.patterns.deployment",
    "PlanEvaluation": "pdp.flow.planning",
    "PlanningPolicy": "pdp.contract.planning",
    "Proposal": "pdp.proposal",
    "Reason": "pdp.decision",
    "Refusal": "pdp.approvals.approvals",
    "Registry": "pdp.contract.registry",
    "ReleaseFloor": "pdp.engine.trust",
    "Request": "pdp.request",
    "RunClosedError": "pdp.patterns.runs",
    "RunsFullError": "pdp.patterns.runs",
    "Session": "pdp.session",
    "ShadowCounts": "pdp.engine.shadow_record",
    "ShadowEngine": "pdp.engine.shadow",
    "SidecarEngine": "pdp.engine.sidecar",
    "SqlActions": "pdp.execution.action_sql",
    "SqlApprovals": "pdp.approvals.sql_store",
    "SqlIdempotency": "pdp.execution.idempotency_sql",
    "Store": "pdp.store.store",
    "Telemetry": "pdp.execution.telemetry",
    "TooManyCallsError": "pdp.loop.agent_loop",
    "ToolArgumentError": "pdp.execution.failures",
    "ToolCall": "pdp.loop.messages",
    "ToolConfigParam": "pdp.contract.tool_contract",
    "ToolContract": "pdp.contract.tool_contract",
    "ToolDeniedError": "pdp.flow.guard",
    "ToolError": "pdp.execution.failures",
    "ToolEvent": "pdp.execution.events",
    "ToolFailedError": "pdp.flow.guard",
    "ToolInvariant": "pdp.contract.tool_contract",
    "ToolIterationsExceededError": "pdp.loop.agent_loop",
    "ToolStateEffect": "pdp.contract.tool_contract",
    "ToolStateRead": "pdp.contract.tool_contract",
    "ToolUnavailableError": "pdp.execution.failures",
    "Turn": "pdp.loop.messages",
    "Verdict": "pdp.decision",
    "Visibility": "pdp.flow.visibility",
    "WatchingEngine": "pdp.engine.watching",
    "pinned": "pdp.patterns.current",
}

__all__ = [
    "DROP_STEP",
    "Action",
    "ActionState",
    "AgentLoop",
    "Approval",
    "ApprovalRefusedError",
    "ApprovalState",
    "ApprovalStore",
    "Approvals",
    "AuditEvent",
    "AuditLog",
    "BundleHealth",
    "BundleTrust",
    "Decision",
    "Delivery",
    "Deployment",
    "Difference",
    "EmbeddedEngine",
    "Engine",
    "Evaluation",
    "Failure",
    "FailureCode",
    "FileAudit",
    "Grant",
    "MemoryActions",
    "MemoryApprovals",
    "MemoryAudit",
    "MemoryIdempotency",
    "Message",
    "ModelRequest",
    "Obligation",
    "ObligationError",
    "ObligationHandler",
    "Outcome",
    "OutputInvalidError",
    "PdpError",
    "Pep",
    "Pin",
    "PlanEvaluation",
    "PlanningPolicy",
    "Proposal",
    "Reason",
    "Refusal",
    "Registry",
    "ReleaseFloor",
    "Request",
    "RunClosedError",
    "RunsFullError",
    "Session",
    "ShadowCounts",
    "ShadowEngine",
    "SidecarEngine",
    "SqlActions",
    "SqlApprovals",
    "SqlIdempotency",
    "Store",
    "Telemetry",
    "TooManyCallsError",
    "ToolArgumentError",
    "ToolCall",
    "ToolConfigParam",
    "ToolContract",
    "ToolDeniedError",
    "ToolError",
    "ToolEvent",
    "ToolFailedError",
    "ToolInvariant",
    "ToolIterationsExceededError",
    "ToolStateEffect",
    "ToolStateRead",
    "ToolUnavailableError",
    "Turn",
    "Verdict",
    "Visibility",
    "WatchingEngine",
    "pinned",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pdp' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
