"""The difference of two manifests: what breaks callers and asks for which version, and what is governed otherwise.

A pure function of two effective manifests, so that two files and two bundles are compared the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from semver import Version

from pdp.manifest.exports import described
from pdp.manifest.governance_diff import Direction, GovernanceChange, governance_changes
from pdp.manifest.schema.differences import Bump, SchemaChange, schema_changes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdp.manifest.effective import EffectiveManifest
    from pdp.manifest.model import Tool

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
