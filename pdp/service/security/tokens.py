"""Tokens of our own: made, hashed, looked up, revoked.

A token is `pdp_`, the 16 hexadecimal digits of its id, and 256 random bits in base64url. Only its SHA-256 is stored: of
what is so random no slow hash is needed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import orjson
from pydantic import ValidationError

from pdp.audit.chain import AuditEvent, recordable
from pdp.clock import to_milliseconds
from pdp.errors import UsageError
from pdp.json import canonical, frozen
from pdp.project.resources import open_stores
from pdp.service.models.tokens import LIFETIME, TokenOrder
from pdp.service.security.principal import Principal, Scope
from pdp.session import Session
from pdp.stores.sql.tokens import SqlTokens, TokenRecord

if TYPE_CHECKING:  # `pdp token` works without the extra of the service
    from pdp.service.settings import ServiceSettings

COOKIE: Final = "pdp_session"
_SESSION_SECONDS: Final = 3600
_REMEMBERED_SECONDS: Final = 5.0  # so long at most a token counts that another process has revoked
_MOST: Final = 10_000  # tokens that are remembered
_ID: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_TOKEN: Final = re.compile(r"pdp_([0-9a-f]{16})[A-Za-z0-9_-]{43}", re.ASCII)


class TokenAuthenticator:
    """Who knows tokens of our own, for one process and all its tenants. `tokens`: where they are stored."""

    def __init__(self, tokens: SqlTokens) -> None:
        self.tokens = tokens
        self._remembered: OrderedDict[str, tuple[Principal, float]] = OrderedDict()

    async def principal(self, token: str) -> Principal | None:
        """Return who holds a token; None: it is not one, or no longer. StoreError: nobody can say."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            return None
        digest = _digest(token)
        principal, until = self._remembered.get(digest, (None, 0.0))
        if principal is None or until < time.monotonic():
            asked_at = time.monotonic()
            record = await asyncio.to_thread(self.tokens.get, match[1])
            if record is None or not hmac.compare_digest(record.secret_digest, digest) or record.revoked_at is not None:
                self._remembered.pop(digest, None)
                return None
            principal = _principal(record)
            self._remembered[digest] = (principal, asked_at + _REMEMBERED_SECONDS)
            self._remembered.move_to_end(digest)
            if len(self._remembered) > _MOST:
                self._remembered.popitem(last=False)
        return principal if time.time() < principal.expires_at else None

    async def revoke(self, token_id: str, tenant: str) -> bool:
        """Revoke a token of a tenant, and the browser sessions made by it; return whether there is one.

        It counts no longer in this process, and in others after five seconds.
        """
        if not _ID.fullmatch(token_id):
            return False
        revoked = await asyncio.to_thread(self.tokens.revoke, token_id, time.time(), tenant)
        self._remembered.clear()
        return revoked

    async def open_session(self, principal: Principal) -> str:
        """Return a token for the browser of a principal: for an hour, and no longer than theirs."""
        scopes = sorted(principal.scopes - {Scope.ADMIN, Scope.ASSERT})
        seconds = min(_SESSION_SECONDS, principal.expires_at - time.time())
        record, token = _new(
            principal.tenant, "browser session", scopes, principal.claims, seconds=seconds, principal=principal.id
        )
        await asyncio.to_thread(self.tokens.add, record)
        return token


def open_tokens(settings: ServiceSettings, owned: ExitStack) -> TokenAuthenticator:
    """Open where a service has its tokens, closed with `owned`: its own store, else that of `default` or the first.

    Errors as of `open_stores`.
    """
    tenants = settings.tenants
    url = settings.store or tenants.get("default", next(iter(tenants.values()))).store
    return TokenAuthenticator(open_stores(url, owned).tokens)


def issue_token(tokens: SqlTokens, tenant: str, order: TokenOrder | Mapping[str, Any]) -> tuple[TokenRecord, str]:
    """Store a new token, as of `TokenOrder`; return its record, and the token itself, which is stored nowhere.

    UsageError: the order is not valid, or its claims are not those of a session.
    """
    try:
        wanted = TokenOrder.model_validate(order)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        raise UsageError(f"{'.'.join(map(str, first['loc'])):.60}: {first['msg']}") from None
    session = Session.read({"claims": wanted.claims})
    if wanted.claims:
        _ = session.subject  # refuses claims that name no person
    made = _new(tenant, wanted.name, sorted(set(wanted.scopes)), session.claims, seconds=wanted.expires_in)
    tokens.add(made[0])
    return made


def token_event(
    kind: str, by: str, token_id: str, scopes: Sequence[str] = (), request_id: str | None = None
) -> AuditEvent:
    """Return the event of a token that `by` has made or revoked, for the stream of its tenant."""
    return {
        "time": to_milliseconds(time.time()), "type": kind, "request_id": recordable(request_id),
        "subject": recordable(by), "reason": recordable(token_id), "codes": scopes,
    }  # fmt: skip


def first_token(tokens: SqlTokens, tenant: str) -> str | None:
    """Return a new token with every scope, for a tenant that has never had one; else None.

    Of several processes that ask, one gets it.
    """
    # The same id from all who ask: one of them is stored.
    token_id = hashlib.sha256(f"the first token of {tenant}".encode()).hexdigest()[:16]
    record, token = _new(tenant, "first", sorted(Scope), {}, seconds=LIFETIME, token_id=token_id)
    return token if tokens.add(record, first=True) else None


def _new(
    tenant: str,
    name: str,
    scopes: Iterable[str],
    claims: Mapping[str, Any],
    *,
    seconds: float,
    principal: str | None = None,
    token_id: str | None = None,
) -> tuple[TokenRecord, str]:
    token_id = token_id or secrets.token_hex(8)
    token = f"pdp_{token_id}{secrets.token_urlsafe(32)}"
    now = time.time()
    return TokenRecord(
        token_id, tenant, _digest(token), name, tuple(scopes), orjson.loads(canonical(claims)), now, now + seconds,
        principal=principal,
    ), token  # fmt: skip


def _principal(record: TokenRecord) -> Principal:
    claims = record.claims
    if claims and record.principal is None:
        claims = {**claims, "jti": record.id}  # tells two tokens of one person apart, where they approve
    return Principal(
        record.principal or record.id,
        record.tenant,
        frozenset(scope for scope in Scope if scope in record.scopes),
        frozen(claims),
        expires_at=record.expires_at,
        cookie=record.principal is not None,
    )


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
