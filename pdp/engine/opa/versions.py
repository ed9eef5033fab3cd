"""Which versions of OPA may decide. The other versions omit rules from decisions, or can be crashed by a request.

Sources: OPA's change log (1.20.1, 1.22.1, 1.22.4), and its rule index: 1.21.1 to 1.21.4 have the fault of 1.21.0.
"""

from contextlib import suppress
from functools import lru_cache
from typing import Final

from semver import Version

OLDEST_GOOD: Final = "1.22.4"  # the oldest version that may decide; later ones may too, unless `_FAULTS` lists them

# For each fault: the first version with it, the first version without it, and its description.
_FAULTS: Final = (
    ("0.0.0-0", "1.21.0", "is older than the versions that the policies are tested with"),
    ("1.21.0-0", "1.22.1", 'loses rules, including denies: its `input.x in {"a", input.y}` does not hold for input.y'),
    ("1.22.1-0", OLDEST_GOOD, "has an HTTP server that a request can crash (CVE-2026-97054)"),
)
_TAKE: Final = f"use OPA {OLDEST_GOOD} or later"


@lru_cache(64)
def version_fault(version: str | None, *, accept_unknown: bool = False) -> str | None:
    """Return why an OPA of this version may not decide and which version to use, or None for an allowed version.

    The text is the end of a sentence that begins with the OPA's name. Missing, malformed and development versions are
    unknown, and allowed only with `accept_unknown`.
    """
    is_release = False
    with suppress(ValueError):
        known = Version.parse(version or "")
        for first, fixed, fault in _FAULTS:
            if Version.parse(first) <= known < Version.parse(fixed):
                return f"is version {version}, which {fault}: {_TAKE}"
        is_release = known.prerelease is None
    if is_release or accept_unknown:
        return None
    says = f"reports version {version[:60]!r}, which is not a release" if version else "does not report its version"
    return f"{says}: {_TAKE}, or set accept_unknown_opa"
