"""The checks that a proposal must pass before the policy is asked. `pdp.contract.request` defines their order.

A check returns the call, which it may have corrected, or a rejection with a fixed code (tool registry document,
enforcement hops 2 to 4; tool boundary document, normative requirements).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pdp.contract.compiled import CompiledTool
from pdp.json import canonical, digest
from pdp.proposal import Proposal, ProposalRejectedError, Rejection, RejectionCode
from pdp.session import Session

if TYPE_CHECKING:  # Only tools with invariants need this module at run time.
    from pdp.contract.invariants import Invariants, Trip

_log = logging.getLogger("pdp.contract")

_MOST_FAULTS: Final = 5
# The maximum depth of lists and objects in an argument that names sources. The concern `provenance` has the same limit.
_DEEPEST: Final = 4
# White space of Unicode and Rego's `trim_space`. Python's `strip` also removes four control characters.
_WHITE_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


class Checked(NamedTuple):
    """A call that has passed its checks, after corrections. The idempotency key is from the session or derived."""

    tool: CompiledTool
    proposal: Proposal
    idempotency_key: str | None
    config: Mapping[str, Any]
    trips: tuple[Trip, ...] = ()
    schema_valid: bool = True
    idempotency_missing: bool = False


class Rejected(NamedTuple):
    """A proposal that failed the named `check`, so the policy is not asked. Fields that are not known yet are None.

    `proposal` is None if it could not be read. `rejection` is None if the call was pruned, or if a DENY decision gives
    the reason. `schema_valid` and `idempotency_missing` are None if they were not checked.
    """

    check: str
    proposal: Proposal | None
    rejection: Rejection | None
    tool: CompiledTool | None = None
    schema_valid: bool | None = None
    idempotency_missing: bool | None = None
    idempotency_key: str | None = None
    trips: tuple[Trip, ...] = ()


class Proposed(NamedTuple):
    """The session of a proposal and, if the proposal is a step of a plan, the plan's steps before the proposal."""

    session: Session
    before: Sequence[Any] | None = None


def writes(checked: Checked, _: Proposed) -> Checked | Rejected:
    """Reject a call of a tool that writes canonical memory, because a model may only propose changes to this memory."""
    if checked.tool.entry.writes != "canonical":
        return checked
    reason = f"{checked.proposal.tool} writes canonical memory, so no model may call it: propose the change instead"
    rejection = Rejection(RejectionCode.DIRECT_CANONICAL_WRITE_FORBIDDEN, reason)
    return Rejected("writes", checked.proposal, rejection, checked.tool)


def schema(checked: Checked, _: Proposed) -> Checked | Rejected:
    """Validate the arguments against the tool's schema."""
    tool, proposal = checked.tool, checked.proposal
    if len(proposal.text) <= tool.free_bytes and tool.validator.is_valid(proposal.arguments):
        return checked
    # A source with an empty value counts as missing even if the schema allows it, as in the concern `provenance`.
    empty = {name for name in tool.entry.provenance.required if not names_source(proposal.arguments.get(name))}
    stated = {name: value for name, value in proposal.arguments.items() if name not in empty}
    fault, details = schema_fault(tool, stated, len(proposal.text))
    if fault is not None:
        faulty = Rejection(RejectionCode.INVALID_PAYLOAD, fault, {"faults": details})
        return Rejected("schema", proposal, _masked(faulty, tool, proposal.arguments), tool, schema_valid=False)
    unsourced = _missing_sources(checked)
    if unsourced is None or tool.validator.is_valid(proposal.arguments):
        return checked
    rejected = rejection_of("provenance", checked._replace(idempotency_key=None), unsourced)
    return rejected._replace(schema_valid=False, idempotency_missing=None)


def config(checked: Checked, proposed: Proposed) -> Checked:
    """Resolve the tool's config. Raise ConfigError if a value cannot be normalised."""
    declared = checked.tool.config
    if declared is None:
        return checked
    return checked._replace(config=declared.resolve(proposed.session.config, proposed.session.state))


def invariants(checked: Checked, proposed: Proposed) -> Checked | Rejected:
    """Correct, prune or reject the call by the tool's invariants."""
    if checked.tool.invariants is None:
        return checked
    return _corrected(checked, checked.tool.invariants, proposed.session, proposed.before)


