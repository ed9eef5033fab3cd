"""What engines do with bundles, and its way into the audit stream."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from pdp.audit.event import recordable
from pdp.clock import to_milliseconds
from pdp.json import canonical

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdp.audit.chain import AuditLog


@dataclass(frozen=True, slots=True)
class BundleEvent:
    """Something that the audit should know.

    Attributes:
        type: a bundle is decided by from now on, was refused, or is an older one taken by the operator's word.
        revision: of the bundle; None where it was refused, since nothing that it says is sure.
        release: likewise.
        digest: of the file.
        previous_release: what was decided by before, or None.
        error_code: why it was refused, or None.
        message: likewise.
    """

    type: Literal["bundle.loaded", "bundle.refused", "bundle.rollback"]
    revision: str | None = None
    release: int | None = None
    digest: str | None = None
    previous_release: int | None = None
    error_code: str | None = None
    message: str | None = None


def audited(audit: AuditLog, *, clock: Callable[[], float] = time.time) -> Callable[[BundleEvent], None]:
    """Return a report for `BundleTrust` that records every event.

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
