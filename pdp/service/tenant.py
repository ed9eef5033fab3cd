"""What one tenant has, and no other sees: an enforcement point for calls that others run, stores, audit stream."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import TracerProvider

from pdp.approvals.approvals import Approvals
from pdp.audit.chain import KEY_BYTES
from pdp.errors import UsageError
from pdp.execution.telemetry import Telemetry
from pdp.pep import Pep
from pdp.project.file import engine_of_project, manifest_of_project, read_project
from pdp.project.resources import open_stores, stores_of_pep
from pdp.service.authzen.policy import AccessPolicy
from pdp.stores.url import OpenStores

if TYPE_CHECKING:
    from pdp.service.settings import TenantSettings
    from pdp.stores.sql.audit import SqlAudit


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant, opened by `open_tenant`."""

    name: str
    settings: TenantSettings
    pep: Pep
    stores: OpenStores
    access: AccessPolicy
    stream: SqlAudit

    @property
    def approvals(self) -> Approvals:
        """The rules of approvals, over the tenant's store."""
        approvals = self.pep.approvals
        assert approvals is not None  # noqa: S101 - made so below
        return approvals


def open_tenant(
    name: str, settings: TenantSettings, owned: ExitStack, provider: TracerProvider | None = None
) -> Tenant:
    """Open what a tenant has, closed with `owned`. A SQLite file is made or brought up to date.

    UsageError: a file is missing or faulty; BundleError, EngineError, StoreError: what they name cannot be used.
    """
    project = read_project(settings.project)
    if settings.accept_unknown_opa:
        project = project.model_copy(update={"accept_unknown_opa": True})
    if settings.engine is not None or settings.opa_url is not None:
        project = project.model_copy(
            update={"engine": settings.engine or "sidecar", "opa_url": settings.opa_url or project.opa_url}
        )
    manifest = manifest_of_project(settings.project, project)
    stores = open_stores(settings.store, owned)
    key = None if settings.audit_key_file is None else _key(settings.audit_key_file)
    audit = stores.open_audit(key)
    owned.callback(audit.close)
    pep = Pep(
        manifest,
        engine_of_project(project, manifest, owned),
        audit=audit,
        telemetry=None if provider is None else Telemetry(tracer_provider=provider),
        **stores_of_pep(stores),
    )
    access = AccessPolicy(pep, settings.authzen, stores.ledger.key, owned)
    return Tenant(name, settings, pep, stores, access, audit)


def _key(file: Path) -> bytes:
    try:
        key = file.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise UsageError(f"audit_key_file {file}: cannot be read: {error.strerror}", hint="check the path") from None
    if len(key) < KEY_BYTES:
        raise UsageError(
            f"audit_key_file {file}: has less than {KEY_BYTES} bytes", hint="make one with `openssl rand -hex 32`"
        )
    return key
