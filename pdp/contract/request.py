"""From a proposal to the request: the checks in their order, then the manifest's mappings and the call's digest.

A new check is a function in a module of this folder and its line in `ORDER`. The first check that fails rejects the
proposal, and the policy is not asked. What the invariants correct is what is decided on and what runs.
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

_VOLATILE: Final = frozenset(("time", "request_id", "call_digest", "approval", "spent"))
"""What the digest of a call leaves out. No manifest's mapping may have these names."""


Check = Callable[[Checked, Proposed], Checked | Rejected | Rejection]
"""Returns what it got, changed or not, or why the call is rejected. A plain `Rejection` gets what is known so far."""

ORDER: Final[Mapping[str, Check]] = {
    "writes": checks.writes,
    "schema": checks.schema,
    "config": checks.config,
    "invariants": checks.invariants,
    "idempotency": checks.idempotency,
    "provenance": checks.provenance,
}
"""The checks of a call whose tool is in the manifest, by their names."""

CHECKS: Final = ("proposal", "manifest", *ORDER, "request")
"""What a call passes before the policy is asked, in this order: it is read, checked, and made a request.

`check` runs all but the first and the last; flow/decide.py names these two, and `config` when that raises.
"""


class MappingError(PdpError):
    """The manifest's mapping gives no request for this call."""

    code = "pdp.mapping_failed"


def check(
    proposal: Proposal,
    session: Session,
    manifest: CompiledManifest,
    *,
    before: Sequence[Any] | None = None,
    key: str | None = None,
) -> Checked | Rejected:
    """Run the checks in their order, up to the first that fails.

    What passed is `Checked.proposal`: whoever goes on with `proposal` instead goes on with what was not checked.
    `before` are the steps of a plan that come before the call and go on, `[{tool, arguments}]`; None: those before the
    first step of the session's plan that is equal to the call. `key` is the idempotency key of a session without one.
    ConfigError where the config cannot be resolved.
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
    """Return the request for a call that has passed its checks.

    `now`, seconds since 1970, is for a session that states no time; `flow` is what the ledger says of
    the call: what the digest covers, and what the policy sees. `context.approval` is null here: only the
    enforcement point fills it, from its own store.

    Raises:
        MappingError: the resource has no type or id.
        ExpressionError: an expression failed.
        UsageError: the session's claims name no subject.
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
    # The request shares `context`: the digest is of what stands in it so far.
    request = Request(session.subject, tool.requested_action, resource, context)
    context["call_digest"] = digest(canonical(request.as_json()))
    if flow is not None:
        context["flow"] = flow[1]
    context["time"] = session.time or to_seconds(now)
    context["request_id"] = request_id
    context["approval"] = None
    return request


def call_digest(request: Request) -> str:
    """Return the digest that an approval is bound to: all of it but time, request ids, approval and sums."""
    context = {name: value for name, value in request.context.items() if name not in _VOLATILE}
    return digest(canonical({**request.as_json(), "context": context}))


def _resource(tool: CompiledTool, inputs: Mapping[str, Any]) -> Entity:
    if not tool.resource:
        return Entity("tool", tool.entry.name, {})
    properties = _evaluated(tool.resource, inputs)
    kind, name = properties.pop("type", None), properties.pop("id", None)
    for field, value in (("type", kind), ("id", name)):
        if not isinstance(value, str) or not value:
            raise MappingError(
                f"{tool.entry.name}: resource.{field} has to be a non-empty string, and is {value!r:.60}"
            )
    return Entity(kind, name, properties)


def _evaluated(mapping: Mapping[str, Expression], inputs: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for name, expression in mapping.items():
        value = expression.evaluate(inputs)
        if value is not MISSING:
            values[name] = value
    return values
