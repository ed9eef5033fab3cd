"""Which manifest of the old bundle became which of the new one.

A request names its manifest by digest, and any change makes another digest. So a call is put to either bundle as the
enforcement point of that release would send it: with the digest, the version and the action of that side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdp.json import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Pair:
    """A manifest before and after, as digests; None: that bundle has none that it could have been, or become."""

    old: str | None
    new: str | None


def pair_manifests(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Pair, ...]:
    """Pair the manifests of two bundles, documents by digest.

    A manifest that both have is paired with itself. One that only the new bundle has is paired with that of the old one
    which shares most tools with it, first among those that are gone; without a shared tool it is new.
    """
    pairs = {digest: Pair(digest, digest) for digest in new if digest in old}
    gone = [digest for digest in old if digest not in new]
    taken = set()
    for digest in (each for each in new if each not in old):
        before = _nearest(new[digest], {one: old[one] for one in gone}) or _nearest(new[digest], old)
        taken.add(before)
        pairs[digest] = Pair(before, digest)
    lost = [Pair(digest, None) for digest in gone if digest not in taken]
    return (*(pairs[digest] for digest in sorted(pairs)), *sorted(lost, key=lambda pair: str(pair.old)))


def _nearest(document: Any, others: Mapping[str, Any]) -> str | None:
    tools = set(document.get("tools", {}))
    shared = {
        digest: len(tools & names) / len(tools | names)
        for digest, other in others.items()
        if tools & (names := set(other.get("tools", {})))
    }
    return min(shared, key=lambda digest: (-shared[digest], digest), default=None)


class Sides:
    """Puts a request to either bundle as that release's enforcement point would send it.

    Args:
        pairs: as `pair_manifests` gives them.
        old, new: documents of the manifests by digest.
    """

    def __init__(self, pairs: tuple[Pair, ...], old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        self._old, self._new = old, new
        self._after = {pair.old: pair.new for pair in reversed(pairs) if pair.old and pair.new}
        self._before = {pair.new: pair.old for pair in reversed(pairs) if pair.old and pair.new}

    def both(self, request: Any) -> tuple[bytes, bytes]:
        """Return the request's canonical bytes for the old bundle, and for the new one.

        Raises:
            JsonValueError: it is no JSON.
        """
        named = _named(request)
        body = canonical(request)
        if named is None:
            return body, body
        before, after = self._before.get(named), self._after.get(named)
        old = body if named in self._old or before is None else canonical(_moved(request, before, self._old, self._new))
        new = body if named in self._new or after is None else canonical(_moved(request, after, self._new, self._old))
        return old, new


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
    one, other = (_tools(each).get(tool) if isinstance(tool, str) else None for each in (here, there))
    name = action.get("name")
    if isinstance(one, dict) and isinstance(other, dict) and one.get("pdp_action") == name:
        name = other.get("pdp_action")
    return {**request, "action": {**action, "name": name, "properties": moved}}


def _tools(document: Any) -> Any:
    tools = document.get("tools")
    return tools if isinstance(tools, dict) else {}
