"""Turns a proposal into a request: runs the checks, applies the manifest's mappings and computes the call's digest.

To add a check, write a function in this folder, and add the function to `ORDER`. The first fault rejects the call.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Final

from pdp.clock import to_seconds
from pdp.contract import checks
from pdp.contract.checks import Checked, Proposed, Rejected, rejection_of
from pdp.contract.compiled import CompiledManifest, CompiledTool
from pdp.errors import PdpError
from pdp.json import canonical, digest
from pdp.manifest.expressions.path import MISSING, Expression, Variables
from pdp.proposal import Proposal, Rejection, RejectionCode
from pdp.request import Entity, Request
from pdp.session import Session

_VOLATILE: Final = frozenset(("time", "request_id", "call_digest", "approval", "grant", "spent"))
"""Fields of the context that the digest of a call leaves out. A manifest's mapping may not use these names."""


Check = Callable[[Checked, Proposed], Checked | Rejected | Rejection]
"""Returns its input, changed or not, or a rejection. To a plain `Rejection`, `check` adds the results so far."""

ORDER: Final[Mapping[str, Check]] = {
    "writes": checks.writes,
    "schema": checks.schema,
    "config": checks.config,
    "invariants": checks.invariants,
    "idempotency": checks.idempotency,
    "provenance": checks.provenance,
}
"""The checks of a call whose tool is in the manifest, by name, in the order in which they run."""

CHECKS: Final = ("proposal", "manifest", *ORDER, "request")
"""All checks before the policy decides, in order. `decide.py` reports the first and the last, `check` the others."""


class MappingError(PdpError):
    """The manifest's mapping gives no valid request for this call."""

    code = "pdp.mapping_failed"


def check(
    proposal: Proposal,
    session: Session,
    manifest: CompiledManifest,
    *,
    before: Sequence[Any] | None = None,
    key: str | None = None,
) -> Checked | Rejected:
    """Run the checks in order and return the checked call, or the rejection by the first check that fails.

    Use `Checked.proposal`, because only the corrected proposal has passed the checks. `before` are the earlier steps of
    a plan, `[{tool, arguments}]`; by default, the steps of the session's plan before the first equal step. `key` is
    used if the session has no idempotency key. Raises ConfigError if the tool's config cannot be resolved.
    """
    tool = manifest.tool(proposal.tool)
    if tool is None:
        reason = f"{proposal.tool[:128]!r} is not a tool of manifest {manifest.manifest.version}"
        return Rejected("manifest", proposal, Rejection(RejectionCode.INVALID_TOOL_NAME, reason))
    checked = Checked(tool, proposal, session.idempotency_key or key or None, MappingProxyType(session.config))
    proposed = Proposed(session, before)
    for name, passes in ORDER.items():
        result = passes(checked, proposed)
        if result is checked:
            continue
        if isinstance(result, Rejection):
            return rejection_of(name, checked, result, tuple(takewhile(name.__ne__, ORDER)))
        if isinstance(result, Rejected):
            return result
        checked = result
    return checked


def build_request(
    checked: Checked, session: Session, *, request_id: str, now: float, flow: tuple[Any, Any] | None = None
) -> Request:
    """Return the request for a call that passed its checks. Only the enforcement point fills `context.approval`.

    `now`, in seconds since 1970, is the request's time if the session has none. `flow` has two values of
    `context.flow`: the call's digest covers the first, the policy reads the second value. Raises MappingError if type
    or id is missing, ExpressionError if an expression failed, and UsageError if the session's claims name no subject.
    """
    tool, arguments = checked.tool, checked.proposal.arguments
    inputs = Variables(arguments=arguments, session=session.variables)
    context = _evaluated(tool.context, inputs)
    resource = _resource(tool, inputs)
    context["arguments"] = arguments
    context["purpose"] = session.purpose
    context["idempotency_key"] = checked.idempotency_key
    if session.agent is not None:
        context["agent"] = session.agent
    context["run_id"] = session.run_id
    if flow is not None:
        context["flow"] = flow[0]
    # The digest covers only the context that exists before the fields below are added.
    request = Request(session.subject, tool.requested_action, resource, context)
    context["call_digest"] = digest(canonical(request.as_json()))
    if flow is not None:
        context["flow"] = flow[1]
    context["time"] = session.time or to_seconds(now)
    context["request_id"] = request_id
    context["approval"] = None
    return request


def call_digest(request: Request) -> str:
    """Return the digest that binds an approval to a call, without fields that differ when the call is repeated."""
    context = {name: value for name, value in request.context.items() if name not in _VOLATILE}
    return digest(canonical({**request.as_json(), "context": context}))


def _resource(tool: CompiledTool, inputs: Mapping[str, Any]) -> Entity:
    if not tool.resource:
        return Entity("tool", tool.entry.name, {})
    properties = _evaluated(tool.resource, inputs)
    kind, name = properties.pop("type", None), properties.pop("id", None)
    for field, value in (("type", kind), ("id", name)):
        if not isinstance(value, str) or not value:
            raise MappingError(f"{tool.entry.name}: resource.{field} must be a non-empty string, not {value!r:.60}")
    return Entity(kind, name, properties)


def _evaluated(mapping: Mapping[str, Expression], inputs: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for name, expression in mapping.items():
        value = expression.evaluate(inputs)
        if value is not MISSING:
            values[name] = value
    return values
