"""The gate's lines, and its JUnit XML."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

from pdp.workbench.gate.outcome import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdp.workbench.gate.outcome import Check, ReleaseCheck

MOST: Final = 10
"""How many reasons of a check are printed; `--json` and JUnit have all of them."""

# What XML 1.0 cannot hold, not even as a reference.
_NOT_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def lines(one: Check) -> Iterator[str]:
    """Yield a check's line, and below it why it failed."""
    yield f"{one.status.value:<4}  {one.name:<20}  {one.said}"
    yield from (f"      {reason}" for reason in one.reasons[:MOST])
    if len(one.reasons) > MOST:
        yield f"      and {len(one.reasons) - MOST} more"


def summary(found: ReleaseCheck) -> str:
    """Return the last line."""
    failed = sum(one.status is Status.FAILED for one in found.checks)
    passed = sum(one.status is Status.PASSED for one in found.checks)
    word = "may be released" if found.passed else "must not be released"
    left = len(found.checks) - passed - failed
    return f"release {found.release} {word}: {passed} passed, {failed} failed, {left} skipped"


def junit(found: ReleaseCheck) -> str:
    """Return the gate as JUnit's XML: a test case for each check."""
    counted = {
        "tests": str(len(found.checks)),
        "failures": str(sum(one.status is Status.FAILED for one in found.checks)),
        "skipped": str(sum(one.status is Status.SKIPPED for one in found.checks)),
    }
    root = ET.Element("testsuites", {"name": "pdp release check", **counted})
    suite = ET.SubElement(root, "testsuite", {"name": "pdp release check", "errors": "0", **counted})
    properties = ET.SubElement(suite, "properties")
    for name, value in (("bundle_revision", found.revision), ("release", str(found.release))):
        ET.SubElement(properties, "property", {"name": name, "value": value})
    for one in found.checks:
        case = ET.SubElement(suite, "testcase", {"classname": "pdp.workbench.gate", "name": one.name})
        if one.status is Status.FAILED:
            ET.SubElement(case, "failure", {"message": _text(one.said)}).text = _text("\n".join(one.reasons))
        elif one.status is Status.SKIPPED:
            ET.SubElement(case, "skipped", {"message": _text(one.said)})
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _text(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
