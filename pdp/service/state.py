"""The state that all routes of one process share: tenants with their stores and engines, readiness, limits."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from opentelemetry.trace import TracerProvider
from starlette.requests import Request

from pdp.approvals.approvals import Approvals
from pdp.audit.archive import check_folder
from pdp.audit.chain import KEY_BYTES
from pdp.audit.requests import Requests
from pdp.errors import AnswerInvalidError, PdpError, UsageError
from pdp.execution.telemetry import SCOPE, Telemetry
from pdp.pep import Pep
from pdp.project.file import engine_of_project, manifest_of_project, read_project
from pdp.project.resources import open_stores, stores_of_pep
from pdp.service.approvals.feed import ApprovalFeed
from pdp.service.authzen.policy import AccessPolicy
from pdp.service.errors import HttpError
from pdp.service.security.authorization_code import CodeSignIn
from pdp.service.security.oidc import OidcAuthenticator
from pdp.service.security.principal import NOTED, Authenticator, BrowserSession, Principal, Scope
from pdp.service.security.tokens import COOKIE, open_tokens
from pdp.service.settings import ServiceSettings, TenantSettings
from pdp.service.telemetry import RefusedTokens, audit_failures, store_used, time_engine, tracer_provider
from pdp.stores.sql.audit import SqlAudit
from pdp.stores.url import OpenStores

_SECONDS: Final = 2.0  # The engine and the store must answer health checks within this many seconds.
_WHY: Final = {
    "store.schema": "the database's tables belong to another release of tool-pdp",
    "timeout": f"no answer within {_SECONDS:g} s",
}
# The maximum number of principals whose request rate is remembered. The principal that was idle for longest is
# forgotten first.
_MOST: Final = 100_000
_log = logging.getLogger("pdp.service")


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant with its open resources. `open_tenant` creates it."""

    name: str
    settings: TenantSettings
    pep: Pep
    stores: OpenStores
    access: AccessPolicy
    stream: SqlAudit
    requests: Requests | None  # Opens recorded requests; None without a key.

    @property
    def approvals(self) -> Approvals:
        """The approvals in the tenant's store."""
        approvals = self.pep.approvals
        assert approvals is not None  # noqa: S101 - `open_tenant` sets them
        return approvals


def open_tenant(
    name: str, settings: TenantSettings, url: str, owned: ExitStack, provider: TracerProvider | None = None
) -> Tenant:
    """Open a tenant of the service at `url`; `owned` closes its stores and engine.

    Raises UsageError, BundleError, EngineError or StoreError.
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
    stores.tokens.observe(partial(store_used, name))
    audit_failures.labels(name)  # The counter starts at zero.
    if settings.audit_archive is not None:
        check_folder(settings.audit_archive)
    key = None if settings.audit_key_file is None else _key("audit_key_file", settings.audit_key_file)
    requests = None
    if settings.requests_key_file is not None:
        requests = Requests(_key("requests_key_file", settings.requests_key_file), settings.requests_days)
    token = None if settings.opa_token is None else settings.opa_token.get_secret_value()
    audit = stores.open_audit(key, requests if settings.record_requests else None)
    owned.callback(audit.close)
    audit.check()
    engine = engine_of_project(project, manifest, owned, opa_token=token)
    time_engine(engine, name)
    pep = Pep(
        manifest,
        engine,
        audit=audit,
        telemetry=None if provider is None else Telemetry(tracer_provider=provider),
        **stores_of_pep(stores, url),
    )
    access = AccessPolicy(pep, settings.authzen, stores.ledger.key, owned)
    return Tenant(name, settings, pep, stores, access, audit, requests)


def _key(setting: str, file: Path) -> bytes:
    try:
        key = file.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise UsageError(f"{setting} {file}: cannot be read: {error.strerror}", hint="check the path") from None
    if len(key) < KEY_BYTES:
        raise UsageError(
            f"{setting} {file}: has fewer than {KEY_BYTES} bytes", hint="create a key with `openssl rand -hex 32`"
        )
    return key


class Caller(NamedTuple):
    """The caller of a request: the holder of its token, and the token's tenant."""

    principal: Principal
    tenant: Tenant

    def may(self, *scopes: Scope) -> bool:
        """Return whether the caller's token has all of the given scopes."""
        return self.principal.scopes.issuperset(scopes)


