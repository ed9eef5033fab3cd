"""The same rules in other engines, as their users would write them for speed.

"The same rules" are those that the baseline holds against a wire: the manifest knows the action in this version,
scopes, markings, purpose, limit, risk tier, idempotency key, delegation and sanctions. Neither engine has a third
verdict, so that a limit exceeded is a denial in both.
"""

import json
from collections.abc import Callable
from typing import Any

_CEDAR_POLICIES = """
@id("effects.gate_satisfied")
permit (principal is User, action == Action::"call", resource is Tool)
when { !resource.scopes.isEmpty() && principal.scopes.containsAll(resource.scopes) };

@id("manifest.mismatch")
forbid (principal, action, resource)
unless { context.manifest_version == resource.manifest_version && context.manifest_digest == resource.manifest_digest };

@id("manifest.unknown_action")
forbid (principal, action, resource) unless { context.action == resource.pdp_action };

@id("markings.not_cleared")
forbid (principal, action, resource)
when { context has markings && !principal.clearances.containsAll(context.markings) };

@id("markings.not_allowed")
forbid (principal, action, resource)
when { context has markings && !resource.markings.containsAll(context.markings) };

@id("purposes.not_allowed")
forbid (principal, action, resource)
when { resource has purposes && !(context has purpose && resource.purposes.contains(context.purpose)) };

@id("limits.exceeded")
forbid (principal, action, resource)
when { resource has limit && !(principal.limits has wire && context.amount <= principal.limits.wire) };

@id("limits.invalid")
forbid (principal, action, resource) when { resource has limit && context.amount < 0 };

@id("approvals.required")
forbid (principal, action, resource) when { resource.risk_tier == "high" && !(resource has limit) };

@id("idempotency.key_missing")
forbid (principal, action, resource)
when { resource.idempotency_required && !(context has idempotency_key && context.idempotency_key != "") };

@id("delegation.exceeds_agent")
forbid (principal, action, resource)
when { principal has agent_scopes && !principal.agent_scopes.containsAll(resource.scopes) };

@id("sanctions.not_clear")
forbid (principal, action, resource)
when { context.action == "initiate_wire" && !(context has sanctions_status && context.sanctions_status == "clear") };
"""

_CEDAR_SCHEMA = """
entity User { scopes: Set<String>, clearances: Set<String>, limits: { wire?: Long }, agent_scopes?: Set<String> };
entity Tool {
    scopes: Set<String>, markings: Set<String>, purposes?: Set<String>, limit?: String, risk_tier: String,
    idempotency_required: Bool, pdp_action: String, manifest_version: String, manifest_digest: String,
};
action call appliesTo {
    principal: User, resource: Tool,
    context: {
        manifest_version: String, manifest_digest: String, action: String, amount: Long, markings?: Set<String>,
        purpose?: String, idempotency_key?: String, sanctions_status?: String,
        arguments: { beneficiary_id: String, amount: Long, source_account: String, reference: String },
    },
};
"""


def _entity(kind: str, name: str, attributes: dict[str, Any]) -> dict[str, Any]:
    return {"uid": {"type": kind, "id": name}, "attrs": attributes, "parents": []}


