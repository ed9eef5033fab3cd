"""What changed in the data of two bundles, path by path, and which way it goes where that is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.manifest.governance_diff import Direction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdp.engine.bundle.file import Bundle

_ROOTS: Final = ("config", "directory", "settings")
_ABSENT: Final = object()
_MOST: Final = 1000


@dataclass(frozen=True, slots=True)
class DataChange:
    """One datum that came, went or changed.

    Attributes:
        path: as `directory.corpora.hr.markings`.
        kind: `added`, `removed` or `changed`.
        direction: which way it goes.
        old, new: plain JSON; None where it is not there.
    """

    path: str
    kind: str
    direction: Direction
    old: Any
    new: Any

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "path": self.path, "kind": self.kind, "direction": self.direction.value, "old": self.old, "new": self.new,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class DataChanges:
    """The first thousand changes, by path, and how many there are."""

    shown: tuple[DataChange, ...]
    total: int


def data_changes(old: Bundle, new: Bundle) -> DataChanges:
    """Return what changed in configuration, directory and settings; which bundle it is stands aside."""
    before, after = (_data(bundle) for bundle in (old, new))
    shown: list[DataChange] = []
    total = 0
    for change in _changes(before, after, ()):
        total += 1
        if len(shown) < _MOST:
            shown.append(change)
    return DataChanges(tuple(shown), total)


def _data(bundle: Bundle) -> dict[str, Any]:
    data = {root: bundle.data[root] for root in _ROOTS if root in bundle.data}
    if isinstance(config := data.get("config"), dict):
        data["config"] = {key: value for key, value in config.items() if key != "bundle"}
    return data


def _changes(old: Any, new: Any, path: tuple[str, ...]) -> Iterator[DataChange]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _changes(old.get(key, _ABSENT), new.get(key, _ABSENT), (*path, key))
        return
    if old is new or (old == new and type(old) is type(new)):
        return
    kind = "added" if old is _ABSENT else "removed" if new is _ABSENT else "changed"
    one, other = (None if value is _ABSENT else value for value in (old, new))
    yield DataChange(".".join(path), kind, _direction(path, old, new), one, other)


def _direction(path: tuple[str, ...], old: Any, new: Any) -> Direction:
    # What the policies read of the directory: docs/policies.md, "Corpora and documents".
    match path:
        case ("directory", "entitlements", *_):
            return _of_sets(old, new, more=Direction.LOOSENS)
        case ("directory", "corpora" | "documents", _, "markings"):
            return _of_sets(old, new, more=Direction.TIGHTENS) if old is not _ABSENT else Direction.UNCLEAR
        case ("directory", "documents", _, "restricted"):
            restricted = Direction.LOOSENS if old is True else Direction.UNCLEAR
            return Direction.TIGHTENS if new is True else restricted
        case ("directory", "planning") | ("directory", "planning", _) if old is _ABSENT or new is _ABSENT:
            return Direction.TIGHTENS if old is _ABSENT else Direction.LOOSENS
        case ("config", "required_concerns"):
            return _of_sets(old, new, more=Direction.TIGHTENS)
    return Direction.UNCLEAR


def _of_sets(old: Any, new: Any, *, more: Direction) -> Direction:
    """Which way a list of names goes; a mapping of such lists counts as its lists together."""
    one, other = _members(old), _members(new)
    if one is None or other is None or one == other:
        return Direction.UNCLEAR
    less = Direction.LOOSENS if more is Direction.TIGHTENS else Direction.TIGHTENS
    return more if one < other else less if other < one else Direction.UNCLEAR


def _members(value: Any) -> set[str] | None:
    if value is _ABSENT:
        return set()
    if isinstance(value, dict):
        parts = [_members(each) for each in value.values()]
        return None if None in parts else {one for part in parts if part for one in part}
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return set(value)
    return None
