"""Request and answer bodies for access tokens."""

from typing import Annotated, Final, Literal

from pydantic import Field, StrictInt

from pdp.service.models import Body, JsonObject
from pdp.service.security.principal import Scope
from pdp.session import LONGEST_TEXT

LIFETIME: Final = 365 * 24 * 3600
"""Default lifetime of a token, in seconds."""

Grace = Annotated[int, Field(ge=0, le=10 * LIFETIME)]


class TokenOrder(Body):
    """A token to create. `claims` are the claims of its holder; `expires_in` is its lifetime in seconds."""

    name: Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]
    scopes: Annotated[list[Scope], Field(min_length=1)]
    claims: JsonObject = Field(default_factory=dict)
    expires_in: Annotated[StrictInt, Field(gt=0, le=10 * LIFETIME)] = LIFETIME


class Token(Body):
    """A token without its secret. Times are RFC 3339 in UTC. `warnings` say why it can do nothing, or too much."""

    id: str
    tenant: str
    name: str
    scopes: list[Scope]
    claims: JsonObject
    created_at: str
    expires_at: str
    revoked: bool
    state: Literal["active", "expired", "revoked"]
    warnings: list[str]


class NewToken(Token):
    """A new token with its secret, `token`, which no later answer contains."""

    token: str


class TokenList(Body):
    """All tokens of a tenant."""

    tokens: list[Token]