def cedar_calls(request: dict[str, Any], tools: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Return calls of cedarpy for one request of ours: with everything parsed beforehand, and with less of it.

    Args:
        request: our request, as JSON.
        tools: the effective manifest's entries.

    Raises:
        RuntimeError: Cedar does not allow the request, so the rules are not the same.
    """
    import cedarpy  # noqa: PLC0415

    policies = cedarpy.PolicySet.from_str(_CEDAR_POLICIES)
    schema = cedarpy.Schema.from_str(_CEDAR_SCHEMA)
    action, properties = request["action"], request["subject"]["properties"]
    static = [
        _entity(
            "Tool",
            name,
            {
                "scopes": entry["scopes"],
                "markings": entry.get("markings", []),
                "risk_tier": entry["risk_tier"],
                "idempotency_required": entry["idempotency"]["required"],
                "pdp_action": entry["pdp_action"],
                "manifest_version": action["properties"]["manifest_version"],
                "manifest_digest": action["properties"]["manifest_digest"],
                **({"limit": entry["limits"][0]["limit"]} if entry["limits"] else {}),
            },
        )
        for name, entry in tools.items()
    ]
    subject = _entity(
        "User",
        request["subject"]["id"],
        {
            "scopes": properties["scopes"],
            "clearances": [],
            "limits": {"wire": properties["limits"]["wire.auto_approved"]},
        },
    )
    context = request["context"]
    asked = {
        "principal": {"type": "User", "id": request["subject"]["id"]},
        "action": {"type": "Action", "id": "call"},
        "resource": {"type": "Tool", "id": action["properties"]["tool"]},
        "context": {
            "manifest_version": action["properties"]["manifest_version"],
            "manifest_digest": action["properties"]["manifest_digest"],
            "action": action["name"],
            "amount": context["amount"],
            "idempotency_key": context["idempotency_key"],
            "sanctions_status": context["sanctions_status"],
            "arguments": context["arguments"],
        },
    }
    wire = next(entity for entity in static if entity["uid"]["id"] == action["properties"]["tool"])
    tools_alone = cedarpy.Entities.from_json_str(json.dumps(static))
    everything = cedarpy.Entities.from_json_str(json.dumps([*static, subject]))
    delta = json.dumps([subject])

    def parsed() -> object:
        return cedarpy.is_authorized(asked, policies, everything)

    def checked() -> object:
        return cedarpy.is_authorized(asked, policies, everything, schema=schema)

    def per_subject() -> object:
        return cedarpy.is_authorized(asked, policies, tools_alone.with_added_json_str(delta), schema=schema)

    def policies_parsed() -> object:
        return cedarpy.is_authorized(asked, policies, [wire, subject])

    def texts() -> object:
        return cedarpy.is_authorized(asked, _CEDAR_POLICIES, [wire, subject])

    calls: dict[str, Callable[[], object]] = {
        "cedarpy, all parsed": parsed,
        "cedarpy, nothing parsed": texts,
        "cedarpy, policies parsed, entities per call": policies_parsed,
        "cedarpy, all parsed, request checked": checked,
        "cedarpy, subject per call, request checked": per_subject,
    }
    for name, call in calls.items():
        result: Any = call()
        if not result.allowed or result.diagnostics.errors:
            raise RuntimeError(f"{name}: {result.decision}, {result.diagnostics.errors}")
    return calls


_CASBIN_MODEL = """
[request_definition]
r = sub, tool, ctx
[policy_definition]
p = tool, version, scope, limit
[policy_effect]
e = some(where (p.eft == allow))
[matchers]
m = r.tool == p.tool && r.ctx.manifest_version == p.version && p.scope in r.sub.scopes && r.ctx.amount >= 0 && \
    r.ctx.amount <= r.sub.limit && r.ctx.idempotency_key != "" && r.ctx.sanctions_status == "clear"
"""


class _Attributes:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def casbin_calls(request: dict[str, Any], tools: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Return a call of casbin for one request of ours. Its model cannot say all of the rules; what it can, it says.

    Args:
        request: our request, as JSON.
        tools: the effective manifest's entries.

    Raises:
        RuntimeError: casbin does not allow the request.
    """
    import casbin  # noqa: PLC0415

    model = casbin.Model()
    model.load_model_from_text(_CASBIN_MODEL)
    enforcer = casbin.Enforcer(model)
    version = request["action"]["properties"]["manifest_version"]
    for name, entry in tools.items():
        enforcer.add_policy(name, version, entry["scopes"][0] if entry["scopes"] else "", "wire")
    properties, context = request["subject"]["properties"], request["context"]
    subject = _Attributes(scopes=properties["scopes"], limit=properties["limits"]["wire.auto_approved"])
    asked = _Attributes(
        manifest_version=version,
        amount=context["amount"],
        idempotency_key=context["idempotency_key"],
        sanctions_status=context["sanctions_status"],
    )
    tool = request["action"]["properties"]["tool"]

    def enforce() -> object:
        return enforcer.enforce(subject, tool, asked)

    if not enforce():
        raise RuntimeError("casbin does not allow the request")
    return {"casbin, some of the rules": enforce}
