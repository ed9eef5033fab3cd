"""The holder of a token, and the scopes of tokens."""

import math
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol


class Scope(StrEnum):
    """A right of a token.

    `assert` lets its holder set the claims, facts and prompt of a session, for any subject. `requests` lets its holder
    read the recorded requests of decisions. `metrics` only lets its holder read `/metrics`.
    """

    DECIDE = "decide"
    PROPOSE = "propose"
    APPROVE = "approve"
    AUDIT = "audit"
    ADMIN = "admin"
    ASSERT = "assert"
    REQUESTS = "requests"
    METRICS = "metrics"


class BrowserSession(StrEnum):
    """The kind of a browser session. `API` can only read `/v1/...`, `CONSOLE` can only use the console."""

    API = "browser session"
    CONSOLE = "console session"


# Authenticators append why they refuse the request's token: a `reason`, and further fields the farther they came.
NOTED: Final[ContextVar[list[dict[str, Any]]]] = ContextVar("NOTED")


@dataclass(frozen=True, slots=True)
class Principal:
    """The verified holder of a token. The token expires at `expires_at` (seconds since 1970). A person has `claims`.

    Only the principal that began a call can continue it. `session` is set if the token belongs to a browser session.
    `auth_time` is when the person last signed in at an identity provider, in seconds since 1970. `provider` is the key
    of the provider's settings, and `scope_names` are its scopes from which `scopes` were mapped.
    """

    id: str
    tenant: str
    scopes: frozenset[Scope]
    claims: Mapping[str, Any]
    expires_at: float = math.inf
    session: BrowserSession | None = None
    auth_time: float | None = None
    provider: str | None = None
    scope_names: tuple[str, ...] = ()


class Authenticator(Protocol):
    """Authenticates access tokens of one kind, such as those of an OpenID Connect provider."""

    async def principal(self, token: str) -> Principal | None:
        """Return the holder of a token, or None if the token is not valid. Raise StoreError if the store fails."""
