"""What a grid is made for, and what it covers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdp.workbench.diff.grid.bases import Entry


@dataclass(frozen=True, slots=True)
class Subject:
    """A tool that the grid is made for.

    Attributes:
        entry: the tool.
        known_tool: whether it is one of the bundles' manifests, and not made up.
        pairs, hostile, brief: as of `Probe`.
    """

    entry: Entry
    known_tool: bool
    pairs: bool = True
    hostile: bool = True
    brief: bool = False


@dataclass(slots=True)
class Extent:
    """What a grid covers, for the report.

    Attributes:
        tools: how many of the bundles' tools; probes: how many entries that were made up.
        single: calls with at most one departure; pairs, hostile: calls with two, and with mistyped parts.
        pairs_possible: how many pairs there are; some come to equal requests, which are asked once.
        cut: whether there was no room for all of them.
        axes: the matters in which calls depart, with how many values there are at most.
        never_allowed: tools of which no call was found that is ALLOW or STEP_UP.
        dropped: attributes that policies read, and that there was no room for; dropped_changed: those of modules that
            differ between the bundles.
    """

    tools: int = 0
    probes: int = 0
    single: int = 0
    pairs: int = 0
    hostile: int = 0
    pairs_possible: int = 0
    cut: bool = False
    axes: dict[str, int] = field(default_factory=dict)
    never_allowed: list[str] = field(default_factory=list)
    dropped: tuple[str, ...] = ()
    dropped_changed: tuple[str, ...] = ()

    @property
    def requests(self) -> int:
        """How many calls there are."""
        return self.single + self.pairs + self.hostile

    def __str__(self) -> str:
        return (
            f"{self.requests} requests for {self.tools} tools of the bundles and {self.probes} generated entries of "
            "every tier, effect class and pattern"
        )

    def lines(self) -> tuple[str, ...]:
        """Return what is covered, in words."""
        whole = f"{self.pairs} of" if self.cut else "all"
        covered = (
            f"covered: {self.single} with at most one variant of a call that has all it needs; {whole} "
            f"{self.pairs_possible} pairs of variants ({self.pairs} different requests); {self.hostile} with "
            "something mistyped, missing or exchanged"
        )
        axes = ", ".join(f"{name} ({count})" for name, count in self.axes.items())
        return covered, f"variants, with the number of values: {axes}"

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "requests": self.requests,
            "single": self.single,
            "pairs": self.pairs,
            "pairs_possible": self.pairs_possible,
            "cut": self.cut,
            "malformed": self.hostile,
            "tools": self.tools,
            "generated_entries": self.probes,
            "dimensions": dict(self.axes),
            "never_allowed": list(self.never_allowed),
            "attributes_dropped": list(self.dropped),
        }
