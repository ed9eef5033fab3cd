"""The effective manifest: manifest and governance file merged, as the enforcement point and the policy see it.

A field that only one side states holds as stated. Where both do, the stricter holds: union of scopes, limits,
provenance and sensitive arguments; intersection of markings, purposes and approvers, and an empty intersection admits
nobody; the higher tier, the heavier effect class, the larger quorum, the shorter expiry; required when either requires,
not excepted when either does not except. Members of the two mappings that both state are the governance file's: the
mapping feeds the policy, so its author has the last word. So are roles of arguments that both state.

Of labels: untrusted when either says so, intersection of the fields that say more and of the markings that may leave,
union of the result's markings and of the rules about runs, destructive when either says so, the stricter profile, DENY
over STEP_UP. Labels are in use where an entry states `result`, `roles`, `admits` or `flow`, or the governance file
`flow`; then every entry has a profile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from operator import and_, or_
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pdp.errors import UsageError
from pdp.json import canonical, digest, frozen
from pdp.manifest.fields import (
    EFFECT_TIERS,
    EffectClass,
    FlowProfile,
    FlowRule,
    Integrity,
    Otherwise,
    RiskTier,
    Writes,
    duration_seconds,
)
from pdp.manifest.model import (
    ActionRules,
    ApprovalBlock,
    DeclaredTool,
    EffectiveApproval,
    FlowRules,
    Governance,
    Idempotency,
    Limit,
    Provenance,
    ResultLabels,
    Tool,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from enum import StrEnum

    from pdp.manifest.model import Governable, Manifest, Program

Value = TypeVar("Value")
Ranked = TypeVar("Ranked", bound="StrEnum")
Terms = tuple[str, ...] | None

FOR_POLICY: Final = (
    "name", "id", "version", "pdp_action", "pattern", "effect_class", "risk_tier", "scopes", "markings", "purposes",
    "idempotency", "limits", "approval", "provenance", "writes", "release", "accepts", "result", "roles", "admits",
    "destructive", "flow",
)  # fmt: skip
"""The fields of an entry that the policy may read.

