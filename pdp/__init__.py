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
    from pdp.approvals.approvals import ApprovalRefusedError, Approvals, Refusal
    from pdp.audit.chain import AuditLog, MemoryAudit
    from pdp.audit.event import AuditEvent
    from pdp.audit.file import FileAudit
    from pdp.contract.planning import PlanningPolicy
    from pdp.contract.registry.registry import Registry
    from pdp.contract.registry.tool_contract import (
        DROP_STEP,
        ToolConfigParam,
        ToolContract,
        ToolInvariant,
        ToolStateEffect,
        ToolStateRead,
    )
    from pdp.decision import Decision, Obligation, Reason, Verdict
    from pdp.engine.bundle.follow import BundleHealth, FollowingEngine
    from pdp.engine.bundle.trust import BundleTrust, ReleaseFloor
    from pdp.engine.opa.engine import SidecarEngine
    from pdp.engine.protocol import Engine
    from pdp.engine.shadow import ShadowCounts, ShadowDifference, ShadowEngine
    from pdp.engine.wasm.engine import EmbeddedEngine
    from pdp.errors import PdpError
    from pdp.evaluation import Evaluation
    from pdp.execution.events import ToolEvent
    from pdp.execution.failures import ToolArgumentError, ToolError, ToolUnavailableError
    from pdp.execution.telemetry import Telemetry
    from pdp.flow.guard import ToolDeniedError, ToolFailedError
    from pdp.flow.plan import PlanEvaluation
    from pdp.flow.visibility import Visibility
    from pdp.loop.agent_loop import AgentLoop, OutputInvalidError, ToolIterationsExceededError, TooManyCallsError
    from pdp.loop.messages import Message, ModelRequest, ToolCall, Turn
    from pdp.obligations.handler import Delivery, ObligationError, ObligationHandler
    from pdp.patterns.deployment import Deployment, Pin
    from pdp.patterns.run import RunClosedError, RunsFullError, pinned
    from pdp.pep import Pep
    from pdp.proposal import Failure, FailureCode, Outcome, Proposal
    from pdp.request import Request
    from pdp.session import Session
    from pdp.stores.actions import Action, ActionState
    from pdp.stores.approvals import Approval, ApprovalState, ApprovalStore, Grant
    from pdp.stores.memory import MemoryActions, MemoryApprovals, MemoryIdempotency
    from pdp.stores.sql.actions import SqlActions
    from pdp.stores.sql.approvals import SqlApprovals
    from pdp.stores.sql.database import Database
    from pdp.stores.sql.keys import SqlIdempotency

__version__ = "0.1.0"

_HOMES = {
    "Action": "pdp.stores.actions",
    "ActionState": "pdp.stores.actions",
    "AgentLoop": "pdp.loop.agent_loop",
    "Approval": "pdp.stores.approvals",
    "ApprovalRefusedError": "pdp.approvals.approvals",
    "ApprovalState": "pdp.stores.approvals",
    "ApprovalStore": "pdp.stores.approvals",
    "Approvals": "pdp.approvals.approvals",
    "AuditEvent": "pdp.audit.event",
    "AuditLog": "pdp.audit.chain",
    "BundleHealth": "pdp.engine.bundle.follow",
    "BundleTrust": "pdp.engine.bundle.trust",
    "DROP_STEP": "pdp.contract.registry.tool_contract",
    "Decision": "pdp.decision",
    "Delivery": "pdp.obligations.handler",
    "Deployment": "pdp.patterns.deployment",
    "EmbeddedEngine": "pdp.engine.wasm.engine",
    "Engine": "pdp.engine.protocol",
    "Evaluation": "pdp.evaluation",
    "Failure": "pdp.proposal",
    "FailureCode": "pdp.proposal",
    "FileAudit": "pdp.audit.file",
    "FollowingEngine": "pdp.engine.bundle.follow",
    "Grant": "pdp.stores.approvals",
    "MemoryActions": "pdp.stores.memory",
    "MemoryApprovals": "pdp.stores.memory",
    "MemoryAudit": "pdp.audit.chain",
    "MemoryIdempotency": "pdp.stores.memory",
    "Message": "pdp.loop.messages",
    "ModelRequest": "pdp.loop.messages",
    "Obligation": "pdp.decision",
    "ObligationError": "pdp.obligations.handler",
    "ObligationHandler": "pdp.obligations.handler",
    "Outcome": "pdp.proposal",
    "OutputInvalidError": "pdp.loop.agent_loop",
    "PdpError": "pdp.errors",
    "Pep": "pdp.pep",
    "Pin": "pdp.patterns.deployment",
    "PlanEvaluation": "pdp.flow.plan",
    "PlanningPolicy": "pdp.contract.planning",
    "Proposal": "pdp.proposal",
    "Reason": "pdp.decision",
    "Refusal": "pdp.approvals.approvals",
    "Registry": "pdp.contract.registry.registry",
    "ReleaseFloor": "pdp.engine.bundle.trust",
    "Request": "pdp.request",
    "RunClosedError": "pdp.patterns.run",
    "RunsFullError": "pdp.patterns.run",
    "Session": "pdp.session",
    "ShadowCounts": "pdp.engine.shadow",
    "ShadowDifference": "pdp.engine.shadow",
    "ShadowEngine": "pdp.engine.shadow",
    "SidecarEngine": "pdp.engine.opa.engine",
    "SqlActions": "pdp.stores.sql.actions",
    "SqlApprovals": "pdp.stores.sql.approvals",
    "SqlIdempotency": "pdp.stores.sql.keys",
    "Database": "pdp.stores.sql.database",
    "Telemetry": "pdp.execution.telemetry",
    "TooManyCallsError": "pdp.loop.agent_loop",
    "ToolArgumentError": "pdp.execution.failures",
    "ToolCall": "pdp.loop.messages",
    "ToolConfigParam": "pdp.contract.registry.tool_contract",
    "ToolContract": "pdp.contract.registry.tool_contract",
    "ToolDeniedError": "pdp.flow.guard",
    "ToolError": "pdp.execution.failures",
    "ToolEvent": "pdp.execution.events",
    "ToolFailedError": "pdp.flow.guard",
    "ToolInvariant": "pdp.contract.registry.tool_contract",
    "ToolIterationsExceededError": "pdp.loop.agent_loop",
    "ToolStateEffect": "pdp.contract.registry.tool_contract",
    "ToolStateRead": "pdp.contract.registry.tool_contract",
    "ToolUnavailableError": "pdp.execution.failures",
    "Turn": "pdp.loop.messages",
    "Verdict": "pdp.decision",
    "Visibility": "pdp.flow.visibility",
    "pinned": "pdp.patterns.run",
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
    "Database",
    "Decision",
    "Delivery",
    "Deployment",
    "EmbeddedEngine",
    "Engine",
    "Evaluation",
    "Failure",
    "FailureCode",
    "FileAudit",
    "FollowingEngine",
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
    "ShadowDifference",
    "ShadowEngine",
    "SidecarEngine",
    "SqlActions",
    "SqlApprovals",
    "SqlIdempotency",
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
