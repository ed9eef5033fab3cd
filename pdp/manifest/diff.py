"""The difference of two manifests: what breaks callers and asks for which version, and what is governed otherwise.

A pure function of two effective manifests, so that two files and two bundles are compared the same way.

Where a change of governance admits more it loosens, where less it tightens; where it depends, or a person has to look,
it is unclear. "Stricter" means what it means where manifest and governance file are merged (pdp/manifest/effective.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from semver import Version

from pdp.manifest.exports import described
from pdp.manifest.fields import EffectClass, RiskTier, duration_seconds
from pdp.manifest.schema.differences import Bump, SchemaChange, schema_changes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdp.manifest.effective import EffectiveManifest
    from pdp.manifest.model import Tool


class Direction(StrEnum):
    """Which way a change goes."""

    LOOSENS = "loosens"
    TIGHTENS = "tightens"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class GovernanceChange:
    """One change of a field that governs.

    Attributes:
        field: its name in a manifest, dotted.
        direction: what it does.
        old, new: as plain JSON; None: not stated.
        what: what came, went or changed, in words.
    """

    field: str
    direction: Direction
    old: Any
    new: Any
    what: str


_DESCRIPTION: Final = SchemaChange("description", "", "changed", Bump.PATCH)


@dataclass(frozen=True, slots=True)
class ToolDiff:
    """One tool that differs.

    Attributes:
        tool: its name.
        kind: `added`, `removed` or `changed`.
        old_version, new_version: as stated, or None.
        signature: changes of its schemas and of its description (part `description`); of a tool that was added or
            removed none.
        governance: changes of what governs it; of one that was added or removed the one change that it is there.
    """

    tool: str
    kind: str
    old_version: str | None
    new_version: str | None
    signature: tuple[SchemaChange, ...] = ()
    governance: tuple[GovernanceChange, ...] = ()

    @property
    def needed(self) -> Bump:
        """What the changes of the signature ask of the version."""
        return max((change.bump for change in self.signature), default=Bump.NONE)

    @property
    def fault(self) -> str | None:
        """What is wrong with the version, or None: the bump is there, and it did not go back. Text needs no bump."""
        if self.kind != "changed" or (self.old_version is None and self.needed < Bump.MINOR):
            return None
        if self.new_version is None:
            return "states no version, and its signature or its version changed"
        if self.old_version is None:
            return None
        old, new = Version.parse(self.old_version), Version.parse(self.new_version)
        if new < old:
            return f"version {new} is before {old}"
        if self.needed >= Bump.MINOR and _made(old, new) < self.needed:
            return f"a {_word(self.needed)} change, and version {old} became {new}: at least {_next(old, self.needed)}"
        return None


@dataclass(frozen=True, slots=True)
class ManifestDiff:
    """What differs between two effective manifests.

    Attributes:
        old_version, new_version: of the manifests.
        old_digest, new_digest: likewise; equal when nothing differs.
        tools: those that differ, by name.
        pins: changes of which agent may use which version.
    """

    old_version: str
    new_version: str
    old_digest: str
    new_digest: str
    tools: tuple[ToolDiff, ...]
    pins: tuple[GovernanceChange, ...]

    @property
    def faults(self) -> tuple[str, ...]:
        """A line for each tool whose version does not say what changed."""
        return tuple(f"{tool.tool}: {tool.fault}" for tool in self.tools if tool.fault)

    def directions(self) -> frozenset[Direction]:
        """Return which ways the changes of governance go."""
        changes = [*self.pins, *(change for tool in self.tools for change in tool.governance)]
        return frozenset(change.direction for change in changes)

    def as_json(self) -> dict[str, Any]:
        """Return the object that `pdp manifest diff --json` prints; its form is stable."""
        return {
            "old": {"version": self.old_version, "digest": self.old_digest},
            "new": {"version": self.new_version, "digest": self.new_digest},
            "tools": [
                {
                    "tool": tool.tool,
                    "kind": tool.kind,
                    "old_version": tool.old_version,
                    "new_version": tool.new_version,
                    "needed": _word(tool.needed),
                    "fault": tool.fault,
                    "signature": [
                        {"part": one.part, "path": one.path, "what": one.what, "bump": _word(one.bump)}
                        for one in tool.signature
                    ],
                    "governance": [_governance_json(one) for one in tool.governance],
                }
                for tool in self.tools
            ],
            "pins": [_governance_json(one) for one in self.pins],
            "faults": list(self.faults),
        }


def manifest_diff(old: EffectiveManifest, new: EffectiveManifest) -> ManifestDiff:
    """Return what differs. Service levels and the like are no difference here.

    What the model is told of a tool, its description and its rules, is a patch, as all text is.

    A changed signature needs its bump also below version 1.0.0: breaking is major, whatever the number.
    """
    tools = (
        _tool_diff(name, old.tools.get(name), new.tools.get(name))
        for name in sorted(old.tools.keys() | new.tools.keys())
    )
    return ManifestDiff(
        old_version=old.version,
        new_version=new.version,
        old_digest=old.digest,
        new_digest=new.digest,
        tools=tuple(tool for tool in tools if tool is not None),
        pins=tuple(_pin_changes(old.document.get("agents"), new.document.get("agents"))),
    )


def _tool_diff(name: str, old: Tool | None, new: Tool | None) -> ToolDiff | None:
    if old is None and new is not None:
        change = GovernanceChange("tools", Direction.LOOSENS, None, name, "may be called now")
        return ToolDiff(name, "added", None, new.version, governance=(change,))
    if new is None and old is not None:
        change = GovernanceChange("tools", Direction.TIGHTENS, name, None, "may no longer be called")
        return ToolDiff(name, "removed", old.version, None, governance=(change,))
    if old is None or new is None:
        return None
    signature = (
        *schema_changes(old.schema_, new.schema_, "request"),
        *schema_changes(old.result_schema, new.result_schema, "response"),
        *((_DESCRIPTION,) if described(old) != described(new) else ()),
    )
    governance = governance_changes(old, new)
    if not signature and not governance and old.version == new.version:
        return None
    return ToolDiff(name, "changed", old.version, new.version, signature, governance)


def _pin_changes(
    old: Mapping[str, Mapping[str, str]] | None, new: Mapping[str, Mapping[str, str]] | None
) -> Iterator[GovernanceChange]:
    if old is None and new is None:
        return
    if old is None or new is None:  # absent: any agent, any version
        direction, what = (Direction.TIGHTENS, "pinned") if old is None else (Direction.LOOSENS, "no longer pinned")
        yield GovernanceChange("agents", direction, _plain(old), _plain(new), what)
        return
    before = {(agent, tool): version for agent, pins in old.items() for tool, version in pins.items()}
    after = {(agent, tool): version for agent, pins in new.items() for tool, version in pins.items()}
    for agent, tool in sorted(before.keys() | after.keys()):
        one, other = before.get((agent, tool)), after.get((agent, tool))
        if one != other:
            direction = Direction.LOOSENS if one is None else Direction.TIGHTENS if other is None else Direction.UNCLEAR
            what = "pinned" if one is None else "no longer pinned" if other is None else "pinned to another version"
            yield GovernanceChange(f"agents.{agent}.{tool}", direction, one, other, what)


def _plain(pins: Mapping[str, Mapping[str, str]] | None) -> Any:
    return None if pins is None else {agent: dict(versions) for agent, versions in pins.items()}


def _made(old: Version, new: Version) -> Bump:
    """Return which bump lies between two versions."""
    if new.major != old.major:
        return Bump.MAJOR
    if new.minor != old.minor:
        return Bump.MINOR
    # A pre-release that became the release, or another one, is counted as a patch.
    return Bump.PATCH if new != old else Bump.NONE


def _next(old: Version, bump: Bump) -> str:
    return str(old.bump_major() if bump is Bump.MAJOR else old.bump_minor())


def _word(bump: Bump) -> str:
    return bump.name.lower()


def _governance_json(change: GovernanceChange) -> dict[str, Any]:
    return {
        "field": change.field,
        "direction": change.direction.value,
        "old": change.old,
        "new": change.new,
        "what": change.what,
    }


_LOOSENS, _TIGHTENS, _UNCLEAR = Direction.LOOSENS, Direction.TIGHTENS, Direction.UNCLEAR

# Sets of which each member is one more demand.
_DEMANDS: Final = ("scopes", "limits", "provenance.required", "sensitive", "safety.requires")
# Sets of which each member admits more; what None stands for is another matter of each.
_ADMISSIONS: Final = ("approval.approvers", "commits", "program.options", "program.subcommands")
# What changes what the tool is, or what the policy is told about a call: only a person can say what follows.
_WEIGHED: Final = (
    "cli", "compensation", "config", "context", "pdp_action", "pattern", "resource", "retries", "state", "timeout",
    "type", "writes", "idempotency.ttl", "safety.side_effects", "safety.idempotent", "release.deprecation",
    "ontology_pin", "id", "program.path",
)  # fmt: skip


def governance_changes(old: Tool, new: Tool) -> tuple[GovernanceChange, ...]:
    """Return what changed between two effective entries of one tool, in the order of the fields' names."""
    before, after = _flat(old), _flat(new)
    found = [
        *_rank_changes(old, new),
        *(change for name in _DEMANDS for change in _set_changes(name, before, after, more=_TIGHTENS)),
        *(change for name in _ADMISSIONS for change in _set_changes(name, before, after, more=_LOOSENS)),
        *_markings(before, after),
        *_purposes(before, after),
        *_approval(old, new),
        *_idempotency(old, new),
        *_program(old, new),
        *_invariants(old, new),
        *(
            GovernanceChange(name, _UNCLEAR, before.get(name), after.get(name), "changed")
            for name in _WEIGHED
            if before.get(name) != after.get(name)
        ),
    ]
    return tuple(sorted(found, key=lambda change: (change.field, change.direction)))


