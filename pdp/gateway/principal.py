"""Who the client of the gateway is: whom the session file names over stdio, the holder of a token over HTTP."""

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
    """The sessions of calls, as a session file states them; UsageError: it does not.

    `in_run`: all calls over stdio are one run, and those of one holder of tokens; an approval is of its run.
    """

    def __init__(self, file: Path, *, in_run: bool) -> None:
        self._run = f"mcp-{uuid.uuid4()}" if in_run else None
        self._stated = read_record(file, Session).with_changes(run_id=self._run)

    def session(self, ctx: ServerRequestContext[Any]) -> Session:
        """Return the session of a request; over HTTP it has the claims of its token, and no others."""
        if ctx.request is None:
            return self._stated
        token: AccessToken = ctx.request.user.access_token
        return self._stated.with_changes(claims=token.claims, run_id=self._run and f"{self._run} {token.client_id}")


class Verifier:
    """Verifies bearer tokens for the SDK. It accepts tokens of people of one tenant."""

    def __init__(self, authenticators: Sequence[Authenticator], tenant: str) -> None:
        self._authenticators, self._tenant = authenticators, tenant

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return who holds a token; None: nobody, as far as is known now."""
        for authenticator in self._authenticators:
            holder = await authenticator.principal(token)
            if holder is not None and holder.tenant == self._tenant and not holder.cookie and holder.claims:
                ends = None if math.isinf(holder.expires_at) else int(holder.expires_at)
                claims, scopes = dict(holder.claims), [*holder.scopes]
                known = {"client_id": holder.id, "scopes": scopes, "expires_at": ends, "subject": claims["sub"]}
                return AccessToken(token="", claims=claims, **known)
        return None
