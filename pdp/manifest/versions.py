"""Compare two manifests: signature changes that need a new version, and governance changes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from semver import Version

from pdp.manifest.diff import ContentChange, Direction, entry_changes, pin_changes
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.exports import described
from pdp.manifest.model import Tool
from pdp.manifest.schema.differences import Bump, SchemaChange, schema_changes

_CHANGED: Final = "changed"
_DESCRIPTION: Final = SchemaChange("description", "", _CHANGED, Bump.PATCH)


@dataclass(frozen=True, slots=True)
class ToolDiff:
    """A tool that was added, removed or changed (`kind`). `signature` is empty unless the tool was changed."""

    tool: str
    kind: str
    old_version: str | None
    new_version: str | None
    signature: tuple[SchemaChange, ...] = ()
    governance: tuple[ContentChange, ...] = ()

    @property
    def needed(self) -> Bump:
        """The smallest version bump that covers all signature changes."""
        return max((change.bump for change in self.signature), default=Bump.NONE)

    @property
    def fault(self) -> str | None:
        """Why the new version is too low for the signature changes, or None. Patch changes need no new version."""
        if self.kind != _CHANGED or (self.old_version is None and self.needed < Bump.MINOR):
            return None
        if self.new_version is None:
            return "has no version, although its signature or version changed"
        if self.old_version is None:
            return None
        old, new = Version.parse(self.old_version), Version.parse(self.new_version)
        if new < old:
            return f"version {new} is lower than {old}"
        # A pre-release of the lowest sufficient version is sufficient too.
        least = old.bump_major() if self.needed is Bump.MAJOR else old.bump_minor()
        if self.needed >= Bump.MINOR and new.finalize_version() < least:
            return f"a {self.needed.word} change from version {old} to {new} needs at least {least}"
        return None


@dataclass(frozen=True, slots=True)
class ManifestDiff:
    """The differences between two effective manifests: changed tools, and changed versions that agents pin."""

    old_version: str
    new_version: str
    old_digest: str
    new_digest: str
    tools: tuple[ToolDiff, ...]
    pins: tuple[ContentChange, ...]

    @property
    def faults(self) -> tuple[str, ...]:
        """A message for each tool whose new version is too low for its changes."""
        return tuple(f"{tool.tool}: {tool.fault}" for tool in self.tools if tool.fault)

    def directions(self) -> frozenset[Direction]:
        """Return the directions of all governance changes."""
        changes = [*self.pins, *(change for tool in self.tools for change in tool.governance)]
        return frozenset(change.direction for change in changes)

    def as_json(self) -> dict[str, Any]:
        """Return the object that `pdp manifest diff --json` prints. Its keys are the same in all releases."""
        return {
            "old": {"version": self.old_version, "digest": self.old_digest},
            "new": {"version": self.new_version, "digest": self.new_digest},
            "tools": [
                asdict(tool)
                | {
                    "needed": tool.needed.word,
                    "fault": tool.fault,
                    "signature": [asdict(change) | {"bump": change.bump.word} for change in tool.signature],
                    "governance": [asdict(change) | {"word": change.word} for change in tool.governance],
                }
                for tool in self.tools
            ],
            "pins": [asdict(change) | {"word": change.word} for change in self.pins],
            "faults": list(self.faults),
        }


def manifest_diff(old: EffectiveManifest, new: EffectiveManifest) -> ManifestDiff:
    """Return the differences between two manifests that affect the model or the policy.

    A changed description needs a patch bump, and a breaking change a major bump, also below version 1.0.0. Service
    levels (`sla`) are not compared.

    Args:
        old: the manifest before the change.
        new: the manifest after the change.

    Examples:
        >>> from pdp.files import load_effective
        >>> old, new = load_effective("manifest.json"), load_effective("manifest.json", "governance.yaml")
        >>> [tool.tool for tool in manifest_diff(old, new).tools]
        ['initiate_wire', 'lookup_beneficiary', 'validate_payment']
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
        pins=tuple(pin_changes(old.document.get("agents"), new.document.get("agents"))),
    )


def _tool_diff(name: str, old: Tool | None, new: Tool | None) -> ToolDiff | None:
    versions = (old.version if old else None, new.version if new else None)
    before, after = (
        None if tool is None else tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in (old, new)
    )
    governance = entry_changes(name, before, after)
    if old is None or new is None:
        return ToolDiff(name, "removed" if old else "added", *versions, governance=governance)
    signature = (
        *schema_changes(old.schema_, new.schema_, "request"),
        *schema_changes(old.result_schema, new.result_schema, "response"),
        *((_DESCRIPTION,) if described(old) != described(new) else ()),
    )
    if not signature and not governance and old.version == new.version:
        return None
    return ToolDiff(name, _CHANGED, *versions, signature, governance)