def _flat(tool: Tool) -> dict[str, Any]:
    whole: dict[str, Any] = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
    nested = {
        f"{name}.{field}": value
        for name in ("approval", "idempotency", "program", "provenance", "release", "safety")
        for field, value in whole.get(name, {}).items()
    }
    return whole | nested


def _rank_changes(old: Tool, new: Tool) -> Iterator[GovernanceChange]:
    tiers = list(RiskTier)
    if old.risk_tier != new.risk_tier:
        direction = _TIGHTENS if tiers.index(new.risk_tier) > tiers.index(old.risk_tier) else _LOOSENS
        yield GovernanceChange("risk_tier", direction, old.risk_tier.value, new.risk_tier.value, "changed")
    if old.effect_class != new.effect_class:
        one, other = old.effect_class, new.effect_class
        classes = list(EffectClass)
        # Without a class the gate is the scope alone, and limits may excuse from approval: neither more nor less.
        direction = _UNCLEAR
        if one is not None and other is not None:
            direction = _TIGHTENS if classes.index(other) > classes.index(one) else _LOOSENS
        yield GovernanceChange("effect_class", direction, one and one.value, other and other.value, "changed")


def _set_changes(
    name: str, before: dict[str, Any], after: dict[str, Any], *, more: Direction
) -> Iterator[GovernanceChange]:
    one, other = before.get(name), after.get(name)
    gone, come = _missing(one, other), _missing(other, one)
    fewer = _LOOSENS if more is _TIGHTENS else _TIGHTENS
    if come:
        yield GovernanceChange(name, more, one, other, f"added {_listed(come)}")
    if gone:
        yield GovernanceChange(name, fewer, one, other, f"removed {_listed(gone)}")


