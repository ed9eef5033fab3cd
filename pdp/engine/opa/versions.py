"""Which versions of OPA may decide. The others lose rules, or can be stopped by a request.

Sources: OPA's change log (1.20.1, 1.22.1, 1.22.4), and its rule index: 1.21.1 to 1.21.4 have the fault of 1.21.0.
"""

from contextlib import suppress
from functools import lru_cache
from typing import Final

from semver import Version

OLDEST_GOOD: Final = "1.22.4"
"""The oldest version that may decide; each later release may, until it is found to be bad."""

# The first version that has the fault, the first one without it, and the fault.
_FAULTS: Final = (
    ("0.0.0-0", "1.21.0", "is older than the versions that the policies are tested with"),
    ("1.21.0-0", "1.22.1", 'loses rules, denies among them: its `input.x in {"a", input.y}` does not hold for input.y'),
    ("1.22.1-0", OLDEST_GOOD, "has an HTTP server that a request can crash (CVE-2026-97054)"),
)
_TAKE: Final = f"take OPA {OLDEST_GOOD} or later"


@lru_cache(64)
def version_fault(version: str | None, *, accept_unknown: bool = False) -> str | None:
    """Return why an OPA of this version may not decide and which one to take, to go on from its name; None: it may.

    No version, a development build and text that is no version are unknown; `accept_unknown` lets them decide.
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
    says = f"says that it is version {version[:60]!r}, which is no release" if version else "does not say its version"
    return f"{says}: {_TAKE}, or set accept_unknown_opa"
