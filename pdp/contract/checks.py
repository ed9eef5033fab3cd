"""The checks that a proposal passes before the policy is asked; `pdp.contract.request` has their order.

A check gets what has passed so far and returns it, changed or not, or a rejection with a fixed code (tool registry
document, enforcement hops 2 to 4; tool boundary document, normative requirements).
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

if TYPE_CHECKING:  # loaded only for tools that have them
    from pdp.contract.invariants import Invariants, Trip

_log = logging.getLogger("pdp.contract")

_MOST_FAULTS: Final = 5
# Nested lists and objects in an argument that names sources, as in the concern `provenance`.
_DEEPEST: Final = 4
# As Unicode and Rego's `trim_space` have it; Python's own `strip` takes four control characters more.
_WHITE_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


class Checked(NamedTuple):
    """A proposal that has passed every check.

    `proposal`, after correction, is what is decided on and what runs. `idempotency_key` is the session's, or derived.
    `config` is resolved and read-only. `trips` are the invariants that were corrected, in their order.
    """

    tool: CompiledTool
    proposal: Proposal
    idempotency_key: str | None
    config: Mapping[str, Any]
    trips: tuple[Trip, ...] = ()
    schema_valid: bool = True
    idempotency_missing: bool = False


class Rejected(NamedTuple):
    """A proposal that a check has stopped, with what was known of it by then; the policy is not asked.

    Attributes:
        check: which one, of `pdp.contract.request.CHECKS`.
        proposal: as the model made it, or as invariants corrected it; None when it could not be read.
        rejection: None when an invariant dropped the call from its plan, and when the decision that stands beside it
            says why: a DENY, as of a config that cannot be resolved.
        schema_valid, idempotency_missing: None when the check was not reached.
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
    """What a check asks beside the proposal: the session, and for a plan the steps before the call (`check`)."""

    session: Session
    before: Sequence[Any] | None = None


def writes(checked: Checked, _: Proposed) -> Checked | Rejected:
    """Reject a tool that writes canonical memory."""
    if checked.tool.entry.writes != "canonical":
        return checked
    reason = f"{checked.proposal.tool} writes canonical memory, and no model may call it: propose the change instead"
    rejection = Rejection(RejectionCode.DIRECT_CANONICAL_WRITE_FORBIDDEN, reason)
    return Rejected("writes", checked.proposal, rejection, checked.tool)


def schema(checked: Checked, _: Proposed) -> Checked | Rejected:
    """Hold the arguments against the tool's schema."""
    tool, proposal = checked.tool, checked.proposal
    if len(proposal.text) <= tool.free_bytes and tool.validator.is_valid(proposal.arguments):
        return checked
    # A source that names nothing is missing, whatever the schema says about it: see `provenance`.
    empty = {name for name in tool.entry.provenance.required if not names_source(proposal.arguments.get(name))}
    stated = {name: value for name, value in proposal.arguments.items() if name not in empty}
    fault, details = schema_fault(tool, stated, len(proposal.text))
    if fault is not None:
        faulty = Rejection(RejectionCode.INVALID_PAYLOAD, fault, {"faults": details})
        return Rejected("schema", proposal, _masked(faulty, tool, proposal.arguments), tool, schema_valid=False)
    unsourced = _unsourced(checked)
    if unsourced is None or tool.validator.is_valid(proposal.arguments):
        return checked
    rejected = rejection_of("provenance", checked._replace(idempotency_key=None), unsourced)
    return rejected._replace(schema_valid=False, idempotency_missing=None)


def config(checked: Checked, proposed: Proposed) -> Checked:
    """Resolve the config that the tool declares. ConfigError: a value cannot be normalised."""
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
    """Derive a key that is required and absent, or reject the call."""
    tool = checked.tool
    if not tool.entry.idempotency.required or checked.idempotency_key is not None:
        return checked
    if not tool.derives_key:
        reason = f"{checked.proposal.tool} needs an idempotency key, and the session has none"
        rejection = Rejection(RejectionCode.INVALID_PAYLOAD, reason)
        return rejection_of("idempotency", checked, rejection)._replace(idempotency_missing=True)
    derived = digest(canonical([tool.entry.name, checked.proposal.arguments]))
    return checked._replace(idempotency_key=f"derived:{derived}")


def provenance(checked: Checked, _: Proposed) -> Checked | Rejection:
    """Reject a call that names no source where its tool demands one."""
    return _unsourced(checked) or checked


def _unsourced(checked: Checked) -> Rejection | None:
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
    """Return the rejection of a call by the check `name`; `passed` are the checks before it."""
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
    """Return why a tool takes no such arguments, of `size` bytes, in words and for programs; None: it takes them."""
    if size > tool.max_bytes:
        return f"arguments have {size} bytes, at most {tool.max_bytes} are admitted", []
    lines, details = tool.validator.explained(arguments, "arguments")
    return "; ".join(lines[:_MOST_FAULTS]) or None, details[:_MOST_FAULTS]


def _corrected(
    passed: Checked, invariants: Invariants, session: Session, before: Sequence[Any] | None
) -> Checked | Rejected:
    # Only a tool with invariants needs them.
    from pdp.contract.invariants import InvariantContext, plan_before  # noqa: PLC0415

    tool, proposal, tried = passed.tool, passed.proposal, [passed.proposal.arguments]
    context = InvariantContext(session.state, passed.config, plan_before(proposal, session.plan, before))

    def fault(corrected: dict[str, Any]) -> str | None:
        tried.append(corrected)
        return schema_fault(tool, corrected, len(canonical(corrected)))[0]

    result = invariants.applied(proposal.arguments, context, fault)
    for trip in result.trips:
        _log.info("%s: invariant %s tripped: %s", tool.entry.name, trip.invariant, trip.resolution)
    stopped = Rejected("invariants", proposal, None, tool, schema_valid=True, trips=result.trips)
    if result.rejection is not None or result.pruned:
        return stopped._replace(rejection=_masked(result.rejection, tool, *tried))
    if result.arguments is not proposal.arguments:
        try:
            # Read anew, and so within the bounds of a proposal and in its one canonical form.
            proposal = Proposal.read(replace(proposal, arguments=result.arguments))
        except ProposalRejectedError as error:
            return stopped._replace(rejection=Rejection(error.rejection, error.message))
    return passed._replace(proposal=proposal, trips=result.trips)


def _masked(rejection: Rejection | None, tool: CompiledTool, *arguments: dict[str, Any]) -> Rejection | None:
    """Return a rejection whose reason quotes no value of a sensitive argument, as proposed or as corrected."""
    if rejection is None or not tool.entry.sensitive:
        return rejection
    from pdp.contract.sensitive import Mask  # noqa: PLC0415 - only tools with sensitive arguments

    mask = Mask(tool.entry.sensitive, *arguments)
    return replace(rejection, reason=mask.text(rejection.reason), details=mask.value(rejection.details))


def names_source(value: Any, deeper: int = _DEEPEST) -> bool:
    """Whether every part names something, and zero does; the concern `provenance` of the policy says the same."""
    if isinstance(value, str):
        return bool(value.strip(_WHITE_SPACE))
    if isinstance(value, (list, dict)):
        parts = value.values() if isinstance(value, dict) else value
        return bool(value) and deeper > 0 and all(names_source(part, deeper - 1) for part in parts)
    return value is not None and value is not False
