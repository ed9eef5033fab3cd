"""What the gate found: each check, and all of them together."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST: Final = 10
"""How many reasons of a check are printed; `--json` has all of them."""


class CheckStatus(StrEnum):
    """The outcome of a check."""

    PASSED = "pass"
    FAILED = "fail"
    SKIPPED = "skip"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the gate: what was checked, or why it was not; of a failure the reasons, each with where to look."""

    name: str
    status: CheckStatus
    summary: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReleaseCheck:
    """The whole gate."""

    revision: str
    release: int
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed, and the bundle's own scenarios passed: without them nothing shows what it decides."""
        statuses = {check.name: check.status for check in self.checks}
        return statuses["scenarios"] is CheckStatus.PASSED and CheckStatus.FAILED not in statuses.values()

    def as_json(self) -> dict[str, Any]:
        """Return the object that `pdp release check --json` prints; its form is stable."""
        return {"passed": self.passed, **asdict(self)}


def lines(done: Check) -> Iterator[str]:
    """Yield a check's line, and below it why it failed."""
    yield f"{done.status.value:<4}  {done.name:<20}  {done.summary}"
    yield from (f"      {reason}" for reason in done.reasons[:MOST])
    if len(done.reasons) > MOST:
        yield f"      and {len(done.reasons) - MOST} more"


def summary(result: ReleaseCheck) -> str:
    """Return the last line, which names what was not checked."""
    statuses = [check.status for check in result.checks]
    names = ", ".join(check.name for check in result.checks if check.status is CheckStatus.SKIPPED)
    word = "may be released" if result.passed else "must not be released"
    passed, failed, skipped = map(statuses.count, CheckStatus)
    return (
        f"release {result.release} {word}: {passed} passed, {failed} failed, {skipped} skipped{names and f': {names}'}"
    )
