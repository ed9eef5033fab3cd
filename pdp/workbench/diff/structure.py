"""What two bundles consist of, and what changed: rules, data path by path, and manifests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.json import canonical, digest
from pdp.manifest.diff import Direction
from pdp.workbench.diff.manifests import ManifestChange, Manifests, manifest_changes
from pdp.workbench.diff.policies import BundleRules, RuleChange, rule_changes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdp.engine.bundle.file import Bundle
    from pdp.manifest.effective import EffectiveManifest

SHOWN: Final = 1000
"""How many changes of data a report shows."""

_ROOTS: Final = ("config", "directory", "settings")
_ABSENT: Final = object()
_ID: Final = 12


@dataclass(frozen=True, slots=True)
class DataChange:
    """One datum that was added, removed or changed.

    Attributes:
        path: as `directory.corpora.hr.markings`.
        kind: `added`, `removed` or `changed`.
        direction: which way it goes, where that is known.
        old, new: plain JSON; None where it is absent.
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
class Structure:
    """What differs in structure.

    Attributes:
        codes_added, codes_removed: reason codes, sorted.
        rules: what changed in the policies.
        data: what changed in configuration, directory and settings.
        manifests: what became of each manifest, those that are the same among them.
    """

    codes_added: tuple[str, ...]
    codes_removed: tuple[str, ...]
    rules: tuple[RuleChange, ...]
    data: tuple[DataChange, ...]
    manifests: tuple[ManifestChange, ...]

    @property
    def differs(self) -> bool:
        """Whether anything differs that can change a decision; texts for people do not."""
        return bool(
            self.data
            or any(rule.kind != "text" for rule in self.rules)
            or any(manifest.kind != "same" for manifest in self.manifests)
        )

    @property
    def digest(self) -> str:
        """Names all that differs, so that whatever is said of this change holds for no other."""
        rules = [[rule.name, rule.digest] for rule in self.rules if rule.kind != "text"]
        data = [[datum.path, datum.kind, datum.old, datum.new] for datum in self.data]
        manifests = [[each.pair.old, each.pair.new] for each in self.manifests if each.kind != "same"]
        return digest(canonical([rules, data, manifests]))

    def id_of(self, *difference: Any) -> str:
        """Return the id of a difference that an explanation names: it holds for this change of bundles alone."""
        return digest(canonical([self.digest, *difference])).removeprefix("sha256:")[:_ID]

    def directions(self) -> frozenset[Direction]:
        """Return which ways the changes go."""
        return frozenset(
            (
                *(rule.direction for rule in self.rules if rule.direction is not None),
                *(datum.direction for datum in self.data),
                *(direction for manifest in self.manifests for direction in manifest.directions()),
            )
        )

    def loosenings(self) -> dict[str, str]:
        """Return each change that admits more by its id, in words."""
        return {self.id_of("structure", *key): what for key, what in self._loosenings()}

    def _loosenings(self) -> Iterator[tuple[tuple[Any, ...], str]]:
        for rule in self.rules:
            if rule.direction is Direction.LOOSENS:
                yield ("rule", rule.kind, rule.name), f"{rule.name}: {rule.what}"
        for datum in self.data:
            if datum.direction is Direction.LOOSENS:
                yield ("data", datum.path), f"{datum.path} {datum.kind}"
        for manifest in self.manifests:
            if manifest.direction is Direction.LOOSENS:
                yield ("manifest", manifest.pair.new), f"manifest {manifest.new_version} added"
            for tool, change in manifest.changes:
                if change.direction is Direction.LOOSENS:
                    key = (manifest.pair.new, tool, change.field, change.what)
                    yield ("governance", *key), f"{tool}: {change.field} {change.what}"

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON; its form is stable."""
        return {
            "codes": {"added": list(self.codes_added), "removed": list(self.codes_removed)},
            "rules": [rule.as_json() for rule in self.rules],
            "data": {"total": len(self.data), "changes": [datum.as_json() for datum in self.data[:SHOWN]]},
            "manifests": [manifest.as_json() for manifest in self.manifests],
            "loosenings": [{"id": name, "what": what} for name, what in self.loosenings().items()],
        }


def structure_of(
    old: BundleRules, new: BundleRules, manifests: Manifests, known: Mapping[str, EffectiveManifest]
) -> Structure:
    """Return what differs in structure.

    Args:
        old: the one bundle with its rules.
        new: the other.
        manifests: theirs.
        known: whole manifests by digest, of files that were named.

    Raises:
        FileFaultsError, UsageError: as of `rule_changes`.
    """
    before, after = ({site.code for site in side.sites if site.code} for side in (old, new))
    return Structure(
        codes_added=tuple(sorted(after - before)),
        codes_removed=tuple(sorted(before - after)),
        rules=rule_changes(old, new),
        data=data_changes(old.bundle, new.bundle),
        manifests=manifest_changes(manifests, known),
    )


def data_changes(old: Bundle, new: Bundle) -> tuple[DataChange, ...]:
    """Return what changed in configuration, directory and settings, by path; which bundle it is does not count."""
    return tuple(_changes(_data(old), _data(new), ()))


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
    before, after = (None if value is _ABSENT else value for value in (old, new))
    yield DataChange(".".join(path), kind, _direction(path, old, new), before, after)


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
    less = Direction.LOOSENS if more is Direction.TIGHTENS else Direction.TIGHTENS
    return more if before < after else less if after < before else Direction.UNCLEAR


def _members(value: Any) -> set[str] | None:
    if value is _ABSENT:
        return set()
    if isinstance(value, dict):
        parts = [_members(each) for each in value.values()]
        return None if None in parts else {member for part in parts if part for member in part}
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return set(value)
    return None
