"""Public names for authors of tools: contracts, errors and pins. Each name is imported when it is first used."""

from typing import TYPE_CHECKING

from pdp import lazy

if TYPE_CHECKING:  # Imported when first used.
    from pdp.contract.invariants import ToolInvariant as ToolInvariant
    from pdp.contract.plan import validate_plan as validate_plan
    from pdp.contract.registry.registry import Registry as Registry
    from pdp.contract.registry.tool_contract import ToolContract as ToolContract
    from pdp.execution.failures import ToolArgumentError as ToolArgumentError
    from pdp.execution.failures import ToolError as ToolError
    from pdp.obligations.handlers import ObligationError as ObligationError
    from pdp.obligations.handlers import ObligationHandler as ObligationHandler
    from pdp.patterns.exceptions import NotFoundError as NotFoundError
    from pdp.patterns.exceptions import OutOfDistributionError as OutOfDistributionError
    from pdp.patterns.exceptions import PermissionDeniedError as PermissionDeniedError
    from pdp.patterns.exceptions import SourceUnavailableError as SourceUnavailableError
    from pdp.patterns.exceptions import StaleReplicaError as StaleReplicaError
    from pdp.patterns.run import Deployment as Deployment
    from pdp.patterns.run import Pin as Pin
    from pdp.patterns.run import pinned as pinned

__getattr__ = lazy(
    __name__,
    {
        "pdp.contract.invariants": ("ToolInvariant",),
        "pdp.contract.plan": ("validate_plan",),
        "pdp.contract.registry.registry": ("Registry",),
        "pdp.contract.registry.tool_contract": ("ToolContract",),
        "pdp.execution.failures": ("ToolArgumentError", "ToolError"),
        "pdp.obligations.handlers": ("ObligationError", "ObligationHandler"),
        "pdp.patterns.exceptions": (
            "NotFoundError",
            "OutOfDistributionError",
            "PermissionDeniedError",
            "SourceUnavailableError",
            "StaleReplicaError",
        ),
        "pdp.patterns.run": ("Deployment", "Pin", "pinned"),
    },
)
