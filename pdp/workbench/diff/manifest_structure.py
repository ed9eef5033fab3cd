"""What changed in the manifests of two bundles, told by `pdp manifest diff`.

A bundle holds of an entry what the policy reads, and a digest of the rest. Schemas, and so the versions that a change
of them asks for, are known only of manifests whose files are named.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from pdp.manifest.diff import ManifestDiff, ToolDiff, manifest_diff
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.governance_diff import Direction, GovernanceChange
from pdp.manifest.model import Tool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdp.workbench.diff.pairing import Pair

_CONTRACT: Final = "contract"
_UNREAD: Final = "what the policy does not read changed (schema, mapping, invariants, execution): name the manifests"


@dataclass(frozen=True, slots=True)
class ManifestChange:
    """One manifest of the old bundle and what became of it.

    Attributes:
        kind: `added`, `removed`, `changed` or `same`.
        old_version, new_version, old_digest, new_digest: None where it is not there.
        diff: what differs; None when it is the same, or cannot be told.
        whole: whether schemas were compared as well: the files of both were named.
        direction: of a manifest that was added or removed, or cannot be compared; else None.
    """

    kind: str
    old_version: str | None
    new_version: str | None
    old_digest: str | None
    new_digest: str | None
    diff: ManifestDiff | None
    whole: bool
    direction: Direction | None = None

    @property
    def changes(self) -> tuple[tuple[str, GovernanceChange], ...]:
        """Each change of governance with the tool it is of, or `agents`."""
        if self.diff is None:
            return ()
        tools = ((tool.tool, change) for tool in self.diff.tools for change in tool.governance)
        return (*tools, *(("agents", change) for change in self.diff.pins))

    def directions(self) -> frozenset[Direction]:
        """Return which ways it goes."""
        own = frozenset() if self.direction is None else frozenset((self.direction,))
        return own | (self.diff.directions() if self.diff else frozenset())

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON; `diff` as of `pdp manifest diff --json`."""
        return {
            "kind": self.kind,
            "direction": None if self.direction is None else self.direction.value,
            "old": None if self.old_digest is None else {"version": self.old_version, "digest": self.old_digest},
            "new": None if self.new_digest is None else {"version": self.new_version, "digest": self.new_digest},
            "schemas_compared": self.whole,
            "diff": None if self.diff is None else self.diff.as_json(),
        }


def manifest_changes(
    pairs: Sequence[Pair], old: Mapping[str, Any], new: Mapping[str, Any], known: Mapping[str, EffectiveManifest]
) -> tuple[ManifestChange, ...]:
    """Return what became of each manifest.

    Args:
        pairs: which became which.
        old: the documents in the one bundle by digest.
        new: those in the other.
        known: whole manifests by digest, of files that were named.
    """
    return tuple(_change(pair, old, new, known) for pair in pairs)


def _change(
    pair: Pair, old: Mapping[str, Any], new: Mapping[str, Any], known: Mapping[str, EffectiveManifest]
) -> ManifestChange:
    before, after = old.get(pair.old or ""), new.get(pair.new or "")
    versions = _version(before), _version(after), pair.old, pair.new
    if pair.old is None or pair.new is None:
        kind, direction = ("added", Direction.LOOSENS) if pair.old is None else ("removed", Direction.TIGHTENS)
        return ManifestChange(kind, *versions, None, whole=False, direction=direction)
    if pair.old == pair.new:
        return ManifestChange("same", *versions, None, whole=True)
    if pair.old in known and pair.new in known:
        return ManifestChange("changed", *versions, manifest_diff(known[pair.old], known[pair.new]), whole=True)
    one, other = _effective(pair.old, before), _effective(pair.new, after)
    if one is None or other is None:
        return ManifestChange("changed", *versions, None, whole=False, direction=Direction.UNCLEAR)
    found = manifest_diff(one, other)
    return ManifestChange("changed", *versions, _with_contracts(found, before, after), whole=False)


def _with_contracts(found: ManifestDiff, before: Any, after: Any) -> ManifestDiff:
    """Add, for each tool, that what a bundle does not hold of it is another than it was."""
    tools = {tool.tool: tool for tool in found.tools}
    for name in sorted(before["tools"].keys() & after["tools"].keys()):
        one, other = before["tools"][name], after["tools"][name]
        if one.get(_CONTRACT) != other.get(_CONTRACT):
            change = GovernanceChange(_CONTRACT, Direction.UNCLEAR, one.get(_CONTRACT), other.get(_CONTRACT), _UNREAD)
            tool = tools.get(name) or ToolDiff(name, "changed", one.get("version"), other.get("version"))
            tools[name] = replace(tool, governance=(*tool.governance, change))
    return replace(found, tools=tuple(tools[name] for name in sorted(tools)))


def _effective(digest: str, document: Any) -> EffectiveManifest | None:
    """The manifest as far as its document tells; None when it is none that a loader would have made."""
    try:
        tools = {name: _tool(entry) for name, entry in document["tools"].items()}
        return EffectiveManifest(
            version=str(document["manifest_version"]), digest=digest, tools=tools, document=document
        )
    except (ValidationError, KeyError, TypeError, AttributeError):
        return None


def _tool(entry: Mapping[str, Any]) -> Tool:
    stated = {key: value for key, value in entry.items() if key != _CONTRACT}
    approval = {key: value for key, value in stated["approval"].items() if key != "expires_seconds"}
    # What a bundle does not hold is the same on both sides, so that no change of it is claimed.
    return Tool.model_validate({"sensitive": [], **stated, "approval": approval, "schema": {}})


def _version(document: Any) -> str | None:
    version = document.get("manifest_version") if isinstance(document, dict) else None
    return version if isinstance(version, str) else None
