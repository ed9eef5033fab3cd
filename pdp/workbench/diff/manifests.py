"""Which manifest of the old bundle became which of the new one, and what changed in it.

A request names its manifest by digest, and any change makes another digest. So a call is put to either bundle as the
enforcement point of that release sends it: with the digest, the version and the action of that side.

A bundle holds of an entry what the policy reads, and a digest of the rest. Schemas, and the versions that a change of
them asks for, are compared only where the manifest files are named.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from pdp.json import canonical
from pdp.manifest.diff import Direction, GovernanceChange, ManifestDiff, ToolDiff, manifest_diff
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.model import Tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdp.engine.bundle.file import Bundle

_CONTRACT: Final = "contract"
_UNREAD: Final = "what the policy does not read changed (schema, mapping, invariants, execution): name the manifests"


@dataclass(frozen=True, slots=True)
class ManifestPair:
    """A manifest before and after, as digests; None: that bundle has none that it became, or was."""

    old: str | None
    new: str | None


class Manifests:
    """The manifests of two bundles, paired.

    A manifest that both have is paired with itself. One that only the new bundle has is paired with that of the old one
    which shares most tools with it, first among those that are gone; without a shared tool it is new.

    Args:
        old, new: documents by digest.

    Attributes:
        pairs: the pairs, those of the new bundle first, by digest.
    """

    def __init__(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        self.old, self.new = old, new
        pairs = {digest: ManifestPair(digest, digest) for digest in new if digest in old}
        gone = {digest: document for digest, document in old.items() if digest not in new}
        taken = set()
        for digest in (each for each in new if each not in old):
            before = _nearest(new[digest], gone) or _nearest(new[digest], old)
            taken.add(before)
            pairs[digest] = ManifestPair(before, digest)
        lost = [ManifestPair(digest, None) for digest in sorted(gone) if digest not in taken]
        self.pairs = (*(pairs[digest] for digest in sorted(pairs)), *lost)
        self._after = {pair.old: pair.new for pair in reversed(self.pairs) if pair.old and pair.new}
        self._before = {pair.new: pair.old for pair in reversed(self.pairs) if pair.old and pair.new}

    @classmethod
    def of(cls, old: Bundle, new: Bundle) -> Manifests:
        """Return those of two bundles."""
        return cls(old.data.get("manifests", {}), new.data.get("manifests", {}))

    def documents(self) -> Iterator[tuple[ManifestPair, Mapping[str, Any], Mapping[str, Any]]]:
        """Yield each pair with the documents before and after; empty where there is none."""
        for pair in self.pairs:
            yield pair, self.old.get(pair.old or "", {}), self.new.get(pair.new or "", {})

    def requests(self, request: Any) -> tuple[bytes, bytes]:
        """Return a request's canonical bytes for the old bundle, and for the new one.

        Raises:
            JsonValueError: it is not JSON.
        """
        named = _named(request)
        body = canonical(request)
        if named is None:
            return body, body
        before, after = self._before.get(named), self._after.get(named)
        old = body if named in self.old or before is None else canonical(_moved(request, before, self.old, self.new))
        new = body if named in self.new or after is None else canonical(_moved(request, after, self.new, self.old))
        return old, new


def _nearest(document: Any, others: Mapping[str, Any]) -> str | None:
    tools = set(document.get("tools", {}))
    shared = {
        digest: len(tools & names) / len(tools | names)
        for digest, other in others.items()
        if tools & (names := set(other.get("tools", {})))
    }
    return min(shared, key=lambda digest: (-shared[digest], digest), default=None)


def _named(request: Any) -> str | None:
    try:
        named = request["action"]["properties"]["manifest_digest"]
    except (KeyError, TypeError):
        return None
    return named if isinstance(named, str) else None


def _moved(request: Any, digest: str, target: Mapping[str, Any], source: Mapping[str, Any]) -> Any:
    """The request as made under another manifest. A name or version that was wrong before stays wrong."""
    action = request["action"]
    properties = action["properties"]
    here, there = source.get(properties["manifest_digest"], {}), target[digest]
    moved = {**properties, "manifest_digest": digest}
    if properties.get("manifest_version") == here.get("manifest_version"):
        moved["manifest_version"] = there.get("manifest_version")
    tool = properties.get("tool")
    before, after = (_tools(each).get(tool) if isinstance(tool, str) else None for each in (here, there))
    name = action.get("name")
    if isinstance(before, dict) and isinstance(after, dict) and before.get("pdp_action") == name:
        name = after.get("pdp_action")
    return {**request, "action": {**action, "name": name, "properties": moved}}


def _tools(document: Any) -> Any:
    tools = document.get("tools")
    return tools if isinstance(tools, dict) else {}


@dataclass(frozen=True, slots=True)
class ManifestChange:
    """One manifest of the old bundle and what became of it.

    Attributes:
        kind: `added`, `removed`, `changed` or `same`.
        pair: the digests; old_version, new_version: None where there is none.
        diff: what differs; None when it is the same, or cannot be compared.
        whole: whether schemas were compared as well: the files of both were named.
        direction: of a manifest that was added or removed, or cannot be compared; else None.
    """

    kind: str
    pair: ManifestPair
    old_version: str | None
    new_version: str | None
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
        sides = (self.pair.old, self.old_version), (self.pair.new, self.new_version)
        old, new = (None if digest is None else {"version": version, "digest": digest} for digest, version in sides)
        return {
            "kind": self.kind,
            "direction": None if self.direction is None else self.direction.value,
            "old": old,
            "new": new,
            "schemas_compared": self.whole,
            "diff": None if self.diff is None else self.diff.as_json(),
        }


def manifest_changes(manifests: Manifests, known: Mapping[str, EffectiveManifest]) -> tuple[ManifestChange, ...]:
    """Return what became of each manifest; `known` are whole manifests by digest, of files that were named."""
    return tuple(_change(pair, old, new, known) for pair, old, new in manifests.documents())


def _change(pair: ManifestPair, old: Any, new: Any, known: Mapping[str, EffectiveManifest]) -> ManifestChange:
    versions = _version(old), _version(new)
    if pair.old is None or pair.new is None:
        kind, direction = ("added", Direction.LOOSENS) if pair.old is None else ("removed", Direction.TIGHTENS)
        return ManifestChange(kind, pair, *versions, None, whole=False, direction=direction)
    if pair.old == pair.new:
        return ManifestChange("same", pair, *versions, None, whole=True)
    if pair.old in known and pair.new in known:
        return ManifestChange("changed", pair, *versions, manifest_diff(known[pair.old], known[pair.new]), whole=True)
    before, after = _effective(pair.old, old), _effective(pair.new, new)
    if before is None or after is None:
        return ManifestChange("changed", pair, *versions, None, whole=False, direction=Direction.UNCLEAR)
    diff = _with_contracts(manifest_diff(before, after), old, new)
    return ManifestChange("changed", pair, *versions, diff, whole=False)


def _with_contracts(diff: ManifestDiff, before: Any, after: Any) -> ManifestDiff:
    """Add, for each tool, that what a bundle does not hold of it changed."""
    tools = {tool.tool: tool for tool in diff.tools}
    for name in sorted(before["tools"].keys() & after["tools"].keys()):
        old, new = before["tools"][name], after["tools"][name]
        if old.get(_CONTRACT) != new.get(_CONTRACT):
            change = GovernanceChange(_CONTRACT, Direction.UNCLEAR, old.get(_CONTRACT), new.get(_CONTRACT), _UNREAD)
            tool = tools.get(name) or ToolDiff(name, "changed", old.get("version"), new.get("version"))
            tools[name] = replace(tool, governance=(*tool.governance, change))
    return replace(diff, tools=tuple(tools[name] for name in sorted(tools)))


def _effective(digest: str, document: Any) -> EffectiveManifest | None:
    """The manifest as far as its document says it; None when no loader would have made that document."""
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
    # What a bundle does not hold is the same on both sides, so that it shows no change.
    return Tool.model_validate({"sensitive": [], **stated, "approval": approval, "schema": {}})


def _version(document: Any) -> str | None:
    version = document.get("manifest_version") if isinstance(document, dict) else None
    return version if isinstance(version, str) else None
