"""The state of one process that all requests share: tenants, authenticators, limits."""

import asyncio
from contextlib import ExitStack

from starlette.requests import Request

from pdp.errors import UsageError
from pdp.execution.telemetry import SCOPE
from pdp.service.approvals.feed import ApprovalFeed
from pdp.service.health import Readiness
from pdp.service.requests import HttpError, header
from pdp.service.security.limits import RateLimiter
from pdp.service.security.oidc import OidcAuthenticator
from pdp.service.security.principal import Authenticator, Principal
from pdp.service.security.tokens import COOKIE, open_tokens
from pdp.service.settings import ServiceSettings
from pdp.service.telemetry import tracer_provider
from pdp.service.tenant import Tenant, open_tenant


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
        scheme, _, token = header(request, b"authorization").partition(" ")
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