def idempotency(checked: Checked, _: Proposed) -> Checked | Rejected:
    """Require an idempotency key: derive a missing key if the tool allows this, otherwise reject the call."""
    tool = checked.tool
    if not tool.entry.idempotency.required or checked.idempotency_key is not None:
        return checked
    if not tool.derives_key:
        reason = f"{checked.proposal.tool} needs an idempotency key, but the session has none"
        rejection = Rejection(RejectionCode.INVALID_PAYLOAD, reason)
        return rejection_of("idempotency", checked, rejection)._replace(idempotency_missing=True)
    derived = digest(canonical([tool.entry.name, checked.proposal.arguments]))
    return checked._replace(idempotency_key=f"derived:{derived}")


def provenance(checked: Checked, _: Proposed) -> Checked | Rejection:
    """Reject a call that names no source although its tool requires one."""
    return _missing_sources(checked) or checked


def _missing_sources(checked: Checked) -> Rejection | None:
    required = checked.tool.entry.provenance.required
    if not required:
        return None
    missing = [name for name in required if not names_source(checked.proposal.arguments.get(name))]
    if not missing:
        return None
    reason = f"{checked.tool.entry.name} has to name its sources: {', '.join(missing)}"
    return Rejection(RejectionCode.MISSING_PROVENANCE, reason)


def rejection_of(
    name: str, checked: Checked, rejection: Rejection, passed: Collection[str] = ("schema", "idempotency")
) -> Rejected:
    """Return the rejection of a call by the check `name`. `passed` names the checks that the call passed before."""
    return Rejected(
        name,
        checked.proposal,
        _masked(rejection, checked.tool, checked.proposal.arguments),
        checked.tool,
        schema_valid=True if "schema" in passed else None,
        idempotency_missing=False if "idempotency" in passed else None,
        idempotency_key=checked.idempotency_key,
        trips=checked.trips,
    )


def schema_fault(tool: CompiledTool, arguments: dict[str, Any], size: int) -> tuple[str | None, list[dict[str, Any]]]:
    """Return why the schema or the size limit rejects the arguments, as text and as details; None if valid."""
    if size > tool.max_bytes:
        return f"arguments have {size} bytes, but at most {tool.max_bytes} are allowed", []
    lines, details = tool.validator.explained(arguments, "arguments")
    return "; ".join(lines[:_MOST_FAULTS]) or None, details[:_MOST_FAULTS]


def _corrected(
    passed: Checked, invariants: Invariants, session: Session, before: Sequence[Any] | None
) -> Checked | Rejected:
    # Tools without invariants do not need this module.
    from pdp.contract.invariants import InvariantContext, plan_before  # noqa: PLC0415

    tool, proposal, tried = passed.tool, passed.proposal, [passed.proposal.arguments]
    context = InvariantContext(session.state, passed.config, plan_before(proposal, session.plan, before))

    def fault(corrected: dict[str, Any]) -> str | None:
        tried.append(corrected)
        return schema_fault(tool, corrected, len(canonical(corrected)))[0]

    result = invariants.applied(proposal.arguments, context, fault)
    for trip in result.trips:
        _log.info("%s: violated invariant %s: %s", tool.entry.name, trip.invariant, trip.resolution)
    stopped = Rejected("invariants", proposal, None, tool, schema_valid=True, trips=result.trips)
    if result.rejection is not None or result.pruned:
        return stopped._replace(rejection=_masked(result.rejection, tool, *tried))
    if result.arguments is not proposal.arguments:
        try:
            # The corrected proposal is parsed again, so that the limits and the canonical form of proposals apply to
            # it.
            proposal = Proposal.read(replace(proposal, arguments=result.arguments))
        except ProposalRejectedError as error:
            return stopped._replace(rejection=Rejection(error.rejection, error.message))
    return passed._replace(proposal=proposal, trips=result.trips)


def _masked(rejection: Rejection | None, tool: CompiledTool, *arguments: dict[str, Any]) -> Rejection | None:
    if rejection is None or not tool.entry.sensitive:
        return rejection
    from pdp.contract.sensitive import Mask  # noqa: PLC0415 - only needed with sensitive arguments

    mask = Mask(tool.entry.sensitive, *arguments)
    return replace(rejection, reason=mask.text(rejection.reason), details=mask.value(rejection.details))


def names_source(value: Any, deeper: int = _DEEPEST) -> bool:
    """Return whether a value names sources: no part is empty, null or false, as in the concern `provenance`."""
    if isinstance(value, str):
        return bool(value.strip(_WHITE_SPACE))
    if isinstance(value, (list, dict)):
        parts = value.values() if isinstance(value, dict) else value
        return bool(value) and deeper > 0 and all(names_source(part, deeper - 1) for part in parts)
    return value is not None and value is not False
