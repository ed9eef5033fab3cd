"""The effective manifest: manifest and governance file merged, as the enforcement point and the policy use it.

If both files define a field, the stricter value applies (see `_JOINS`), and an empty intersection allows nothing. In
`resource`, `context` and `roles`, members of the governance file override members of the manifest. If any entry has
`result`, `roles`, `admits` or `flow`, or the governance file has `flow`, every entry gets a flow profile.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from operator import and_, or_
from types import MappingProxyType
from typing import Any, Final

from pdp.errors import UsageError
from pdp.json import canonical, digest, frozen
from pdp.manifest.fields import (
    EFFECT_TIERS,
    EffectClass,
    FlowProfile,
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
    Governable,
    Governance,
    Idempotency,
    Limit,
    Manifest,
    Ontology,
    Program,
    Provenance,
    Record,
    ResultLabels,
    Tool,
)

_Join = Callable[[Any, Any], Any]
Terms = tuple[Any, ...] | None

FOR_POLICY: Final = (
    "name", "id", "version", "pdp_action", "pattern", "effect_class", "risk_tier", "scopes", "markings", "purposes",
    "idempotency", "limits", "approval", "provenance", "writes", "release", "accepts", "result", "roles", "admits",
    "destructive", "flow",
)  # fmt: skip
"""The fields of a manifest entry that the policy may read.

