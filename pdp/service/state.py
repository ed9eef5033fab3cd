"""The state of one process, which all routes share: tenants with their stores and engines, readiness, limits."""

import asyncio
import logging
import time
from collections import OrderedDict
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from opentelemetry.trace import TracerProvider
from starlette.requests import Request

from pdp.approvals.approvals import Approvals
from pdp.audit.chain import KEY_BYTES
from pdp.errors import AnswerInvalidError, PdpError, UsageError
from pdp.execution.telemetry import SCOPE, Telemetry
from pdp.pep import Pep
from pdp.project.file import engine_of_project, manifest_of_project, read_project
from pdp.project.resources import open_stores, stores_of_pep
from pdp.service.approvals.feed import ApprovalFeed
from pdp.service.authzen.policy import AccessPolicy
from pdp.service.errors import HttpError
from pdp.service.security.oidc import OidcAuthenticator
from pdp.service.security.principal import Authenticator, Principal, Scope
from pdp.service.security.tokens import COOKIE, open_tokens
from pdp.service.settings import ServiceSettings, TenantSettings
from pdp.service.telemetry import tracer_provider
from pdp.stores.sql.audit import SqlAudit
from pdp.stores.url import OpenStores

_SECONDS: Final = 2.0  # in which engine and store have to answer
_WHY: Final = {"store.schema": "its tables are of another release", "timeout": f"no answer within {_SECONDS:g} s"}
_MOST: Final = 100_000  # tokens that are remembered; of more, who has asked least recently begins anew
_log = logging.getLogger("pdp.service")


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


class Caller(NamedTuple):
    """The holder of the request's token, and the tenant that the token belongs to."""

    principal: Principal
    tenant: Tenant

    def may(self, *scopes: Scope) -> bool:
        """Return whether the token has all of these scopes."""
        return self.principal.scopes.issuperset(scopes)


class Readiness:
    """Whether all tenants' engines and stores can be used, asked at most once a second, however many want to know.

    A tenant's part is shown where the service has no other: nobody sees what another tenant has. What hangs is not
    asked again before it ends.
    """

    def __init__(self, tenants: dict[str, Tenant]) -> None:
        self._tenants = list(tenants.values())
        self._turn = asyncio.Lock()
        self._until = 0.0
        self._answer: dict[str, Any] = {}
        self._since: dict[tuple[str, str], float] = {}
        self._asked: dict[tuple[str, str], asyncio.Task[dict[str, Any]]] = {}

    async def answer(self) -> dict[str, Any]:
        """Return `status`, `ready` or `unready`; and of a single tenant `engine`, and `store` with the audit stream."""
        async with self._turn:
            if time.monotonic() >= self._until:
                parts = await asyncio.gather(*map(self._part, self._tenants))
                ready = all(state["status"] == "ready" for part in parts for state in part.values())
                shown = parts[0] if len(parts) == 1 else {}
                self._answer = {"status": "ready" if ready else "unready", **shown}
                self._until = time.monotonic() + 1
        return self._answer

    async def _part(self, tenant: Tenant) -> dict[str, dict[str, Any]]:
        checks = {"engine": self._engine, "store": self._store}
        for name, check in checks.items():
            if (tenant.name, name) not in self._asked:
                self._asked[tenant.name, name] = asyncio.create_task(check(tenant))
        asked = {name: self._asked[tenant.name, name] for name in checks}
        done, _ = await asyncio.wait(asked.values(), timeout=_SECONDS)
        for name, task in asked.items():
            if task in done:
                del self._asked[tenant.name, name]
        late = _WHY["timeout"]
        return {
            name: task.result() if task in done else {"status": "unready", "code": f"{name}.timeout", "reason": late}
            for name, task in asked.items()
        }

    async def _store(self, tenant: Tenant) -> dict[str, Any]:
        try:
            return {"status": "ready", "revision": await asyncio.to_thread(tenant.stores.check)}
        except PdpError as error:
            _log.error("tenant %s: not ready: %s", tenant.name, error)
            why = _WHY.get(error.code, "it cannot be written to; the log says why")
            return {"status": "unready", "code": error.code, "reason": why}

    async def _engine(self, tenant: Tenant) -> dict[str, Any]:
        # No request at all: the policy denies it, and says which one it is.
        engine = tenant.pep.engine
        decision, healthy = await asyncio.gather(engine.adecide_body(b"{}"), engine.ahealthy())
        if decision.bundle_revision and healthy:
            since = self._since.setdefault((tenant.name, decision.bundle_revision), time.time())
            return {
                "status": "ready",
                "name": engine.name,
                "bundle_revision": decision.bundle_revision,
                "release": decision.release,
                "age_seconds": round(time.time() - since),
            }
        reason = next(iter(decision.reasons), None)
        code, logged = (reason.code, reason.text) if reason else ("engine.not_ready", "the engine gives no reason")
        why = "it gives no decision; the log says why"
        if not healthy and (decision.bundle_revision or decision.codes == (AnswerInvalidError.code,)):
            code = "engine.not_ready"
            why = logged = "OPA's bundles are not activated, or a plugin is not up; see: pdp opa status"
        _log.error("tenant %s: not ready: %s", tenant.name, logged)
        return {"status": "unready", "name": engine.name, "code": code, "reason": why}


