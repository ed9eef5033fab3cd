"""What the gate found: each check, all of them together, as lines and as JUnit's XML."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST: Final = 10
"""How many reasons of a check are printed; `--json` and JUnit have all of them."""

# What XML 1.0 cannot hold, not even as a reference.
_NOT_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class CheckStatus(StrEnum):
    """The outcome of a check."""

    PASSED = "pass"
    FAILED = "fail"
    SKIPPED = "skip"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the gate.

    Attributes:
        name: stable, as `golden-schemas`; `--skip` takes it.
        status: its outcome.
        summary: in words what was checked, or why it was not.
        reasons: of a failure, each with where to look.
    """

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
        """Whether something passed and nothing failed: a gate without any check lets nothing through."""
        found = {check.status for check in self.checks}
        return CheckStatus.PASSED in found and CheckStatus.FAILED not in found

    def as_json(self) -> dict[str, Any]:
        """Return the object that `pdp release check --json` prints; its form is stable."""
        return {
            "passed": self.passed,
            "revision": self.revision,
            "release": self.release,
            "checks": [
                {"name": one.name, "status": one.status.value, "summary": one.summary, "reasons": list(one.reasons)}
                for one in self.checks
            ],
        }


def check(name: str, summary: str, reasons: Sequence[str]) -> Check:
    """Return a check that failed for these reasons, or passed without any."""
    return Check(name, CheckStatus.FAILED if reasons else CheckStatus.PASSED, summary, tuple(reasons))


def skipped(name: str, why: str) -> Check:
    """Return a check that was not made."""
    return Check(name, CheckStatus.SKIPPED, why)


def lines(done: Check) -> Iterator[str]:
    """Yield a check's line, and below it why it failed."""
    yield f"{done.status.value:<4}  {done.name:<20}  {done.summary}"
    yield from (f"      {reason}" for reason in done.reasons[:MOST])
    if len(done.reasons) > MOST:
        yield f"      and {len(done.reasons) - MOST} more"


def summary(found: ReleaseCheck) -> str:
    """Return the last line."""
    failed = sum(one.status is CheckStatus.FAILED for one in found.checks)
    passed = sum(one.status is CheckStatus.PASSED for one in found.checks)
    word = "may be released" if found.passed else "must not be released"
    left = len(found.checks) - passed - failed
    return f"release {found.release} {word}: {passed} passed, {failed} failed, {left} skipped"


def junit(found: ReleaseCheck) -> str:
    """Return the gate as JUnit's XML: a test case for each check."""
    counted = {
        "tests": str(len(found.checks)),
        "failures": str(sum(one.status is CheckStatus.FAILED for one in found.checks)),
        "skipped": str(sum(one.status is CheckStatus.SKIPPED for one in found.checks)),
    }
    root = ET.Element("testsuites", {"name": "pdp release check", **counted})
    suite = ET.SubElement(root, "testsuite", {"name": "pdp release check", "errors": "0", **counted})
    properties = ET.SubElement(suite, "properties")
    for name, value in (("bundle_revision", found.revision), ("release", str(found.release))):
        ET.SubElement(properties, "property", {"name": name, "value": value})
    for one in found.checks:
        case = ET.SubElement(suite, "testcase", {"classname": "pdp.workbench.gate", "name": one.name})
        if one.status is CheckStatus.FAILED:
            ET.SubElement(case, "failure", {"message": _text(one.summary)}).text = _text("\n".join(one.reasons))
        elif one.status is CheckStatus.SKIPPED:
            ET.SubElement(case, "skipped", {"message": _text(one.summary)})
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _text(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
