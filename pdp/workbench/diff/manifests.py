"""Pair the manifests of two bundles, with the changes of each pair.

A request names its manifest by digest, and any change of the manifest changes the digest. So each bundle gets the call
as the enforcement point of its own release would send it: with the manifest's digest, version, action and labels in
that release. A bundle has only the fields of an entry that policies read, and a digest of the other fields, so changes
of schemas are compared by `pdp manifest diff` only.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from pdp.json import canonical
from pdp.manifest.diff import ContentChange, Direction, entry_changes, pin_changes
from pdp.workbench.neighbours.runs import run_under
from pdp.workbench.neighbours.values import at


class ManifestPair(NamedTuple):
    """The digests of a manifest in the old and in the new bundle; None if the bundle has no such manifest."""

    old: str | None
    new: str | None


class Manifests:
    """The manifests of two bundles as documents by digest, and in pairs. Pairs without a new manifest come last.

    A manifest that is in both bundles is paired with itself. A manifest of only the new bundle is paired with the old
    bundle's manifest with the most similar tools, preferably a removed one. Without common tools, it has no pair.
    """

    def __init__(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        self.old, self.new = old, new
        pairs = {digest: ManifestPair(digest, digest) for digest in new if digest in old}
        gone = {digest: document for digest, document in old.items() if digest not in new}
        taken = set()
        for digest in (digest for digest in new if digest not in old):
            before = _nearest(new[digest], gone) or _nearest(new[digest], old)
            taken.add(before)
            pairs[digest] = ManifestPair(before, digest)
        lost = [ManifestPair(digest, None) for digest in sorted(gone) if digest not in taken]
        self.pairs = (*(pairs[digest] for digest in sorted(pairs)), *lost)
        self._after = {pair.old: pair.new for pair in reversed(self.pairs) if pair.old and pair.new}
        self._before = {pair.new: pair.old for pair in reversed(self.pairs) if pair.old and pair.new}

    def documents(self) -> Iterator[tuple[ManifestPair, Mapping[str, Any], Mapping[str, Any]]]:
        """Yield each pair with its old and new document; the document of a missing manifest is empty."""
        for pair in self.pairs:
            yield pair, self.old.get(pair.old or "", {}), self.new.get(pair.new or "", {})

    def changes(self) -> Iterator[ContentChange]:
        """Yield a change for each added, removed or changed manifest, then the changes of its entries and pins."""
        return (change for _, change in self.changed())

    def changed(self) -> Iterator[tuple[ManifestPair, ContentChange]]:
        """Yield the changes with the pair of manifests in which they are."""
        for pair, before, after in self.documents():
            old, new = before.get("manifest_version"), after.get("manifest_version")
            if pair.old is None:
                yield pair, ContentChange("manifest", Direction.LOOSENS, None, pair.new, f"{new} added")
            elif pair.new is None:
                yield pair, ContentChange("manifest", Direction.TIGHTENS, pair.old, None, f"{old} removed")
            elif pair.old != pair.new:
                yield pair, ContentChange("manifest", Direction.UNCLEAR, pair.old, pair.new, f"{old} became {new}")
                yield from ((pair, change) for change in _entry_changes(before, after))

    def requests(
        self, request: Any, *, old: Mapping[str, Any] | None = None, new: Mapping[str, Any] | None = None
    ) -> tuple[bytes, bytes]:
        """Return a request's canonical bytes for each bundle. Raises `JsonValueError` if the request is not JSON.

        `old` and `new` replace the bundles' manifests with others under the same digests.
        """
        old, new = self.old if old is None else old, self.new if new is None else new
        named = named_manifest(request)
        body = canonical(request)
        if named is None:
            return body, body
        sides = ((self._before.get(named), old, new), (self._after.get(named), new, old))
        sent = []
        for digest, own, others in sides:
            moved = request if named in own or digest is None else _moved(request, digest, own, others)
            sent.append(run_under(moved, own.get(named if named in own else digest or "", {})))
        before, after = (body if side is request else canonical(side) for side in sent)
        return before, after


def _nearest(document: Any, others: Mapping[str, Any]) -> str | None:
    tools = set(document.get("tools", {}))
    shared = {
        digest: len(tools & names) / len(tools | names)
        for digest, other in others.items()
        if tools & (names := set(other.get("tools", {})))
    }
    return min(shared, key=lambda digest: (-shared[digest], digest), default=None)


def named_manifest(request: Any) -> str | None:
    """Return the manifest digest in a request, or None. The request may have any structure."""
    named = at(request, ("action", "properties", "manifest_digest"))
    return named if isinstance(named, str) else None


def _moved(request: Any, digest: str, target: Mapping[str, Any], source: Mapping[str, Any]) -> Any:
    """Return the request with another manifest. A tool name or version that did not match its manifest is kept."""
    action = request["action"]
    properties = action["properties"]
    here, there = source.get(properties["manifest_digest"], {}), target[digest]
    moved = {**properties, "manifest_digest": digest}
    if properties.get("manifest_version") == here.get("manifest_version"):
        moved["manifest_version"] = there.get("manifest_version")
    tool = properties.get("tool")
    before, after = (at(manifest, ("tools", tool)) for manifest in (here, there))
    name = action.get("name")
    if isinstance(before, dict) and isinstance(after, dict) and before.get("pdp_action") == name:
        name = after.get("pdp_action")
    return {**request, "action": {**action, "name": name, "properties": moved}}


def _entry_changes(old: Any, new: Any) -> list[ContentChange]:
    try:
        changes = [
            replace(change, name=f"{tool}: {change.name}")
            for tool in sorted(old["tools"].keys() | new["tools"].keys())
            for change in entry_changes(tool, old["tools"].get(tool), new["tools"].get(tool))
        ]
        return [*changes, *pin_changes(old.get("agents"), new.get("agents"))]
    except (KeyError, TypeError, ValueError, AttributeError):
        return []
