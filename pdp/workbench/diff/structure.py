"""The first layer: what two bundles consist of, and what came, went or changed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.json import canonical
from pdp.manifest.governance_diff import Direction
from pdp.workbench.diff.data_structure import DataChanges, data_changes
from pdp.workbench.diff.manifest_structure import ManifestChange, manifest_changes
from pdp.workbench.diff.policy_structure import NamedBundle, RuleChange, rule_changes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdp.manifest.effective import EffectiveManifest
    from pdp.workbench.diff.pairing import Pair

_ID: Final = 12


@dataclass(frozen=True, slots=True)
class Loosening:
    """One change of the structure that admits more, for whoever has to explain it; `id` is stable."""

    id: str
    what: str


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
    data: DataChanges
    manifests: tuple[ManifestChange, ...]

    @property
    def differs(self) -> bool:
        """Whether anything differs that can change a decision; texts for people do not."""
        return bool(
            self.data.total
            or any(one.kind != "text" for one in self.rules)
            or any(one.kind != "same" for one in self.manifests)
        )

    def directions(self) -> frozenset[Direction]:
        """Return which ways the changes go."""
        return frozenset(
            (
                *(one.direction for one in self.rules if one.direction is not None),
                *(one.direction for one in self.data.shown),
                *(direction for one in self.manifests for direction in one.directions()),
            )
        )

    def loosenings(self) -> tuple[Loosening, ...]:
        """Return each change that admits more."""
        return tuple(
            Loosening(hashlib.sha256(canonical(key)).hexdigest()[:_ID], what) for key, what in self._loosening()
        )

    def _loosening(self) -> Iterator[tuple[Any, str]]:
        for rule in self.rules:
            if rule.direction is Direction.LOOSENS:
                yield ["rule", rule.kind, rule.name], f"{rule.name}: {rule.what}"
        for datum in self.data.shown:
            if datum.direction is Direction.LOOSENS:
                yield ["data", datum.path, datum.old, datum.new], f"{datum.path} {datum.kind}"
        for manifest in self.manifests:
            if manifest.direction is Direction.LOOSENS:
                yield ["manifest", manifest.new_digest], f"manifest {manifest.new_version} added"
            for tool, change in manifest.changes:
                if change.direction is Direction.LOOSENS:
                    key = ["governance", tool, change.field, change.old, change.new, change.what]
                    yield key, f"{tool}: {change.field} {change.what}"

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON; its form is stable."""
        return {
            "codes": {"added": list(self.codes_added), "removed": list(self.codes_removed)},
            "rules": [one.as_json() for one in self.rules],
            "data": {"total": self.data.total, "changes": [one.as_json() for one in self.data.shown]},
            "manifests": [one.as_json() for one in self.manifests],
            "loosenings": [{"id": one.id, "what": one.what} for one in self.loosenings()],
        }


def structure_of(
    one: NamedBundle,
    other: NamedBundle,
    pairs: Sequence[Pair],
    known: Mapping[str, EffectiveManifest],
) -> Structure:
    """Return what differs in structure.

    Args:
        one: the old bundle.
        other: the new one.
        pairs: which manifest became which.
        known: whole manifests by digest, of files that were named.
    """
    before, after = ({site.code for site in each.sites if site.code} for each in (one, other))
    old, new = one.bundle, other.bundle
    return Structure(
        codes_added=tuple(sorted(after - before)),
        codes_removed=tuple(sorted(before - after)),
        rules=rule_changes(one, other),
        data=data_changes(old, new),
        manifests=manifest_changes(pairs, old.data.get("manifests", {}), new.data.get("manifests", {}), known),
    )