class RateLimiter:
    """A token bucket for each principal, in this process: `rate` requests a second, `burst` of them at once."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def admit(self, principal: Principal) -> None:
        """Count one request; HttpError 429 where there have been too many."""
        now = time.monotonic()
        left, since = self._buckets.get(principal.id, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._rate)
        if left < 1:
            wait = f"{max(1, round((1 - left) / self._rate))}"
            raise HttpError(429, "too many requests by this token", hint="slow down", headers={"Retry-After": wait})
        self._buckets[principal.id] = (left - 1, now)
        self._buckets.move_to_end(principal.id)
        if len(self._buckets) > _MOST:
            self._buckets.popitem(last=False)


class Service:
    """The state that all requests share. Opening it opens every tenant; `owned` closes them."""

    def __init__(self, settings: ServiceSettings, owned: ExitStack) -> None:
        self.settings = settings
        provider = tracer_provider(settings, owned)
        self.tracer = None if provider is None else provider.get_tracer(SCOPE)
        self.tenants: dict[str, Tenant] = {
            name: open_tenant(name, tenant, owned, provider) for name, tenant in settings.tenants.items()
        }
        _check_apart(self.tenants)
        self.readiness = Readiness(self.tenants)
        self.ending = asyncio.Event()  # set when the process is told to end: what waits answers now
        self.feeds = {
            name: ApprovalFeed(tenant.stream, settings.limits.waiting, self.ending)
            for name, tenant in self.tenants.items()
        }
        self.limiter = RateLimiter(settings.limits.requests_per_second, settings.limits.burst)
        self.tokens = open_tokens(settings, owned)
        self.authenticators: list[Authenticator] = [self.tokens, *map(OidcAuthenticator, settings.oidc)]

    async def authenticated(self, request: Request) -> Principal:
        """Return the holder of the request's token; HttpError 401 without a valid one, 503 if it cannot be checked."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        by_cookie = scheme.lower() != "bearer" or not token.strip()
        if by_cookie:
            token = request.cookies.get(COOKIE, "") if request.method == "GET" else ""
        for authenticator in self.authenticators if token else ():
            principal = await authenticator.principal(token.strip())
            if principal is not None and principal.cookie is by_cookie and principal.tenant in self.tenants:
                return principal
        problem = ' error="invalid_token"' if token else ""
        raise HttpError(
            401,
            "the token is not valid, or no longer" if token else "no access token",
            hint="send Authorization: Bearer TOKEN",
            headers={"WWW-Authenticate": f"Bearer{problem}"},
        )


def _check_apart(tenants: dict[str, Tenant]) -> None:
    """Raise UsageError where two tenants have one database, however its URL is written: it has one secret."""
    names: dict[bytes, str] = {}
    for name, tenant in tenants.items():
        other = names.setdefault(tenant.stores.ledger.key, name)
        if other != name:
            raise UsageError(f"the tenants {other} and {name} have the same store", hint="give each its own database")


def service_of(request: Request) -> Service:
    """Return the service that a request came to."""
    service: Service = request.app.state.service
    return service
