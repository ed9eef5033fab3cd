"""The checks that a proposal passes before the policy is asked, in their order.

In the manifest · schema · invariants · idempotency key · provenance · canonical writes. The first that fails rejects
the proposal with a fixed code, and the policy is not asked (tool registry document, enforcement hops 2 to 4; tool
boundary document, normative requirements). What the invariants correct is what is decided on and what runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdp.contract.invariant_rules import Circumstances
from pdp.contract.invariants import log_trips
from pdp.contract.plan_position import PlanSoFar
from pdp.errors import PdpError
from pdp.json import canonical, digest
from pdp.proposal import Proposal, ProposalRejectedError, RejectionCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdp.contract.compiled import CompiledManifest, CompiledTool
    from pdp.contract.invariants import Trip
    from pdp.session import Session

_LONGEST_FAULT: Final = 300
# Nested lists and objects in an argument that names sources, as in the concern `provenance`.
_DEEPEST: Final = 4
# As Unicode and Rego's `trim_space` have it; Python's own `strip` takes four control characters more.
_WHITE_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


class ProposalPrunedError(PdpError):
    """An invariant drops the call from its plan: the outcome is transformed, without a proposal."""

    code = "pdp.proposal_pruned"

    def __init__(self, trip: Trip) -> None:
        super().__init__(f"{trip.invariant}: {trip.rule}")
        self.trip = trip


class Checked:
    """What the checks found out, whether or not the proposal passed; the trace is made of it.

    Attributes:
        tool: the compiled entry; None when the manifest has none of that name.
        schema_valid, idempotency_missing: None when the check was not reached.
        idempotency_key: the session's, or the derived one.
        proposal: what is decided on: the proposal after correction; as it was made when nothing was corrected.
        trips: the invariants that tripped, in their order, each with what became of the call.
        config: the tool's config, resolved, read-only; None when the check was not reached.
    """

    __slots__ = ("config", "idempotency_key", "idempotency_missing", "proposal", "schema_valid", "tool", "trips")

    def __init__(self) -> None:
        self.tool: CompiledTool | None = None
        self.schema_valid: bool | None = None
        self.idempotency_key: str | None = None
        self.idempotency_missing: bool | None = None
        self.proposal: Proposal | None = None
        self.trips: tuple[Trip, ...] = ()
        self.config: Mapping[str, Any] | None = None


def check(
    proposal: Proposal,
    session: Session,
    manifest: CompiledManifest,
    checked: Checked,
    *,
    before: Sequence[Any] | None = None,
) -> CompiledTool:
    """Run every check, writing what is found into `checked`, and return the tool's compiled entry.

    What passed is `checked.proposal`: whoever goes on with `proposal` instead goes on with what was not checked.

    Args:
        proposal: as the model made it.
        session: who calls, and in which plan.
        manifest: the tools.
        checked: where to write what is found.
        before: the steps of a plan that come before the call and go on, `[{tool, arguments}]`; None: those before the
            first step of the session's plan that is equal to the call.

    Raises:
        ProposalRejectedError: the first check that failed.
        ProposalPrunedError: an invariant drops the call.
        ConfigError: the tool's config cannot be resolved.
    """
    checked.proposal = proposal
    tool = checked.tool = manifest.tool(proposal.tool)
    if tool is None:
        raise ProposalRejectedError(
            RejectionCode.INVALID_TOOL_NAME,
            f"{proposal.tool[:128]!r} is not a tool of manifest {manifest.manifest.version}",
        )
    checked.schema_valid = tool.validator.is_valid(proposal.arguments)
    if not checked.schema_valid:
        raise ProposalRejectedError(RejectionCode.INVALID_PAYLOAD, schema_fault(tool, proposal.arguments))
    checked.config = tool.config.resolve(session.config, session.state)
    if tool.invariants.rules:
        proposal = _settled(tool, proposal, session, checked, before)
    _check_idempotency(tool, proposal, session, checked)
    _check_provenance(tool, proposal)
    if tool.entry.writes == "canonical":
        raise ProposalRejectedError(
            RejectionCode.DIRECT_CANONICAL_WRITE_FORBIDDEN,
            f"{proposal.tool} would write canonical memory directly; write a proposal instead",
        )
    return tool


def schema_fault(tool: CompiledTool, arguments: dict[str, Any]) -> str:
    """Return why the tool's schema refuses these arguments, the same for the same arguments."""
    faults = []
    for error in tool.validator.iter_errors(arguments):
        at = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
        # The message quotes the argument, which may be as long as the model likes.
        faults.append(f"arguments{at}: {error.message}"[:_LONGEST_FAULT])
    # The validator lists properties in the order of a hash map; the reason has to be the same for the same input.
    return "; ".join(sorted(faults)[:5]) or "arguments do not match the schema"


def _settled(
    tool: CompiledTool, proposal: Proposal, session: Session, checked: Checked, before: Sequence[Any] | None
) -> Proposal:
    """Return the proposal as the invariants leave it."""
    about = Circumstances(session.state, checked.config or {}, PlanSoFar(proposal, session.plan, before).up_to)
    settled = tool.invariants.settle(
        proposal.arguments,
        about,
        lambda mended: None if tool.validator.is_valid(mended) else schema_fault(tool, mended),
    )
    checked.trips = settled.trips
    log_trips(tool.entry.name, settled.trips)
    if settled.fault is not None:
        raise ProposalRejectedError(settled.rejection, settled.fault)
    if settled.pruned:
        raise ProposalPrunedError(settled.trips[-1])
    if settled.arguments is not proposal.arguments:
        # Read anew, and so within the bounds of a proposal and in its one canonical form.
        proposal = checked.proposal = Proposal.read({"tool": proposal.tool, "arguments": settled.arguments})
    return proposal


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


# Every part has to name something, and zero does; the concern `provenance` of the policy says the same.
def _filled(value: Any, deeper: int = _DEEPEST) -> bool:
    if isinstance(value, str):
        return bool(value.strip(_WHITE_SPACE))
    if isinstance(value, (list, dict)):
        parts = value.values() if isinstance(value, dict) else value
        return bool(value) and deeper > 0 and all(_filled(part, deeper - 1) for part in parts)
    return value is not None and value is not False
