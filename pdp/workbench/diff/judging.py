"""What two decisions on one call differ in, and which way that goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pdp.decision import Verdict
from pdp.json import canonical
from pdp.manifest.governance_diff import Direction

if TYPE_CHECKING:
    from pdp.decision import Decision

_ORDER: Final = {Verdict.DENY: 0, Verdict.STEP_UP: 1, Verdict.ALLOW: 2}


@dataclass(frozen=True, slots=True)
class Change:
    """What differs between the decision of the old bundle and that of the new one.

    Attributes:
        old, new: the verdicts.
        gone, come: reason codes that only the old decision gives, and that only the new one gives.
        duties_gone, duties_come: obligations of the same verdict, by id; one with other parameters is in both.
        details: codes of both decisions, of the same verdict, whose details differ.
    """

    old: Verdict
    new: Verdict
    gone: tuple[str, ...] = ()
    come: tuple[str, ...] = ()
    duties_gone: tuple[str, ...] = ()
    duties_come: tuple[str, ...] = ()
    details: tuple[str, ...] = ()

    @property
    def direction(self) -> Direction:
        """Which way it goes: nearer to ALLOW loosens, and so does an ALLOW with fewer obligations."""
        if self.old is not self.new:
            return Direction.LOOSENS if _ORDER[self.new] > _ORDER[self.old] else Direction.TIGHTENS
        if self.new is Verdict.ALLOW and bool(self.duties_gone) != bool(self.duties_come):
            return Direction.LOOSENS if self.duties_gone else Direction.TIGHTENS
        return Direction.UNCLEAR

    @property
    def may_loosen(self) -> bool:
        """Whether it counts as admitting more: it loosens, or an ALLOW has an obligation that is not as it was.

        What parameters ask for is the application's to know: `transform` to 900000 instead of 100 may well admit more.
        Only a call that keeps its obligations as they are and gets another one can be told to be stricter.
        """
        if self.direction is not Direction.UNCLEAR:
            return self.direction is Direction.LOOSENS
        return self.new is Verdict.ALLOW and bool(self.duties_gone or self.duties_come)

    @property
    def danger(self) -> int:
        """Where it stands in a report, the most dangerous first, from 0."""
        if self.old is not self.new and self.direction is Direction.LOOSENS:
            return 2 - _ORDER[self.new] + (1 if self.old is Verdict.STEP_UP else 0) + (self.new is Verdict.STEP_UP)
        if self.may_loosen:
            return 3
        if self.direction is Direction.UNCLEAR:
            return 4 + (self.new is Verdict.DENY)
        return 6 + _ORDER[self.new]


def change_of(old: Decision, new: Decision) -> Change | None:
    """Return what differs; None when nothing does. Messages are text for people, and no difference."""
    one, other = set(old.codes), set(new.codes)
    before, after = _duties(old), _duties(new)
    details = {code for code in one & other if _details(old, code) != _details(new, code)}
    if old.verdict is new.verdict and one == other and before == after and not details:
        return None
    same = old.verdict is new.verdict
    return Change(
        old=old.verdict,
        new=new.verdict,
        gone=tuple(sorted(one - other)),
        come=tuple(sorted(other - one)),
        # Where the verdict differs, the obligations of another verdict and what grants say besides are no news.
        duties_gone=tuple(sorted({name for name, _ in before - after})) if same else (),
        duties_come=tuple(sorted({name for name, _ in after - before})) if same else (),
        details=tuple(sorted(details)) if same else (),
    )


def _duties(decision: Decision) -> set[tuple[str, bytes]]:
    return {(each.id, canonical(each.parameters)) for each in decision.obligations}


def _details(decision: Decision, code: str) -> list[bytes]:
    return sorted(canonical(each.details) for each in decision.reasons if each.code == code)
