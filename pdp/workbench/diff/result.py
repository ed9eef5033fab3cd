"""What a comparison of two bundles found, as plain frozen records: every report reads these."""

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from pdp.engine.bundle.file import Bundle
from pdp.manifest.diff import Direction
from pdp.workbench.diff.generated import Extent
from pdp.workbench.diff.groups import Group
from pdp.workbench.diff.review import ReviewItem
from pdp.workbench.diff.structure import Structure

UNCOVERED: Final = (
    "three changes of a call at once, but for what a changed rule asks for and for one that is approved first",
    "attributes that no call has, where a policy computes their names or says them in a helper alone",
    "plans (authz/plan), but for those of scenarios",
    "entries that no loader admits, such as one of an unheard-of tier",
    "what the enforcement point does before and after the decision: schemas, mappings, invariants, execution",
    "data that is given beside a bundle at run time, and a directory that is mistyped as a whole",
)
"""What no generated call shows, for the report."""

_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class KnownCalls:
    """The second layer: how many scenarios, requests of logs and skipped lines there are, and what they show.

    `calls` is how many different calls were decided by both bundles.
    """

    scenarios: int = 0
    logged: int = 0
    skipped: int = 0
    calls: int = 0
    groups: tuple[Group, ...] = ()


@dataclass(frozen=True, slots=True)
class BundleDiff:
    """What differs between two bundles, whose files have these `names`.

    Attributes:
        generated: the differences of generated calls; extent: what these cover.
        not_shown: the changed rules that no call shows, in words.
        review: all of it as a reviewer reads it, a sentence for each cause.
    """

    old: Bundle
    new: Bundle
    names: tuple[str, str]
    structure: Structure
    known: KnownCalls
    generated: tuple[Group, ...]
    extent: Extent
    not_shown: tuple[str, ...]
    review: tuple[ReviewItem, ...] = ()

    @property
    def groups(self) -> tuple[Group, ...]:
        """The differences of both layers of decisions."""
        return (*self.known.groups, *self.generated)

    @property
    def differs(self) -> bool:
        """Whether anything differs that can change a decision."""
        return bool(self.structure.changes or self.groups)

    @property
    def decided(self) -> int:
        """How many calls were decided by both bundles, known and generated ones."""
        return self.known.calls + self.extent.requests

    def fails(self, fail_on: Literal["loosening", "any"] | None) -> bool:
        """Tell whether CI should stop here: on anything that admits more, or may and is not shown, or on anything."""
        loosens = bool(self.loosenings() or self.not_shown or self._contracts())
        return {None: False, "loosening": loosens, "any": self.differs}[fail_on]

    def loosenings(self) -> dict[str, str]:
        """Return every change that admits more, or may, by the id that an explanation names; in words."""
        loosening = (group for group in self.groups if group.change.direction is Direction.LOOSENS)
        return self.structure.loosenings() | {group.id: group.call for group in loosening}

    def unseen(self) -> dict[str, str]:
        """Return where something changed and a loosening would not be seen, by the id that an explanation names.

        Nothing, where nothing differs.
        """
        if not self.differs:
            return {}
        places = [*self.not_shown, *self._contracts()]
        places += [f"{name}: no call was found that is ALLOW or STEP_UP" for name in self.extent.never_allowed]
        places += [f"{name}: a changed rule reads it, and there was no room for it" for name in
                  self.extent.dropped_changed]  # fmt: skip
        if not self.decided:
            places.append("no call was decided: neither a generated one nor one of a scenario or log")
        return {self.structure.id_of("unseen", place): place for place in places}

    def _contracts(self) -> list[str]:
        """The tools of which something changed that a bundle has only a digest of, in words."""
        return [change.line for change in self.structure.manifests if change.name.endswith(": contract")]

    def not_covered(self) -> tuple[str, ...]:
        """Return what the generated calls do not cover, in words."""
        dropped = self.extent.dropped
        if not dropped:
            return UNCOVERED
        shown = ", ".join(dropped[:_SHOWN]) + (", ..." if len(dropped) > _SHOWN else "")
        return (*UNCOVERED, f"{len(dropped)} attributes that there was no room for: {shown}")

    def as_json(self) -> dict[str, Any]:
        """Return the object that `pdp bundle diff --json` prints; its form is stable."""
        old, new = (
            {"file": name, "revision": bundle.revision, "release": bundle.release}
            for bundle, name in zip((self.old, self.new), self.names, strict=True)
        )
        return {
            "old": old,
            "new": new,
            "differs": self.differs,
            "loosens": bool(self.loosenings()),
            "review": [asdict(item) for item in self.review],
            "unseen": [{"id": name, "what": what} for name, what in self.unseen().items()],
            "structure": self.structure.as_json(),
            "known": {
                "scenarios": self.known.scenarios,
                "logged_requests": self.known.logged,
                "log_lines_skipped": self.known.skipped,
                "calls": self.known.calls,
                "groups": [group.as_json() for group in self.known.groups],
            },
            "generated": {
                **asdict(self.extent),
                "not_covered": self.not_covered(),
                "groups": [group.as_json() for group in self.generated],
            },
        }
