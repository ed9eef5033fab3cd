"""Which manifest of the old bundle became which of the new one, and what changed in it.

A request names its manifest by digest, and any change makes another digest. So a call is put to either bundle as the
enforcement point of that release sends it: with the digest, the version and the action of that side, and with the
labels of that side for what the run has seen.

A bundle holds of an entry what the policy reads, and a digest of the rest: `pdp manifest diff` compares schemas.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from pdp.json import canonical
from pdp.manifest.diff import ContentChange, Direction, entry_changes, pin_changes
from pdp.workbench.neighbours.runs import run_under
from pdp.workbench.neighbours.values import at


class ManifestPair(NamedTuple):
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
        pairs: those of the new bundle first, by digest.
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
        """Yield each pair with the documents before and after; empty where there is none."""
        for pair in self.pairs:
            yield pair, self.old.get(pair.old or "", {}), self.new.get(pair.new or "", {})

    def changes(self) -> Iterator[ContentChange]:
        """Yield what became of each manifest, and below it what changed in its entries and pins."""
        for pair, before, after in self.documents():
            old, new = before.get("manifest_version"), after.get("manifest_version")
            if pair.old is None:
                yield ContentChange("manifest", Direction.LOOSENS, None, pair.new, f"{new} added")
            elif pair.new is None:
                yield ContentChange("manifest", Direction.TIGHTENS, pair.old, None, f"{old} removed")
            elif pair.old != pair.new:
                yield ContentChange("manifest", Direction.UNCLEAR, pair.old, pair.new, f"{old} became {new}")
                yield from _entry_changes(before, after)

    def requests(self, request: Any) -> tuple[bytes, bytes]:
        """Return a request's canonical bytes for the old bundle, and for the new one.

        JsonValueError: it is not JSON.
        """
        named = named_manifest(request)
        body = canonical(request)
        if named is None:
            return body, body
        sides = ((self._before.get(named), self.old, self.new), (self._after.get(named), self.new, self.old))
        sent = []
        for digest, own, others in sides:
            moved = request if named in own or digest is None else _moved(request, digest, own, others)
            sent.append(run_under(moved, own.get(named if named in own else digest or "", {})))
        old, new = (body if side is request else canonical(side) for side in sent)
        return old, new


def _nearest(document: Any, others: Mapping[str, Any]) -> str | None:
    tools = set(document.get("tools", {}))
    shared = {
        digest: len(tools & names) / len(tools | names)
        for digest, other in others.items()
        if tools & (names := set(other.get("tools", {})))
    }
    return min(shared, key=lambda digest: (-shared[digest], digest), default=None)


def named_manifest(request: Any) -> str | None:
    """Return the digest of the manifest that a request names, whatever its shape; None where it names none."""
    named = at(request, ("action", "properties", "manifest_digest"))
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
    before, after = (at(manifest, ("tools", tool)) for manifest in (here, there))
    name = action.get("name")
    if isinstance(before, dict) and isinstance(after, dict) and before.get("pdp_action") == name:
        name = after.get("pdp_action")
    return {**request, "action": {**action, "name": name, "properties": moved}}


def _entry_changes(old: Any, new: Any) -> list[ContentChange]:
    """What changed in the entries and pins of two documents; nothing where no loader would have made one of them."""
    try:
        changes = [
            replace(change, name=f"{tool}: {change.name}")
            for tool in sorted(old["tools"].keys() | new["tools"].keys())
            for change in entry_changes(tool, old["tools"].get(tool), new["tools"].get(tool))
        ]
        return [*changes, *pin_changes(old.get("agents"), new.get("agents"))]
    except (KeyError, TypeError, ValueError, AttributeError):
        return []
