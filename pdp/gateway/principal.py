"""The identity of the gateway's clients: from the session file over stdio, from a token over HTTP."""

import math
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext

from pdp.documents import read_record
from pdp.service.security.principal import Authenticator
from pdp.session import Session


class Callers:
    """Makes the session of each call from a session file. Raises `UsageError` if the file cannot be read.

    With `in_run`, all calls over stdio, or all calls of a token holder, are one run. An approval is valid for one run.
    """

    def __init__(self, file: Path, *, in_run: bool) -> None:
        self._run = f"mcp-{uuid.uuid4()}" if in_run else None
        self._stated = read_record(file, Session).with_changes(run_id=self._run)

    def session(self, ctx: ServerRequestContext[Any]) -> Session:
        """Return the session of a request. Over HTTP, the session has the token's claims."""
        if ctx.request is None:
            return self._stated
        token: AccessToken = ctx.request.user.access_token
        return self._stated.with_changes(claims=token.claims, run_id=self._run and f"{self._run} {token.client_id}")


class Verifier:
    """Verifies bearer tokens for the SDK. Only tokens of people of one tenant are accepted."""

    def __init__(self, authenticators: Sequence[Authenticator], tenant: str) -> None:
        self._authenticators, self._tenant = authenticators, tenant

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return a valid token with the claims of its holder, or None if the token is not valid."""
        for authenticator in self._authenticators:
            holder = await authenticator.principal(token)
            if holder is not None and holder.tenant == self._tenant and holder.session is None and holder.claims:
                ends = None if math.isinf(holder.expires_at) else int(holder.expires_at)
                claims, scopes = dict(holder.claims), [*holder.scopes]
                known = {"client_id": holder.id, "scopes": scopes, "expires_at": ends, "subject": claims["sub"]}
                return AccessToken(token="", claims=claims, **known)
        return None
