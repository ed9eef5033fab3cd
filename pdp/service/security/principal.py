"""Who calls the service."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol


class Scope(StrEnum):
    """What a token is good for. ASSERT: to state the claims, facts and prompt of those for whom its holder calls."""

    DECIDE = "decide"
    PROPOSE = "propose"
    APPROVE = "approve"
    AUDIT = "audit"
    ADMIN = "admin"
    ASSERT = "assert"


@dataclass(frozen=True, slots=True)
class Principal:
    """The verified holder of a token.

    Attributes:
        id: unique in the service: the token's own id, or issuer and subject. What was begun by one is not another's.
        claims: verified, as of `Session.claims`; empty for a token that stands for no person.
        expires_at: when the token counts no longer, seconds since 1970.
        cookie: whether the token is of a browser session, which only reads.
    """

    id: str
    tenant: str
    scopes: frozenset[Scope]
    claims: Mapping[str, Any]
    expires_at: float = math.inf
    cookie: bool = False


class Authenticator(Protocol):
    """What knows tokens of one kind."""

    async def principal(self, token: str) -> Principal | None:
        """Return who holds a token; None: it is not one, or no longer. StoreError: nobody can say."""