def _missing(values: list[Any] | None, others: list[Any] | None) -> list[Any]:
    return [value for value in values or () if value not in (others or ())]


def _listed(values: list[Any]) -> str:
    return ", ".join(
        value if isinstance(value, str) else " ".join(str(part) for part in value.values()) for value in values
    )


def _markings(before: dict[str, Any], after: dict[str, Any]) -> Iterator[GovernanceChange]:
    """Yield both sides of each change: what the tool may touch, and what clears for data whose markings nobody knows.

    Of such data the entry's markings count as the data's own (policies/authz/lib/resource/resource.rego).
    """
    one, other = before.get("markings"), after.get("markings")
    gone, come = _missing(one, other), _missing(other, one)
    for values, verb, touches, clears in (
        (come, "added", (_LOOSENS, "may be touched"), (_TIGHTENS, "needs clearance for it")),
        (gone, "removed", (_TIGHTENS, "may no longer be touched"), (_LOOSENS, "no longer needs clearance for it")),
    ):
        if values:
            what = f"{verb} {_listed(values)}: data so marked"
            yield GovernanceChange("markings", touches[0], one, other, f"{what} {touches[1]}")
            what = f"{verb} {_listed(values)}: data of unknown markings"
            yield GovernanceChange("markings", clears[0], one, other, f"{what} {clears[1]}")