The rest (schemas, mappings, invariants, how it runs) concerns the enforcement point alone; the document has a digest of
it, so that the manifest's digest covers it all.
"""

_UNORDERED: Final = (("cli", "env"), ("safety", "requires"), ("state", "reads"))


@dataclass(frozen=True, slots=True)
class EffectiveManifest:
    """Every tool with all that holds for it, read-only through and through. Make it with `effective_manifest`.

    Attributes:
        version: the manifest's version.
        digest: `sha256:` and 64 hexadecimal digits, over the RFC 8785 form of `document`. The same content has the same
            digest, whatever its spelling, order or file format.
        tools: the effective entries by name, in the manifest's order.
        tracks_flow: whether labels are in use: what a run has seen counts.
        document: what the policy engine gets, plain JSON: `{"manifest_version", "agents"?: {agent: {tool: version}},
            "tools": {name: entry}}`. An entry has what is stated of `FOR_POLICY`, `approval.expires_seconds`, and
            `contract`, a digest of what the policy does not read.
    """

    version: str
    digest: str
    tools: Mapping[str, Tool]
    tracks_flow: bool
    document: dict[str, Any] = field(repr=False)


def effective_manifest(manifest: Manifest, governance: Governance | None = None) -> EffectiveManifest:
    """Merge a manifest with a governance file, the stricter holding.

    `pdp.manifest.load.load_effective` does so from files and checks what they only decide together.

    Raises:
        UsageError: two tools of one name.
    """
    governance = governance or Governance()
    tools: dict[str, Tool] = {}
    for declared in manifest.tools:
        if declared.name in tools:
            raise UsageError(f"tool {declared.name} is declared twice", hint="names are unique: rename or remove one")
        tools[declared.name] = effective_tool(declared, governance.rules_of(declared.action), governance.programs)
    if any(tool.is_labelled for tool in tools.values()):
        tools = {name: _with_profile(tool) for name, tool in tools.items()}
    agents = None if manifest.agents is None else {agent.id: dict(agent.tools) for agent in manifest.agents}
    return made_of(manifest.manifest_version, tools, agents=agents)


def made_of(
    version: str, tools: Mapping[str, Tool], *, agents: Mapping[str, Mapping[str, str]] | None
) -> EffectiveManifest:
    """Return the effective manifest of effective entries, by name; `agents` None: any agent may use any tool."""
    document: dict[str, Any] = {
        "manifest_version": version,
        "tools": {name: _entry(tool) for name, tool in tools.items()},
    }
    if agents is not None:
        document["agents"] = {agent: dict(pins) for agent, pins in agents.items()}
    return EffectiveManifest(
        version=version,
        digest=digest(canonical(document)),
        tools=MappingProxyType(dict(tools)),
        tracks_flow=any(tool.flow is not None for tool in tools.values()),
        document=frozen(document),
    )


def _with_profile(tool: Tool) -> Tool:
    flow = _flow(tool.flow or FlowRules(), FlowRules())
    return tool.model_copy(update={"flow": flow.model_copy(update={"profile": flow.profile or FlowProfile.BALANCED})})


def effective_tool(
    declared: DeclaredTool, rules: ActionRules | None, programs: Mapping[str, Program] | None = None
) -> Tool:
    """Return one effective entry: `declared` merged with the rules for its action, defaults filled in.

    An entry without effect class needs no approval within its limits, one with it does.
    """
    fields = {name: getattr(declared, name) for name in DeclaredTool.model_fields}
    merged = merged_fields(declared, rules)
    approval = merged["approval"]
    stated = {} if approval is None else approval.model_dump(exclude_none=True)
    fields |= merged | {
        "program": (programs or {}).get(declared.cli.argv[0]) if declared.cli else None,
        "accepts": rules.accepts if rules else None,
        "id": declared.id or f"tool.{declared.name}",
        "pdp_action": declared.action,
        "risk_tier": merged["risk_tier"] or EFFECT_TIERS.get(merged["effect_class"], RiskTier.HIGH),
        "scopes": merged["scopes"] or (),
        "limits": merged["limits"] or (),
        "idempotency": merged["idempotency"] or Idempotency(required=False),
        "approval": EffectiveApproval(**{"unless_within_limits": merged["effect_class"] is None, **stated}),
        "provenance": merged["provenance"] or Provenance(),
        "writes": merged["writes"] or Writes.NONE,
        "sensitive": merged["sensitive"] or (),
    }
    # Every part was validated when it was read or made; once more would only take time.
    return Tool.model_construct(**fields)


def _entry(tool: Tool) -> dict[str, Any]:
    whole: dict[str, Any] = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
    entry: dict[str, Any] = {name: whole.pop(name) for name in FOR_POLICY if name in whole}
    for record, name in _UNORDERED:
        if record in whole:
            whole[record][name] = sorted(whole[record][name])
    # Policies compare numbers; what an ISO 8601 duration is in seconds they cannot work out.
    entry["approval"]["expires_seconds"] = duration_seconds(tool.approval.expires)
    entry["contract"] = digest(canonical(whole))
    return entry


def merged_fields(tool: Governable, rules: ActionRules | None) -> dict[str, Any]:
    """Return the governable fields of the effective entry; what neither side states is None.

    Lists in which order means nothing are sorted, each item once, so that the same content is the same value.
    """
    other = rules or ActionRules()
    return {
        "effect_class": _both(tool.effect_class, other.effect_class, _heavier(EffectClass)),
        "risk_tier": _both(tool.risk_tier, other.risk_tier, _heavier(RiskTier)),
        "scopes": _union(tool.scopes, other.scopes),
        "markings": _intersection(tool.markings, other.markings),
        "purposes": _intersection(tool.purposes, other.purposes),
        "idempotency": _both(tool.idempotency, other.idempotency, _idempotency),
        "limits": _limits(tool.limits, other.limits),
        "resource": _both(tool.resource, other.resource, or_),
        "context": _both(tool.context, other.context, or_),
        "approval": _both(tool.approval or other.approval, other.approval or tool.approval, _approval),
        "provenance": _both(tool.provenance or other.provenance, other.provenance or tool.provenance, _provenance),
        "writes": _both(tool.writes, other.writes, _heavier(Writes)),
        "sensitive": _union(tool.sensitive, other.sensitive),
        "max_bytes": _both(tool.max_bytes, other.max_bytes, min),
        "result": _both(tool.result or other.result, other.result or tool.result, _result),
        "roles": _both(tool.roles, other.roles, or_),
        "admits": _intersection(tool.admits, other.admits),
        "destructive": _both(tool.destructive, other.destructive, or_),
        "flow": _both(tool.flow or other.flow, other.flow or tool.flow, _flow),
    }


def _both(first: Value | None, second: Value | None, join: Callable[[Value, Value], Value]) -> Value | None:
    if first is None:
        return second
    return first if second is None else join(first, second)


def _heavier(ranks: type[Ranked]) -> Callable[[Ranked, Ranked], Ranked]:
    order = list(ranks)  # lightest first
    return lambda first, second: max(first, second, key=order.index)


def _union(first: Terms, second: Terms) -> Terms:
    return None if first is None and second is None else tuple(sorted({*(first or ()), *(second or ())}))


def _intersection(first: Terms, second: Terms) -> Terms:
    joined = _both(first, second, lambda terms, others: tuple(set(terms) & set(others)))
    return None if joined is None else tuple(sorted(set(joined)))


def _limits(first: tuple[Limit, ...] | None, second: tuple[Limit, ...] | None) -> tuple[Limit, ...] | None:
    if first is None and second is None:
        return None
    stated = (*(first or ()), *(second or ()))
    distinct = {
        (limit.limit, limit.argument or "", limit.per or "", str(limit.window or "")): limit for limit in stated
    }
    return tuple(distinct[key] for key in sorted(distinct))


# A key that is remembered for longer protects for longer from a second effect.
def _idempotency(first: Idempotency, second: Idempotency) -> Idempotency:
    return Idempotency(
        required=first.required or second.required,
        key=first.key or second.key,
        ttl=_both(first.ttl, second.ttl, partial(max, key=duration_seconds)),
    )


# What only one side states is joined with itself, so that its lists are sorted as well.
def _approval(first: ApprovalBlock, second: ApprovalBlock) -> ApprovalBlock:
    return ApprovalBlock(
        approvers=_intersection(first.approvers, second.approvers),
        quorum=_both(first.quorum, second.quorum, max),
        expires=_both(first.expires, second.expires, partial(min, key=duration_seconds)),
        unless_within_limits=_both(first.unless_within_limits, second.unless_within_limits, and_),
    )


def _provenance(first: Provenance, second: Provenance) -> Provenance:
    return Provenance(required=tuple(sorted({*first.required, *second.required})))


def _result(first: ResultLabels, second: ResultLabels) -> ResultLabels:
    return ResultLabels(
        integrity=_both(first.integrity, second.integrity, _heavier(Integrity)),
        trusted=_intersection(first.trusted, second.trusted),
        parties=_intersection(first.parties, second.parties),
        names=_intersection(first.names, second.names),
        created=_intersection(first.created, second.created),
        markings=_union(first.markings, second.markings),
    )


def _flow(first: FlowRules, second: FlowRules) -> FlowRules:
    rules = _union(first.rules, second.rules)
    return FlowRules(
        profile=_both(first.profile, second.profile, _heavier(FlowProfile)),
        rules=None if rules is None else tuple(map(FlowRule, rules)),
        otherwise=_both(first.otherwise, second.otherwise, _heavier(Otherwise)),
    )
