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
"""Limits of generated calls, as the report with `--verbose` shows them."""

IN_SHORT: Final = (
    "three changes of a call at once, computed names of attributes, and plans that no scenario has",
    "entries that the loader rejects, data beside a bundle, and what is checked before and after a decision",
)
"""The limits in short, as the report shows them."""

FailOn = Literal["wider", "loosening", "not-proved", "any"]
"""The conditions of `pdp bundle diff --fail-on`."""

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
class CausedCall:
    """A call that a change moves. `id` is the difference's id, `only_with` are other changes that are needed for it."""

    id: str
    call: str
    only_with: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReviewItem:
    """A cause of differences. `direction` is its most dangerous effect: `loosens`, `unseen`, `unclear` or `tightens`.

    `call` shows the most dangerous effect, and `calls` has all calls that the change moves, the most dangerous first.
    `where` is `FILE:LINE`. All three may be empty. `text` has the changed lines, with `- ` for the old and `+ ` for the
    new bundle. `ids` are the ids by which a file of explanations names the differences. `proof` is the prover's answer.
    """

    direction: str
    sentence: str
    call: str = ""
    where: str = ""
    text: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    calls: tuple[CausedCall, ...] = ()
    proof: str = ""


@dataclass(frozen=True, slots=True)
class BundleDiff:
    """The differences of two bundles in the files `names`. No decided call shows the changed rules in `not_shown`.

    `unfinished` names the parts of the comparison that an engine did not finish in time. `unproved` is why nothing is
    proved about changed rules, such as a missing extra.
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
    unfinished: tuple[str, ...] = ()
    unproved: str = ""

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of differences in decisions, on known and on generated calls."""
        return (*self.known.groups, *self.generated)

    @property
    def differs(self) -> bool:
        """Whether the bundles differ in any decision, or in rules, manifests or data that may change a decision."""
        return bool(self.structure.effective or self.groups)

    @property
    def decided(self) -> int:
        """The number of known and generated calls that both bundles decided."""
        return self.known.calls + self.extent.requests

    def fails(self, fail_on: FailOn | None) -> bool:
        """Return whether CI fails.

        For `wider`, it fails if more calls are admitted, for `loosening` also if more calls may be admitted and no call
        shows it, for `not-proved` also if that is not proved, and for `any` if the bundles differ.
        """
        wider = bool(self.loosenings() or self.structure.proved("wider") or self.unfinished)
        loosens = wider or bool(self.not_shown or self._contracts())
        harmless = self.structure.proved("equal", "narrower")
        proved = all(
            change.direction is Direction.TIGHTENS or change.name == "manifest" or change.name in harmless
            for change in self.structure.effective
        )
        fails = {None: False, "wider": wider, "loosening": loosens, "not-proved": loosens or not proved}
        return self.differs or bool(self.unfinished) if fail_on == "any" else fails[fail_on]

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

    def not_covered(self, *, verbose: bool = True) -> tuple[str, ...]:
        """Return, as lines of text, what the generated calls do not test; three lines unless `verbose`."""
        dropped, too_large = self.extent.dropped, self.extent.no_conditions
        if not verbose:
            counts = f"attributes beyond the limit of calls: {len(dropped)}, rules without conditions: {len(too_large)}"
            return (*IN_SHORT, f"{counts}; use --verbose to list everything")
        lists = (
            (dropped, "attributes that the limit of calls left out"),
            (too_large, "rules near a change whose conditions OPA did not compute"),
        )
        named = (f"{len(names)} {what}: {', '.join(names[:_SHOWN])}{', ...' * (len(names) > _SHOWN)}"
                 for names, what in lists if names)  # fmt: skip
        return (*UNCOVERED, *named)

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
            "unfinished": self.unfinished,
            "unproved": self.unproved,
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
