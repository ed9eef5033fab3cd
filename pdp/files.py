"""Public names for reading manifests, audit streams and records. Each name is imported when it is first used."""

from typing import TYPE_CHECKING

from pdp import lazy

if TYPE_CHECKING:  # Imported when first used.
    from pdp.approvals.sentence import sentence as sentence
    from pdp.audit.requests import FileRequests as FileRequests
    from pdp.audit.verify import verify_chain as verify_chain
    from pdp.hooks.home import default_home as default_home
    from pdp.hooks.home import open_policy as open_policy
    from pdp.ledger.words import origins as origins
    from pdp.manifest.load import load_effective as load_effective
    from pdp.manifest.versions import manifest_diff as manifest_diff
    from pdp.stores.sql.audit import SqlAudit as SqlAudit

__getattr__ = lazy(
    __name__,
    {
        "pdp.approvals.sentence": ("sentence",),
        "pdp.audit.requests": ("FileRequests",),
        "pdp.audit.verify": ("verify_chain",),
        "pdp.hooks.home": ("default_home", "open_policy"),
        "pdp.ledger.words": ("origins",),
        "pdp.manifest.versions": ("manifest_diff",),
        "pdp.manifest.load": ("load_effective",),
        "pdp.stores.sql.audit": ("SqlAudit",),
    },
)
