"""What an application gives its enforcement point, checked when it is given: later it would fail every call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pdp.approvals.approvals import Approvals
from pdp.audit.file import AuditLog
from pdp.documents import nearest, shown_name
from pdp.errors import UsageError
from pdp.patterns.deployment import Deployment

if TYPE_CHECKING:
    from pdp.manifest.effective import EffectiveManifest


def check_options(
    manifest: EffectiveManifest,
    *,
    tools: Any,
    audit: Any,
    approvals: Any,
    keys: Any,
    actions: Any,
    deployment: Any,
) -> None:
    """Check that each option is what it has to be, as the constructor of `Pep` names it; None is always admitted.

    Raises:
        UsageError: the first that is not; a function in `tools` that no tool of the manifest has.
    """
    _check_kind("audit", audit, AuditLog, "pass `FileAudit(Path(...))`, or another AuditLog")
    _check_kind("approvals", approvals, Approvals, "pass `Approvals()`")
    _check_kind("deployment", deployment, Deployment, "pass `Deployment(...)`")
    for name, store in (("keys", keys), ("actions", actions)):
        if store is not None and not isinstance(getattr(store, "blocking", None), bool):
            made = {"keys": "SqlIdempotency", "actions": "SqlActions"}[name]
            raise UsageError(f"{name}: {_kind(store)} is no store of {name}", hint=f"pass one, such as `{made}(store)`")
    _check_tools(manifest, {} if tools is None else tools)


def _check_kind(name: str, value: Any, kind: type, hint: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise UsageError(f"{name}: {_kind(value)} is no {kind.__name__}", hint=hint)


def _check_tools(manifest: EffectiveManifest, tools: Any) -> None:
    if not isinstance(tools, Mapping):
        raise UsageError(f"tools: {_kind(tools)} is no mapping", hint="pass functions by the name of their tool")
    for name, function in tools.items():
        if name not in manifest.tools:
            shown = shown_name(name) if isinstance(name, str) else _kind(name)
            raise UsageError(
                f"tools: {shown} is not a tool of manifest {manifest.version}",
                hint=(nearest(name, manifest.tools) if isinstance(name, str) else None)
                or "name each function as its tool in the manifest",
            )
        if not callable(function):
            raise UsageError(
                f"tools: {shown_name(name)} has {_kind(function)} for its function", hint="pass something to call"
            )


def _kind(value: Any) -> str:
    """What a value is, for a message; not the value, which may be a secret."""
    return f"a value of type {type(value).__name__}"
