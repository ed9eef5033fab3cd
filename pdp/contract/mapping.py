"""From a checked proposal to the request: the manifest's mappings, the session and the call's digest."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pdp.canonical import JsonValueError, canonical, check_json, digest
from pdp.errors import PdpError
from pdp.manifest.expressions import MISSING
from pdp.request import Entity, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdp.contract.compiled import CompiledTool
    from pdp.proposal import Proposal
    from pdp.session import Session

_VOLATILE: Final = ("time", "run_id", "request_id", "call_digest", "approval")


class MappingError(PdpError):
    """The manifest's mapping gives no request for this call."""

    code = "pdp.mapping_failed"


def build_request(
    tool: CompiledTool, proposal: Proposal, session: Session, *, idempotency_key: str | None, request_id: str
) -> Request:
    """Return the request for a call that has passed its checks.

    `context.approval` is null here: only the enforcement point fills it, from its own store.

    Raises:
        MappingError: an expression failed, or the resource has no type or id.
        ClaimsError: the session's claims name no subject.
    """
    arguments, variables = proposal.arguments, session.variables
    context = _evaluated(tool.context, arguments, variables)
    context["arguments"] = arguments
    context["purpose"] = session.purpose
    context["idempotency_key"] = idempotency_key
    if session.agent is not None:
        context["agent"] = session.agent
    # Constructed without validation, which would walk the whole request once more: claims and facts were checked
    # with the session, the arguments with the proposal, and what expressions computed in `_evaluated`.
    request = Request.model_construct(
        subject=session.subject, action=tool.action, resource=_resource(tool, arguments, variables), context=context
    )
    context["call_digest"] = call_digest(request)
    context["time"] = session.time or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    context["run_id"] = session.run_id
    context["request_id"] = request_id
    context["approval"] = None
    return request


def call_digest(request: Request) -> str:
    """Return the digest that an approval is bound to: all of the request but time, request ids and approval."""
    whole = request.as_json()
    whole["context"] = {name: value for name, value in request.context.items() if name not in _VOLATILE}
    return digest(canonical(whole))


def _resource(tool: CompiledTool, arguments: Mapping[str, Any], variables: Mapping[str, Any]) -> Entity:
    if not tool.resource:
        return Entity.model_construct(type="tool", id=tool.entry.name, properties={})
    properties = _evaluated(tool.resource, arguments, variables)
    named = {name: properties.pop(name, None) for name in ("type", "id")}
    for name, value in named.items():
        if not isinstance(value, str) or not value:
            raise MappingError(f"{tool.entry.name}: resource.{name} has to be a non-empty string, and is {value!r:.60}")
    return Entity.model_construct(type=named["type"], id=named["id"], properties=properties)


def _evaluated(
    mapping: Mapping[str, Any], arguments: Mapping[str, Any], variables: Mapping[str, Any]
) -> dict[str, Any]:
    found = {}
    for name, expression in mapping.items():
        value = expression.evaluate(arguments, variables)
        if value is MISSING:
            continue
        if not expression.is_path:
            try:
                check_json(value, name, depth=2)
            except JsonValueError as error:
                raise MappingError(f"expression gives no JSON: {error}") from error
        found[name] = value
    return found