def _purposes(before: dict[str, Any], after: dict[str, Any]) -> Iterator[GovernanceChange]:
    one, other = before.get("purposes"), after.get("purposes")
    if one == other:
        return
    if one is None or other is None:  # absent: any purpose
        direction, what = (_TIGHTENS, "restricted") if one is None else (_LOOSENS, "no longer restricted")
        yield GovernanceChange("purposes", direction, one, other, what)
    else:
        yield from _set_changes("purposes", before, after, more=_LOOSENS)


def _approval(old: Tool, new: Tool) -> Iterator[GovernanceChange]:
    one, other = old.approval, new.approval
    if one.quorum != other.quorum:
        direction = _TIGHTENS if other.quorum > one.quorum else _LOOSENS
        yield GovernanceChange("approval.quorum", direction, one.quorum, other.quorum, "changed")
    if one.expires != other.expires:
        shorter = duration_seconds(other.expires) < duration_seconds(one.expires)
        direction = _TIGHTENS if shorter else _LOOSENS
        yield GovernanceChange("approval.expires", direction, one.expires, other.expires, "changed")
    excused = (one.unless_within_limits, other.unless_within_limits)
    if excused[0] != excused[1]:
        direction = _LOOSENS if excused[1] else _TIGHTENS
        yield GovernanceChange("approval.unless_within_limits", direction, *excused, "changed")


def _idempotency(old: Tool, new: Tool) -> Iterator[GovernanceChange]:
    one, other = old.idempotency, new.idempotency
    if one.required != other.required:
        direction = _TIGHTENS if other.required else _LOOSENS
        yield GovernanceChange("idempotency.required", direction, one.required, other.required, "changed")
    if one.key != other.key:
        # A key that is derived need not be given.
        direction = _LOOSENS if other.key else _TIGHTENS
        yield GovernanceChange("idempotency.key", direction, one.key, other.key, "changed")


def _program(old: Tool, new: Tool) -> Iterator[GovernanceChange]:
    one, other = old.program, new.program
    if (one is None) != (other is None):
        direction, what = (_LOOSENS, "listed") if one is None else (_TIGHTENS, "no longer listed")
        yield GovernanceChange("program", direction, one and one.path, other and other.path, what)
    operands = (one is not None and one.operands, other is not None and other.operands)
    if operands[0] != operands[1]:
        yield GovernanceChange("program.operands", _LOOSENS if operands[1] else _TIGHTENS, *operands, "changed")


def _invariants(old: Tool, new: Tool) -> Iterator[GovernanceChange]:
    before = {one.id: one.model_dump(mode="json", exclude={"rule"}) for one in old.invariants}
    after = {one.id: one.model_dump(mode="json", exclude={"rule"}) for one in new.invariants}
    for name in dict.fromkeys((*before, *after)):
        one, other = before.get(name), after.get(name)
        if one != other:
            direction = _TIGHTENS if one is None else _LOOSENS if other is None else _UNCLEAR
            what = "added" if one is None else "removed" if other is None else "changed"
            yield GovernanceChange(f"invariants.{name}", direction, one, other, what)
