"""The effective manifest: manifest and governance file merged, as the enforcement point and the policy see it.

A field that only one side states holds as stated. Where both do, the stricter holds, field by field: see the table at
the end. An empty intersection admits nobody. Members of the two mappings that both state are the governance file's: the
mapping feeds the policy, so its author has the last word. So are roles of arguments that both state.

Labels are in use where an entry states `result`, `roles`, `admits` or `flow`, or the governance file `flow`; then every
entry has a profile.
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
"""The fields of an entry that the policy may read.

The rest (schemas, mappings, invariants, how it runs) concerns the enforcement point alone; the document has a digest of
it, so that the manifest's digest covers it all.
"""

_UNORDERED: Final = (("cli", "env"), ("safety", "requires"), ("state", "reads"))


@dataclass(frozen=True, slots=True)
class EffectiveManifest:
    """Every tool with all that holds for it, read-only through and through. Make it with `effective_manifest`.

    Attributes:
        digest: `sha256:` and 64 hexadecimal digits, over the RFC 8785 form of `document`. The same content has the same
            digest, whatever its spelling, order or file format.
        tools: the effective entries by name, in the manifest's order.
        tracks_flow: whether labels are in use: what a run has seen counts.
        document: what the policy engine gets, plain JSON: `{"manifest_version", "agents"?: {agent: {tool: version}},
            "tools": {name: entry}}`. An entry has what is stated of `FOR_POLICY`, `approval.expires_seconds`, and
            `contract`, a digest of what the policy does not read.
        ontology: the ontology that the manifest names; its types stand in the schemas that refer to them.
    """

    version: str
    digest: str
    tools: Mapping[str, Tool]
    tracks_flow: bool
    document: dict[str, Any] = field(repr=False)
    ontology: Ontology | None = field(default=None, repr=False)


def effective_manifest(manifest: Manifest, governance: Governance | None = None) -> EffectiveManifest:
    """Merge a manifest with a governance file, the stricter holding.

    `pdp.manifest.load.load_effective` does so from files and checks what they only decide together.

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
    return replace(made_of(manifest.manifest_version, tools, agents=agents), ontology=manifest.ontology)


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
    flow = tool.flow or FlowRules()
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
    return {name: join(getattr(tool, name), getattr(other, name)) for name, join in _JOINS.items()}


def _stated(join: _Join) -> _Join:
    """Return the join of a field that a side may leave out: then it holds as the other one states it."""

    def joined(first: Any, second: Any) -> Any:
        if first is None:
            return second
        return first if second is None else join(first, second)

    return joined


def _heavier(ranks: type[StrEnum]) -> _Join:
    order = list(ranks)  # lightest first
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
        # What only one side states is joined with itself, so that its lists are sorted as well.
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
    # A key that is remembered for longer protects for longer from a second effect.
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
"""What holds of a governable field that manifest and governance file state, by its name."""
