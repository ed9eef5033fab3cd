"""The newest release of the policies that has decided here: an older one must not decide after it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pdp.decision import Verdict

if TYPE_CHECKING:
    from pdp.decision import Decision


class NewestRelease:
    """What was seen so far. Safe to share between threads and enforcement points."""

    def __init__(self) -> None:
        self._release = 0
        self._lock = threading.Lock()

    def is_stale(self, decision: Decision) -> bool:
        """Return whether a later release has decided before; otherwise this one is the newest seen."""
        # A policy that names no release counts as older than any; a failure that no policy took part in is none.
        release = decision.release or 0
        if release == self._release or (decision.bundle_revision is None and decision.verdict is Verdict.DENY):
            return False
        with self._lock:
            self._release = max(self._release, release)
            return release < self._release
