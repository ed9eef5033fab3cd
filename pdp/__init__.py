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
    from pdp.approvals.store import ApprovalStore, MemoryApprovals
    from pdp.audit import AuditEvent, AuditLog, FileAudit, MemoryAudit
    from pdp.decision import Decision, Obligation, Reason, Verdict
    from pdp.engine.embedded import EmbeddedEngine
    from pdp.engine.protocol import Engine
    from pdp.engine.sidecar import SidecarEngine
    from pdp.errors import PdpError
    from pdp.flow.call import Evaluation, ToolDeniedError, ToolFailedError
    from pdp.obligations.obligation import Delivery, ObligationError, ObligationHandler
    from pdp.pep import Pep
    from pdp.proposal import Outcome, Proposal
    from pdp.request import Request
    from pdp.session import Session

__version__ = "0.1.0"

_HOMES = {
    "Approval": "pdp.approvals.approval",
    "ApprovalRefusedError": "pdp.approvals.approvals",
    "ApprovalState": "pdp.approvals.approval",
    "ApprovalStore": "pdp.approvals.store",
    "Approvals": "pdp.approvals.approvals",
    "AuditEvent": "pdp.audit",
    "AuditLog": "pdp.audit",
    "Decision": "pdp.decision",
    "Delivery": "pdp.obligations.obligation",
    "EmbeddedEngine": "pdp.engine.embedded",
    "Engine": "pdp.engine.protocol",
    "Evaluation": "pdp.flow.call",
    "FileAudit": "pdp.audit",
    "Grant": "pdp.approvals.approval",
    "MemoryApprovals": "pdp.approvals.store",
    "MemoryAudit": "pdp.audit",
    "Obligation": "pdp.decision",
    "ObligationError": "pdp.obligations.obligation",
    "ObligationHandler": "pdp.obligations.obligation",
    "Outcome": "pdp.proposal",
    "PdpError": "pdp.errors",
    "Pep": "pdp.pep",
    "Proposal": "pdp.proposal",
    "Reason": "pdp.decision",
    "Refusal": "pdp.approvals.approvals",
    "Request": "pdp.request",
    "Session": "pdp.session",
    "SidecarEngine": "pdp.engine.sidecar",
    "ToolDeniedError": "pdp.flow.call",
    "ToolFailedError": "pdp.flow.call",
    "Verdict": "pdp.decision",
}

__all__ = [
    "Approval",
    "ApprovalRefusedError",
    "ApprovalState",
    "ApprovalStore",
    "Approvals",
    "AuditEvent",
    "AuditLog",
    "Decision",
    "Delivery",
    "EmbeddedEngine",
    "Engine",
    "Evaluation",
    "FileAudit",
    "Grant",
    "MemoryApprovals",
    "MemoryAudit",
    "Obligation",
    "ObligationError",
    "ObligationHandler",
    "Outcome",
    "PdpError",
    "Pep",
    "Proposal",
    "Reason",
    "Refusal",
    "Request",
    "Session",
    "SidecarEngine",
    "ToolDeniedError",
    "ToolFailedError",
    "Verdict",
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
