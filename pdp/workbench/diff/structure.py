"""What two bundles consist of, and what changed: rules, data path by path, and manifests."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final

from pdp.engine.bundle.file import Bundle
from pdp.json import canonical, digest
from pdp.manifest.diff import ContentChange, Direction
from pdp.workbench.diff.policies import BundlePair, rule_changes

_ROOTS: Final = ("config", "directory", "settings")
_ABSENT: Final = object()
_ID: Final = 12
"""How many hex digits an id has."""


@dataclass(frozen=True)
class Structure:
    """What differs in the policies, in manifests with their entries, and in configuration, directory and settings."""

    rules: tuple[ContentChange, ...]
    manifests: tuple[ContentChange, ...]
    data: tuple[ContentChange, ...]

    @property
    def changes(self) -> tuple[ContentChange, ...]:
        """All of them."""
        return (*self.rules, *self.manifests, *self.data)

    @cached_property
    def digest(self) -> str:
        """Names all that differs, so that whatever is said of this change holds for no other."""
        return digest(canonical([[change.name, change.old, change.new] for change in self.changes]))

    def id_of(self, *difference: Any) -> str:
        """Return the id of a difference that an explanation names: it holds for this change of bundles alone."""
        # A letter first: in YAML, digits alone are a number.
        return "d" + digest(canonical([self.digest, *difference])).removeprefix("sha256:")[:_ID]

    def loosenings(self) -> dict[str, str]:
        """Return each change that admits more by its id, in words."""
        return {
            self.id_of("structure", change.name, change.what, change.old, change.new): change.line
            for change in self.changes
            if change.direction is Direction.LOOSENS
        }

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON; its form is stable."""
        return asdict(self) | {"loosenings": [{"id": name, "what": what} for name, what in self.loosenings().items()]}


def structure_of(pair: BundlePair) -> Structure:
    """Return what differs in structure between two bundles; errors as of `BundlePair`."""
    return Structure(rule_changes(pair), tuple(pair.manifests.changes()), data_changes(*pair.bundles))


def data_changes(old: Bundle, new: Bundle) -> tuple[ContentChange, ...]:
    """Return what changed in configuration, directory and settings, by path; which bundle it is does not count."""
    return tuple(_changes(_data(old), _data(new), ()))


def _data(bundle: Bundle) -> dict[str, Any]:
    data = {root: bundle.data[root] for root in _ROOTS if root in bundle.data}
    if isinstance(config := data.get("config"), dict):
        data["config"] = {key: value for key, value in config.items() if key != "bundle"}
    return data


def _changes(old: Any, new: Any, path: tuple[str, ...]) -> Iterator[ContentChange]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _changes(old.get(key, _ABSENT), new.get(key, _ABSENT), (*path, key))
        return
    if old is new or (old == new and type(old) is type(new)):
        return
    kind = "added" if old is _ABSENT else "removed" if new is _ABSENT else "changed"
    before, after = (None if value is _ABSENT else value for value in (old, new))
    yield ContentChange(".".join(path), _direction(path, old, new), before, after, kind)


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
    before, after = _members(old), _members(new)
    if before is None or after is None or before == after:
        return Direction.UNCLEAR
    return more if before < after else more.opposite if after < before else Direction.UNCLEAR


def _members(value: Any) -> set[str] | None:
    if value is _ABSENT:
        return set()
    if isinstance(value, dict):
        parts = [_members(item) for item in value.values()]
        return None if None in parts else {member for part in parts if part for member in part}
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return set(value)
    return None