The other fields (schemas, mappings, invariants, execution) are for the enforcement point alone. The policy gets a
digest of them, so that the manifest's digest covers all fields.
"""

_UNORDERED: Final = (("cli", "env"), ("safety", "requires"), ("state", "reads"))


@dataclass(frozen=True, slots=True)
class EffectiveManifest:
    """The effective entries of all tools. It is immutable; create it with `effective_manifest`.

    `digest` is `sha256:` and 64 hexadecimal digits, over the RFC 8785 form of `document`, so equal content has the same
    digest in every layout and file format. `tracks_flow` is true if decisions depend on the data that a run has read.
    `document` is the policy engine's input: `{"manifest_version", "agents"?: {agent: {tool: version}}, "tools": {name:
    entry}}`. Each entry has the fields of `FOR_POLICY`, `approval.expires_seconds`, and `contract`, which is a digest
    of all other fields.
    """

    version: str
    digest: str
    tools: Mapping[str, Tool]
    tracks_flow: bool
    document: dict[str, Any] = field(repr=False)
    ontology: Ontology | None = field(default=None, repr=False)


def effective_manifest(manifest: Manifest, governance: Governance | None = None) -> EffectiveManifest:
    """Merge a manifest with a governance file. Raise `UsageError` if two tools have the same name."""
    governance = governance or Governance()
    tools: dict[str, Tool] = {}
    for declared in manifest.tools:
        if declared.name in tools:
            raise UsageError(f"tool {declared.name} is declared twice", hint="rename or remove one of them")
        tools[declared.name] = effective_tool(declared, governance.rules_of(declared.action), governance.programs)
    if any(tool.is_labelled for tool in tools.values()):
        tools = {name: _with_profile(tool) for name, tool in tools.items()}
    agents = None if manifest.agents is None else {agent.id: dict(agent.tools) for agent in manifest.agents}
    return replace(made_of(manifest.manifest_version, tools, agents=agents), ontology=manifest.ontology)


def made_of(
    version: str, tools: Mapping[str, Tool], *, agents: Mapping[str, Mapping[str, str]] | None
) -> EffectiveManifest:
    """Return an effective manifest with the given entries. If `agents` is None, any agent may use any tool."""
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
    flow = tool.flow or FlowRules()
    return tool.model_copy(update={"flow": flow.model_copy(update={"profile": flow.profile or FlowProfile.BALANCED})})


def effective_tool(
    declared: DeclaredTool, rules: ActionRules | None, programs: Mapping[str, Program] | None = None
) -> Tool:
    """Return the effective entry of a tool: merged with the rules for its action, with defaults filled in."""
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
    # The record is created without validation, because every part of it is already validated.
    return Tool.model_construct(**fields)


def _entry(tool: Tool) -> dict[str, Any]:
    whole: dict[str, Any] = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
    entry: dict[str, Any] = {name: whole.pop(name) for name in FOR_POLICY if name in whole}
    for record, name in _UNORDERED:
        if record in whole:
            whole[record][name] = sorted(whole[record][name])
    # Durations are also given as numbers, because policies compare numbers and cannot parse ISO 8601.
    entry["approval"]["expires_seconds"] = duration_seconds(tool.approval.expires)
    if tool.approval.lasting is not None:
        entry["approval"]["lasting"]["max_seconds"] = duration_seconds(tool.approval.lasting.max)
    entry["contract"] = digest(canonical(whole))
    return entry


def merged_fields(tool: Governable, rules: ActionRules | None) -> dict[str, Any]:
    """Return a tool's fields merged with the rules for its action. Lists whose order has no meaning are sorted."""
    other = rules or ActionRules()
    return {name: join(getattr(tool, name), getattr(other, name)) for name, join in _JOINS.items()}


def _stated(join: _Join) -> _Join:
    def joined(first: Any, second: Any) -> Any:
        if first is None:
            return second
        return first if second is None else join(first, second)

    return joined


def _heavier(ranks: type[StrEnum]) -> _Join:
    order = list(ranks)  # The enum lists its members from the lightest to the heaviest.
    return _stated(partial(max, key=order.index))


def _union(first: Terms, second: Terms, key: Callable[[Any], Any] = str) -> Terms:
    if first is None and second is None:
        return None
    stated = {key(item): item for item in (*(first or ()), *(second or ()))}
    return tuple(stated[name] for name in sorted(stated))


def _of_limit(limit: Limit) -> tuple[str, ...]:
    return limit.limit, limit.argument or "", limit.per or "", str(limit.window or "")


def _intersection(first: Terms, second: Terms) -> Terms:
    stated = [set(terms) for terms in (first, second) if terms is not None]
    return tuple(sorted(set.intersection(*stated))) if stated else None


def _record(model: type[Record], **joins: _Join) -> _Join:
    def joined(first: Any, second: Any) -> Any:
        # If only one file has the record, the record is joined with itself, so that its lists are sorted in this case
        # as well.
        sides = (first or second, second or first)
        if None in sides:
            return None
        return model(**{name: join(*(getattr(side, name) for side in sides)) for name, join in joins.items()})

    return joined


_JOINS: Final[dict[str, _Join]] = {
    "effect_class": _heavier(EffectClass),
    "risk_tier": _heavier(RiskTier),
    "scopes": _union,
    "markings": _intersection,
    "purposes": _intersection,
    # The longer duration counts: the longer a key is remembered, the longer it prevents a second effect.
    "idempotency": _record(
        Idempotency, required=or_, key=_stated(max), ttl=_stated(partial(max, key=duration_seconds))
    ),
    "limits": partial(_union, key=_of_limit),
    "resource": _stated(or_),
    "context": _stated(or_),
    "approval": _record(
        ApprovalBlock,
        approvers=_intersection,
        quorum=_stated(max),
        expires=_stated(partial(min, key=duration_seconds)),
        unless_within_limits=_stated(and_),
        lasting=_stated(lambda _, governance: governance),
    ),
    "provenance": _record(Provenance, required=_union),
    "writes": _heavier(Writes),
    "sensitive": _union,
    "max_bytes": _stated(min),
    "result": _record(
        ResultLabels,
        integrity=_heavier(Integrity),
        **dict.fromkeys(("trusted", "parties", "names", "created"), _intersection),
        markings=_union,
    ),
    "roles": _stated(or_),
    "admits": _intersection,
    "destructive": _stated(or_),
    "flow": _record(FlowRules, profile=_heavier(FlowProfile), rules=_union, otherwise=_heavier(Otherwise)),
}
"""For each field that both files may define: the function that merges its two values."""
