"""What one check of the gate came to, and all of them together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class Status(StrEnum):
    """What a check came to."""

    PASSED = "pass"
    FAILED = "fail"
    SKIPPED = "skip"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the gate.

    Attributes:
        name: stable, as `golden-schemas`; `--skip` takes it.
        status: what it came to.
        said: in words what was looked at, or why it was not.
        reasons: of a failure, each with where to look.
    """

    name: str
    status: Status
    said: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReleaseCheck:
    """The whole gate."""

    revision: str
    release: int
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether something passed and nothing failed: a gate without any check lets nothing through."""
        found = {check.status for check in self.checks}
        return Status.PASSED in found and Status.FAILED not in found

    def as_json(self) -> dict[str, Any]:
        """Return the object that `pdp release check --json` prints; its form is stable."""
        return {
            "passed": self.passed,
            "revision": self.revision,
            "release": self.release,
            "checks": [
                {"name": one.name, "status": one.status.value, "said": one.said, "reasons": list(one.reasons)}
                for one in self.checks
            ],
        }


def check(name: str, said: str, reasons: Sequence[str]) -> Check:
    """Return a check that failed for these reasons, or passed without any."""
    return Check(name, Status.FAILED if reasons else Status.PASSED, said, tuple(reasons))


def skipped(name: str, why: str) -> Check:
    """Return a check that was not made."""
    return Check(name, Status.SKIPPED, why)
