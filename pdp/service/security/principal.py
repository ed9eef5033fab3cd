"""The holder of a token, and the scopes of tokens."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol


class Scope(StrEnum):
    """A right of a token. `assert` lets its holder set the claims, facts and prompt of a session, for any subject."""

    DECIDE = "decide"
    PROPOSE = "propose"
    APPROVE = "approve"
    AUDIT = "audit"
    ADMIN = "admin"
    ASSERT = "assert"


@dataclass(frozen=True, slots=True)
class Principal:
    """The verified holder of a token. The token expires at `expires_at` (seconds since 1970). A person has `claims`.

    Only the principal that began a call can continue it. `cookie` marks a browser session, which can only read.
    """

    id: str
    tenant: str
    scopes: frozenset[Scope]
    claims: Mapping[str, Any]
    expires_at: float = math.inf
    cookie: bool = False


class Authenticator(Protocol):
    """Authenticates access tokens of one kind, such as those of an OpenID Connect provider."""

    async def principal(self, token: str) -> Principal | None:
        """Return the holder of a token, or None if the token is not valid. Raise StoreError if the store fails."""