class BoundedChecks:
    """Runs checks, each at most once at a time, and waits for their results for at most two seconds in all."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[Any]] = {}

    async def results(self, checks: Mapping[Any, Callable[[], Awaitable[Any]]]) -> dict[Any, Any]:
        """Return the results by the keys of the checks. A late check is left out, and its result is kept for later."""
        tasks = {key: self._running.get(key) or asyncio.ensure_future(check()) for key, check in checks.items()}
        self._running |= tasks
        done, _ = await asyncio.wait(tasks.values(), timeout=_SECONDS)
        for key, task in tasks.items():
            if task in done:
                self._running.pop(key, None)
        return {key: task.result() for key, task in tasks.items() if task in done}


class Readiness:
    """Checks the tenants' engines and stores, at most once a second, and logs changes. A single tenant gets details."""

    def __init__(self, tenants: dict[str, Tenant]) -> None:
        self._tenants = tenants
        self._turn = asyncio.Lock()
        self._until = 0.0
        self._parts: dict[str, dict[str, dict[str, Any]]] = {}
        self._since: dict[tuple[str, str], float] = {}
        self._checks = BoundedChecks()
        self._down: dict[tuple[str, str], float] = {}  # Since when a part is down.

    async def answer(self) -> dict[str, Any]:
        """Return the status `ready` or `unready`; for a single tenant, also the state of `engine` and `store`."""
        parts = [*(await self.parts()).values()]
        ready = all(state["status"] == "ready" for part in parts for state in part.values())
        return {"status": "ready" if ready else "unready", **(parts[0] if len(parts) == 1 else {})}

    async def parts(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return the state of `engine` and `store` for each tenant."""
        async with self._turn:
            if time.monotonic() >= self._until:
                parts = await asyncio.gather(*map(self.states, self._tenants.values()))
                for name, states in zip(self._tenants, parts, strict=True):
                    for part, state in states.items():
                        self._log_change(name, part, state)
                    self._parts[name] = states
                self._until = time.monotonic() + 1
        return self._parts

    async def states(self, tenant: Tenant) -> dict[str, dict[str, Any]]:
        """Return the states of a tenant's engine and store. `why` of a state is only for the log."""
        checks = {"engine": partial(self._engine, tenant), "store": partial(self._store, tenant)}
        found = await self._checks.results({(tenant.name, name): check for name, check in checks.items()})
        late = {"status": "unready", "reason": _WHY["timeout"], "why": _WHY["timeout"]}
        return {name: found.get((tenant.name, name), {**late, "code": f"{name}.timeout"}) for name in checks}

    def _log_change(self, tenant: str, part: str, state: dict[str, Any]) -> None:
        """Log if a part goes down or is back, and remove the text that is only for the log."""
        why, at = state.pop("why", None), (tenant, part)
        about = {"tenant": tenant, "part": part}
        if why is not None and at not in self._down:
            self._down[at] = time.monotonic()
            _log.error("tenant %s: the %s is down: %s: %s", *at, state["code"], why, extra=about)
        elif why is None and at in self._down:
            seconds = time.monotonic() - self._down.pop(at)
            _log.warning("tenant %s: the %s is back after %.0f s", *at, seconds, extra=about)

    async def _store(self, tenant: Tenant) -> dict[str, Any]:
        try:
            return {"status": "ready", "revision": await asyncio.to_thread(tenant.stores.check)}
        except PdpError as error:
            reason = _WHY.get(error.code, "the store is not writable; see the log")
            return {"status": "unready", "code": error.code, "reason": reason, "why": str(error)}

    async def _engine(self, tenant: Tenant) -> dict[str, Any]:
        # The engine is asked with an empty request, which is always denied, but whose answer names the bundle revision.
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
        code, logged = (reason.code, reason.message) if reason else ("engine.not_ready", "the engine gives no reason")
        why = "the engine does not decide; see the log"
        if not healthy and (decision.bundle_revision or decision.codes == (AnswerInvalidError.code,)):
            code = "engine.not_ready"
            why = logged = "OPA has not activated its bundles, or a plugin is not ready; see: pdp opa status"
        return {"status": "unready", "name": engine.name, "code": code, "reason": why, "why": logged}


class RateLimiter:
    """A token bucket for each principal in this process: `rate` requests per second, at most `burst` at once."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def admit(self, principal: Principal) -> None:
        """Count one request of a principal. Raise `HttpError` 429 if the principal exceeds the rate."""
        now = time.monotonic()
        left, since = self._buckets.get(principal.id, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._rate)
        if left < 1:
            wait = f"{max(1, round((1 - left) / self._rate))}"
            raise HttpError(429, "too many requests by this token", hint="retry later", headers={"Retry-After": wait})
        self._buckets[principal.id] = (left - 1, now)
        self._buckets.move_to_end(principal.id)
        if len(self._buckets) > _MOST:
            self._buckets.popitem(last=False)


class Service:
    """The state that all requests of a process share. Creating it opens all tenants; closing `owned` closes them."""

    def __init__(self, settings: ServiceSettings, owned: ExitStack) -> None:
        self.settings = settings
        provider = tracer_provider(settings, owned)
        self.tracer = None if provider is None else provider.get_tracer(SCOPE)
        self.tenants: dict[str, Tenant] = {
            name: open_tenant(name, tenant, settings.url, owned, provider) for name, tenant in settings.tenants.items()
        }
        check_distinct_stores(self.tenants)
        self.readiness = Readiness(self.tenants)
        # This event is set when the process shuts down, so that waiting requests are answered at once.
        self.ending = asyncio.Event()
        self.feeds = {
            name: ApprovalFeed(tenant.stream, settings.limits.waiting, self.ending)
            for name, tenant in self.tenants.items()
        }
        self.refused = RefusedTokens()
        self.limiter = RateLimiter(settings.limits.requests_per_second, settings.limits.burst)
        self.tokens = open_tokens(settings, owned)
        self.tokens.tokens.observe(partial(store_used, ""))
        oidc = [*map(OidcAuthenticator, settings.oidc)]
        self.authenticators: list[Authenticator] = [self.tokens, *oidc]
        self.sign_ins = {each.settings.key: CodeSignIn(each) for each in oidc if each.settings.console is not None}

    async def authenticated(self, request: Request) -> Principal:
        """Return the holder of the request's token. Raise `HttpError` 401 if invalid, 503 if no check is possible."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        by_cookie = scheme.lower() != "bearer" or not token.strip()
        if by_cookie:
            token = request.cookies.get(COOKIE, "") if request.method == "GET" else ""
        noted: list[dict[str, Any]] = []
        NOTED.set(noted)
        try:
            principal = await self.holder(token.strip(), BrowserSession.API if by_cookie else None)
            if principal is not None:
                noted[:] = [] if principal.scopes else [{"reason": "no_scope", "issuer": principal.claims.get("iss")}]
                return principal
        finally:
            if noted:
                # The authenticator that came farthest noted the most fields. A provider may have several audiences.
                noted.sort(key=lambda each: (each["reason"] != "wrong_audience" and len(each) > 1, len(each)))
                self.refused.report({"request_id": request.scope["state"]["request_id"], **noted[-1]})
        problem = ' error="invalid_token"' if token else ""
        raise HttpError(
            401,
            "the token is invalid, expired or revoked" if token else "the request has no access token",
            hint="send Authorization: Bearer TOKEN",
            headers={"WWW-Authenticate": f"Bearer{problem}"},
        )

    async def holder(self, token: str, session: BrowserSession | None = None) -> Principal | None:
        """Return the holder of a token of this kind of session, or of an access token; None if it is not valid."""
        for authenticator in self.authenticators if token else ():
            principal = await authenticator.principal(token)
            if principal is not None and principal.session is session and principal.tenant in self.tenants:
                return principal
            if principal is not None:
                NOTED.get([]).append({"reason": "misused", "session": principal.session})
        return None


def check_distinct_stores(tenants: dict[str, Tenant]) -> None:
    """Raise UsageError if tenants share a database, which its secret key shows: one database can have several URLs."""
    names: dict[bytes, str] = {}
    for name, tenant in tenants.items():
        other = names.setdefault(tenant.stores.ledger.key, name)
        if other != name:
            raise UsageError(f"the tenants {other} and {name} have the same store", hint="give each its own database")


def service_of(request: Request) -> Service:
    """Return the `Service` of the process that handles a request."""
    service: Service = request.app.state.service
    return service
