"""The result of comparing two bundles, as frozen dataclasses for reports."""

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from pdp.engine.bundle.file import Bundle
from pdp.manifest.diff import Direction
from pdp.workbench.diff.generated import Extent
from pdp.workbench.diff.groups import Group
from pdp.workbench.diff.structure import Structure

UNCOVERED: Final = (
    "three changes of a call at once, except for conditions of a changed rule and for approved calls",
    "attributes that no call has, if a policy computes their names or names them only in a helper",
    "plans (authz/plan), except those of scenarios",
    "entries that the loader rejects, such as an entry with an unknown tier",
    "steps of the enforcement point before and after the decision: schemas, mappings, invariants, execution",
    "data that is passed beside a bundle at run time, and a directory of a wrong type",
)
"""What generated calls do not test, as shown in the report."""

_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class KnownCalls:
    """The groups of differences on known calls, and counts of scenarios, logged requests, skipped lines and calls."""

    scenarios: int = 0
    logged: int = 0
    skipped: int = 0
    calls: int = 0
    groups: tuple[Group, ...] = ()


@dataclass(frozen=True, slots=True)
class ReviewItem:
    """A cause of differences. `direction` is its most dangerous effect: `loosens`, `unseen`, `unclear` or `tightens`.

    `call` shows the effect, and `where` is `FILE:LINE`; both may be empty. `text` has the changed lines, with `- ` for
    the old and `+ ` for the new bundle. `ids` are the ids by which a file of explanations names the differences.
    """

    direction: str
    sentence: str
    call: str = ""
    where: str = ""
    text: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BundleDiff:
    """The differences of two bundles in the files `names`. No decided call shows the changed rules in `not_shown`."""

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
        """The groups of differences in decisions, on known and on generated calls."""
        return (*self.known.groups, *self.generated)

    @property
    def differs(self) -> bool:
        """Whether the bundles differ in rules, manifests, data or any decision."""
        return bool(self.structure.changes or self.groups)

    @property
    def decided(self) -> int:
        """The number of known and generated calls that both bundles decided."""
        return self.known.calls + self.extent.requests

    def fails(self, fail_on: Literal["loosening", "any"] | None) -> bool:
        """Return whether CI fails: for `loosening`, if more calls may be admitted; for `any`, if the bundles differ."""
        loosens = bool(self.loosenings() or self.not_shown or self._contracts())
        return {None: False, "loosening": loosens, "any": self.differs}[fail_on]

    def loosenings(self) -> dict[str, str]:
        """Return the text of every change that admits more calls, by the id of the difference."""
        loosening = (group for group in self.groups if group.change.direction is Direction.LOOSENS)
        return self.structure.loosenings() | {group.id: group.call for group in loosening}

    def unseen(self) -> dict[str, str]:
        """Return, by id, the text of everything that no decided call shows, because it may hide a loosening."""
        if not self.differs:
            return {}
        places = [*self.not_shown, *self._contracts()]
        places += [f"{name}: no call was found that is ALLOW or STEP_UP" for name in self.extent.never_allowed]
        places += [f"{name}: a changed rule reads this field, but the limit of calls omits it" for name in
                  self.extent.dropped_changed]  # fmt: skip
        if not self.decided:
            places.append("no call was decided, neither known nor generated")
        return {self.structure.id_of("unseen", place): place for place in places}

    def _contracts(self) -> list[str]:
        return [change.line for change in self.structure.manifests if change.name.endswith(": contract")]

    def not_covered(self) -> tuple[str, ...]:
        """Return, as text, what the generated calls do not test."""
        dropped = self.extent.dropped
        if not dropped:
            return UNCOVERED
        shown = ", ".join(dropped[:_SHOWN]) + (", ..." if len(dropped) > _SHOWN else "")
        return (*UNCOVERED, f"{len(dropped)} attributes that the limit of calls left out: {shown}")

    def as_json(self) -> dict[str, Any]:
        """Return the diff as it appears in the JSON of `pdp bundle diff --json`, which is a stable interface."""
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
