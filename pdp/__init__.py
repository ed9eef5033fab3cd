"""Policy decisions for the tool calls of AI agents: the names that nearly every application uses.

Each name is imported when it is first used, so that `import pdp` is fast. Import from public modules only; all other
modules may change without notice. These are public, beside `pdp` itself:

- pdp.adapters.*: one module for each agent framework, such as `pdp.adapters.langchain`
- pdp.engines: the engines, and the trust in bundles
- pdp.errors: the errors of all layers; `PdpError` is the base class
- pdp.files: functions that read files and records, such as `load_effective` and `verify_chain`
- pdp.loop: `AgentLoop`, and its messages from and to a model
- pdp.testing: the conformance suite for enforcement points
- pdp.tools: contracts, errors and deployments for the code of tools
"""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdp.approvals.approvals import Approvals as Approvals
    from pdp.approvals.people import ApprovalRefusedError as ApprovalRefusedError
    from pdp.audit.chain import MemoryAudit as MemoryAudit
    from pdp.audit.file import FileAudit as FileAudit
    from pdp.client.client import Client as Client
    from pdp.contract.registry.registry import Registry as Registry
    from pdp.contract.registry.tool_contract import ToolContract as ToolContract
    from pdp.decision import Decision as Decision
    from pdp.decision import Verdict as Verdict
    from pdp.engine.bundle.follow import FollowingEngine as FollowingEngine
    from pdp.engine.bundle.trust import BundleTrust as BundleTrust
    from pdp.engine.protocol import Engine as Engine
    from pdp.engine.shadow import ShadowEngine as ShadowEngine
    from pdp.engine.wasm.engine import EmbeddedEngine as EmbeddedEngine
    from pdp.errors import PdpError as PdpError
    from pdp.execution.failures import ToolError as ToolError
    from pdp.execution.telemetry import Telemetry as Telemetry
    from pdp.flow.evaluation import Evaluation as Evaluation
    from pdp.flow.guard import ToolDeniedError as ToolDeniedError
    from pdp.flow.guard import ToolFailedError as ToolFailedError
    from pdp.loop.agent_loop import AgentLoop as AgentLoop
    from pdp.obligations.handlers import ObligationHandler as ObligationHandler
    from pdp.patterns.run import Deployment as Deployment
    from pdp.pep import Pep as Pep
    from pdp.session import Session as Session
    from pdp.stores.approvals import Approval as Approval
    from pdp.stores.sql.database import Database as Database
    from pdp.stores.sql.keys import SqlIdempotency as SqlIdempotency
    from pdp.stores.sql.records import SqlActions as SqlActions
    from pdp.stores.sql.records import SqlApprovals as SqlApprovals

__version__ = "0.2.0"

_NAMES = {
    "pdp.approvals.approvals": ("Approvals",),
    "pdp.approvals.people": ("ApprovalRefusedError",),
    "pdp.audit.chain": ("MemoryAudit",),
    "pdp.audit.file": ("FileAudit",),
    "pdp.client.client": ("Client",),
    "pdp.contract.registry.registry": ("Registry",),
    "pdp.contract.registry.tool_contract": ("ToolContract",),
    "pdp.decision": ("Decision", "Verdict"),
    "pdp.engine.bundle.follow": ("FollowingEngine",),
    "pdp.engine.bundle.trust": ("BundleTrust",),
    "pdp.engine.protocol": ("Engine",),
    "pdp.engine.shadow": ("ShadowEngine",),
    "pdp.engine.wasm.engine": ("EmbeddedEngine",),
    "pdp.errors": ("PdpError",),
    "pdp.flow.evaluation": ("Evaluation",),
    "pdp.execution.failures": ("ToolError",),
    "pdp.execution.telemetry": ("Telemetry",),
    "pdp.flow.guard": ("ToolDeniedError", "ToolFailedError"),
    "pdp.loop.agent_loop": ("AgentLoop",),
    "pdp.obligations.handlers": ("ObligationHandler",),
    "pdp.patterns.run": ("Deployment",),
    "pdp.pep": ("Pep",),
    "pdp.session": ("Session",),
    "pdp.stores.approvals": ("Approval",),
    "pdp.stores.sql.records": ("SqlActions", "SqlApprovals"),
    "pdp.stores.sql.database": ("Database",),
    "pdp.stores.sql.keys": ("SqlIdempotency",),
}


def lazy(module: str, homes: dict[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return a module's `__getattr__`, which imports each name on first use. `homes` has the names by their module."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def named(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    return named


__getattr__ = lazy(__name__, _NAMES)
__all__ = [name for names in _NAMES.values() for name in names]


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
