"""The checks that a proposal passes before the policy is asked, in their order.

In the manifest · schema · invariants · idempotency key · provenance · canonical writes. The first that fails rejects
the proposal with a fixed code, and the policy is not asked (tool registry document, enforcement hops 2 to 4; tool
boundary document, normative requirements).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdp.canonical import canonical, digest
from pdp.manifest.expressions import ExpressionError
from pdp.proposal import ProposalRejectedError, RejectionCode

if TYPE_CHECKING:
    from pdp.contract.compiled import CompiledManifest, CompiledTool
    from pdp.proposal import Proposal
    from pdp.session import Session

_LONGEST_FAULT: Final = 300


class Checked:
    """What the checks found out, whether or not the proposal passed; the trace is made of it.

    Attributes:
        tool: the compiled entry; None when the manifest has none of that name.
        schema_valid, idempotency_missing: None when the check was not reached.
        idempotency_key: the session's, or the derived one.
    """

    __slots__ = ("idempotency_key", "idempotency_missing", "schema_valid", "tool")

    def __init__(self) -> None:
        self.tool: CompiledTool | None = None
        self.schema_valid: bool | None = None
        self.idempotency_key: str | None = None
        self.idempotency_missing: bool | None = None


def check(proposal: Proposal, session: Session, manifest: CompiledManifest, checked: Checked) -> CompiledTool:
    """Run every check, writing what is found into `checked`, and return the tool's compiled entry.

    Raises:
        ProposalRejectedError: the first check that failed.
    """
    tool = checked.tool = manifest.tool(proposal.tool)
    if tool is None:
        raise ProposalRejectedError(
            RejectionCode.INVALID_TOOL_NAME,
            f"{proposal.tool[:128]!r} is not a tool of manifest {manifest.manifest.version}",
        )
    checked.schema_valid = tool.validator.is_valid(proposal.arguments)
    if not checked.schema_valid:
        raise ProposalRejectedError(RejectionCode.INVALID_PAYLOAD, _schema_fault(tool, proposal))
    _check_invariants(tool, proposal, session)
    _check_idempotency(tool, proposal, session, checked)
    _check_provenance(tool, proposal)
    if tool.entry.writes == "canonical":
        raise ProposalRejectedError(
            RejectionCode.DIRECT_CANONICAL_WRITE_FORBIDDEN,
            f"{proposal.tool} would write canonical memory directly; write a proposal instead",
        )
    return tool


def _schema_fault(tool: CompiledTool, proposal: Proposal) -> str:
    faults = []
    for error in tool.validator.iter_errors(proposal.arguments):
        at = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
        # The message quotes the argument, which may be as long as the model likes.
        faults.append(f"arguments{at}: {error.message}"[:_LONGEST_FAULT])
    # The validator lists properties in the order of a hash map; the reason has to be the same for the same input.
    return "; ".join(sorted(faults)[:5]) or "arguments do not match the schema"


def _check_invariants(tool: CompiledTool, proposal: Proposal, session: Session) -> None:
    # A correction is not applied yet, so every violation rejects: the strictest of the three ways out.
    for invariant, condition in tool.invariants:
        try:
            holds = condition.holds(proposal.arguments, session.variables)
        except ExpressionError as error:
            raise ProposalRejectedError(RejectionCode.INVALID_PAYLOAD, f"{invariant.id}: {error.message}") from error
        if not holds:
            raise ProposalRejectedError(RejectionCode.INVALID_PAYLOAD, f"{invariant.id}: {invariant.rule}")


def _check_idempotency(tool: CompiledTool, proposal: Proposal, session: Session, checked: Checked) -> None:
    checked.idempotency_key = session.idempotency_key or None
    if not tool.entry.idempotency.required or checked.idempotency_key:
        checked.idempotency_missing = False
        return
    # The same arguments derive the same key, which is no proof that a commit was meant once and not twice.
    if tool.entry.idempotency.key == "derive(args)" and tool.entry.effect_class != "commit-high":
        checked.idempotency_key = "derived:" + digest(canonical([tool.entry.name, proposal.arguments]))
        checked.idempotency_missing = False
        return
    checked.idempotency_missing = True
    raise ProposalRejectedError(
        RejectionCode.INVALID_PAYLOAD, f"{proposal.tool} needs an idempotency key, and the session has none"
    )


def _check_provenance(tool: CompiledTool, proposal: Proposal) -> None:
    missing = [name for name in tool.entry.provenance.required if not _filled(proposal.arguments.get(name))]
    if missing:
        raise ProposalRejectedError(
            RejectionCode.MISSING_PROVENANCE, f"{proposal.tool} has to name its sources: {', '.join(missing)}"
        )


# Zero names something; the concern `provenance` of the policy says the same.
def _filled(value: Any) -> bool:
    return value is not None and value is not False and value not in ("", [], {})
