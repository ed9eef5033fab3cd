"""What engines do with bundles, as events of the audit stream."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from pdp.audit.file import recordable
from pdp.clock import to_milliseconds
from pdp.json import canonical

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdp.audit.file import AuditLog
    from pdp.engine.bundle.trust import BundleEvent


def audited(audit: AuditLog, *, clock: Callable[[], float] = time.time) -> Callable[[BundleEvent], None]:
    """Return a report for `BundleTrust` that records every event: `bundle.loaded`, `bundle.refused`, `bundle.rollback`.

    An event has the bundle's revision, the code of a refusal, and as `arguments_digest` the keyed digest of the whole
    event, release numbers among it. What it raises (`AuditError`) keeps an engine from going back to an older bundle.
    """

    def report(event: BundleEvent) -> None:
        audit.append(
            {
                "time": to_milliseconds(clock()),
                "type": event.type,
                "arguments_digest": audit.digest(canonical(asdict(event))),
                "bundle_revision": recordable(event.revision),
                "outcome": "failed" if event.type == "bundle.refused" else "succeeded",
                "error_code": event.error_code,
            }
        )

    return report
