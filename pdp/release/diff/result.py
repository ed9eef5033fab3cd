"""What a comparison of two bundles came to, as plain frozen records: every report reads these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from pdp.manifest.governance_diff import Direction
from pdp.release.diff.grid.cases import Extent

if TYPE_CHECKING:
    from pdp.engine.bundle_file import Bundle
    from pdp.release.diff.groups import Group
    from pdp.release.diff.structure import Structure

UNCOVERED: Final = (
    "three departures at once, but for a call that is approved first",
    "attributes that a policy reads by a name that it works out, and constants that it works out",
    "plans (authz/plan), but for those of scenarios",
    "what the enforcement point does before and after the decision: schemas, mappings, invariants, execution",
    "data that is given beside a bundle at run time, and a directory that is mistyped as a whole",
)
"""What no grid tells, for the report."""

FailOn = Literal["loosening", "any"]


@dataclass(frozen=True, slots=True)
class Known:
    """The second layer.

    Attributes:
        scenarios: how many scenarios there are; logged: how many requests of logs; skipped: log lines passed over.
        calls: how many calls were decided by both bundles.
        groups: what is decided differently.
    """

    scenarios: int = 0
    logged: int = 0
    skipped: int = 0
    calls: int = 0
    groups: tuple[Group, ...] = ()


@dataclass(frozen=True, slots=True)
class BundleDiff:
    """What differs between two bundles.

    Attributes:
        old, new: the bundles; names: of their files.
        structure: the first layer.
        known: the second.
        grid: the third; extent: what it covers.
    """

    old: Bundle
    new: Bundle
    names: tuple[str, str]
    structure: Structure
    known: Known
    grid: tuple[Group, ...]
    extent: Extent = field(default_factory=Extent)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The differences of both layers of decisions."""
        return (*self.known.groups, *self.grid)

    @property
    def differs(self) -> bool:
        """Whether anything differs that can change a decision."""
        return bool(self.structure.differs or self.groups)

    @property
    def loosens(self) -> bool:
        """Whether anything admits more."""
        return Direction.LOOSENS in self.structure.directions() or any(
            one.direction is Direction.LOOSENS for one in self.groups
        )

    def fails(self, fail_on: FailOn | None) -> bool:
        """Tell whether CI should stop here: on anything that admits more, or on anything at all."""
        return {None: False, "loosening": self.loosens, "any": self.differs}[fail_on]

    def loosenings(self) -> dict[str, str]:
        """Return every change that admits more, by the id that an explanation names; in words."""
        found = {one.id: one.what for one in self.structure.loosenings()}
        return found | {one.id: one.title for one in self.groups if one.direction is Direction.LOOSENS}

    def as_json(self) -> dict[str, Any]:
        """Return the object that `pdp bundle diff --json` prints; its form is stable."""
        return {
            "old": _bundle_json(self.old, self.names[0]),
            "new": _bundle_json(self.new, self.names[1]),
            "differs": self.differs,
            "loosens": self.loosens,
            "structure": self.structure.as_json(),
            "known": {
                "scenarios": self.known.scenarios,
                "logged_requests": self.known.logged,
                "log_lines_skipped": self.known.skipped,
                "calls": self.known.calls,
                "groups": [group.as_json() for group in self.known.groups],
            },
            "grid": {
                "requests": self.extent.requests,
                "single_departures": self.extent.single,
                "pairs": self.extent.pairs,
                "pairs_possible": self.extent.pairs_possible,
                "cut": self.extent.cut,
                "hostile": self.extent.hostile,
                "tools": self.extent.tools,
                "made_up_entries": self.extent.probes,
                "axes": dict(self.extent.axes),
                "never_allowed": list(self.extent.unsettled),
                "not_covered": list(UNCOVERED),
                "groups": [group.as_json() for group in self.grid],
            },
        }


def _bundle_json(bundle: Bundle, name: str) -> dict[str, Any]:
    return {"file": name, "revision": bundle.revision, "release": bundle.release}
