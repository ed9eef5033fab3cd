"""The effective manifest: manifest and governance file merged, as the enforcement point and the policy see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pdp.errors import UsageError
from pdp.json import canonical, digest
from pdp.manifest.fields import RiskTier, Writes, duration_seconds
from pdp.manifest.merge import merged_fields
from pdp.manifest.model import DeclaredTool, EffectiveApproval, Tool
from pdp.manifest.records import Idempotency, Provenance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdp.manifest.model import ActionRules, Governance, Manifest
    from pdp.manifest.records import Program

# What the policy reads of an entry. The rest (schemas, mappings, invariants, how it runs) concerns the enforcement
# point alone; the document has its digest, so that the manifest's digest covers it all.
_FOR_POLICY: Final = (
    "name", "id", "version", "pdp_action", "pattern", "effect_class", "risk_tier", "scopes", "markings", "purposes",
    "idempotency", "limits", "approval", "provenance", "writes", "release",
)  # fmt: skip
_UNORDERED: Final = (("cli", "env"), ("safety", "requires"), ("state", "reads"))


@dataclass(frozen=True, slots=True)
class EffectiveManifest:
    """Every tool with all that holds for it. Make it with `effective_manifest`; do not change what is in it.

    Attributes:
        version: the manifest's version.
        digest: `sha256:` and 64 hexadecimal digits, over the RFC 8785 form of `document`. The same content has the same
            digest, whatever its spelling, order or file format.
        tools: the effective entries by name, in the manifest's order.
        document: what the policy engine gets, plain JSON: `{"manifest_version", "agents"?: {agent: {tool: version}},
            "tools": {name: entry}}`. An entry has name, id, pdp_action, risk_tier, scopes, limits, idempotency,
            approval (with `expires_seconds`, a number), provenance, writes, and `contract`, a digest of what the policy
            does not read; where stated also version, pattern, effect_class, markings, purposes, release.
    """

    version: str
    digest: str
    tools: Mapping[str, Tool]
    document: dict[str, Any] = field(repr=False)


def effective_manifest(manifest: Manifest, governance: Governance | None = None) -> EffectiveManifest:
    """Merge a manifest with a governance file, the stricter holding (pdp/manifest/merge.py).

    `pdp.manifest.load.load_effective` does so from files and checks what they only decide together.

    Raises:
        UsageError: two tools of one name.
    """
    actions = governance.actions if governance else {}
    programs = governance.programs if governance else {}
    tools: dict[str, Tool] = {}
    for declared in manifest.tools:
        if declared.name in tools:
            raise UsageError(f"tool {declared.name} is declared twice", hint="names are unique: rename or remove one")
        tools[declared.name] = effective_tool(declared, actions.get(declared.action), programs)
    agents = None if manifest.agents is None else {agent.id: dict(agent.tools) for agent in manifest.agents}
    return made_of(manifest.manifest_version, tools, agents=agents)


def made_of(
    version: str, tools: Mapping[str, Tool], *, agents: Mapping[str, Mapping[str, str]] | None
) -> EffectiveManifest:
    """Return the effective manifest of effective entries, by name.

    Args:
        version: the manifest's version.
        tools: the entries.
        agents: the version of each tool that an agent is pinned to, by agent; None: any agent may use any.
    """
    document: dict[str, Any] = {
        "manifest_version": version,
        "tools": {name: _entry(tool) for name, tool in tools.items()},
    }
    if agents is not None:
        document["agents"] = {agent: dict(pins) for agent, pins in agents.items()}
    return EffectiveManifest(
        version=version, digest=digest(canonical(document)), tools=MappingProxyType(dict(tools)), document=document
    )


def effective_tool(
    declared: DeclaredTool, rules: ActionRules | None, programs: Mapping[str, Program] | None = None
) -> Tool:
    """Return one effective entry: `declared` merged with the rules for its action, defaults filled in.

    Args:
        declared: the manifest's entry.
        rules: the governance file's rules for its action.
        programs: the programs that the governance file lists.

    Defaults: risk tier high; no scopes, limits or provenance; idempotency not required; a quorum of 1, expiry PT1H, and
    no approval within limits for an entry without effect class, but for one with it.
    """
    fields = {name: getattr(declared, name) for name in DeclaredTool.model_fields}
    merged = merged_fields(declared, rules)
    approval = merged["approval"]
    stated = {} if approval is None else approval.model_dump(exclude_none=True)
    fields |= merged
    fields |= {
        "program": (programs or {}).get(declared.cli.argv[0]) if declared.cli else None,
        "id": declared.id or f"tool.{declared.name}",
        "pdp_action": declared.action,
        "risk_tier": merged["risk_tier"] or RiskTier.HIGH,
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
    entry: dict[str, Any] = {name: whole.pop(name) for name in _FOR_POLICY if name in whole}
    for record, name in _UNORDERED:
        if record in whole:
            whole[record][name] = sorted(whole[record][name])
    # Policies compare numbers; what an ISO 8601 duration is in seconds they cannot work out.
    entry["approval"]["expires_seconds"] = duration_seconds(tool.approval.expires)
    entry["contract"] = digest(canonical(whole))
    return entry
