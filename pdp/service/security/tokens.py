"""Creates, looks up and revokes the service's own tokens.

A token is `pdp_`, 16 hex digits and 256 random bits. The bits cannot be guessed, so storing only a SHA-256 is safe.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import orjson
from pydantic import ValidationError

from pdp.audit.chain import AuditEvent, recordable
from pdp.clock import to_milliseconds
from pdp.errors import StoreError, UsageError
from pdp.json import canonical, frozen
from pdp.project.resources import open_stores
from pdp.service.models.tokens import LIFETIME, TokenOrder
from pdp.service.security.principal import NOTED, BrowserSession, Principal, Scope
from pdp.session import Session
from pdp.stores.sql.tokens import SqlTokens, TokenRecord

if TYPE_CHECKING:  # The settings are not imported, so that `pdp token` works without the extra `service`.
    from pdp.service.settings import OidcSettings, ServiceSettings

COOKIE: Final = "pdp_session"
_NOT_IN_SESSIONS: Final = frozenset((Scope.ADMIN, Scope.ASSERT))
_SESSION_SECONDS: Final = {BrowserSession.API: 3600, BrowserSession.CONSOLE: 8 * 3600}
# The maximum number of seconds until this process notices a revocation by another process.
_REMEMBERED_SECONDS: Final = 5.0
_OUTAGE: Final = 3600.0  # A token with the scope `metrics` alone counts for this long while the store is down.
_MOST: Final = 10_000  # The maximum number of tokens kept in memory.
_ID: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_TOKEN: Final = re.compile(r"pdp_([0-9a-f]{16})[A-Za-z0-9_-]{43}", re.ASCII)


class TokenAuthenticator:
    """Authenticates the service's own tokens, which are in the store `tokens`, for all tenants of one process.

    `oidc` are the providers whose holders of tokens may open browser sessions.
    """

    def __init__(self, tokens: SqlTokens, oidc: Iterable[OidcSettings] = ()) -> None:
        self.tokens = tokens
        self._scopes_by_name = {provider.key: provider.scopes for provider in oidc}
        self._remembered: OrderedDict[str, tuple[Principal, float]] = OrderedDict()

    async def principal(self, token: str) -> Principal | None:
        """Return the holder of a token, or None if the token is not valid. Raise StoreError if the store fails."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            NOTED.get([]).append({"reason": "malformed"})
            return None
        about: dict[str, Any] = {"reason": "unknown", "token_id": match[1]}
        digest = _digest(token)
        principal, until = self._remembered.get(digest, (None, 0.0))
        if principal is None or until < time.monotonic():
            asked_at = time.monotonic()
            # Metrics must tell that the store is down, so a token that reads only metrics is remembered for longer.
            is_scraper = principal is not None and principal.scopes == {Scope.METRICS} and asked_at < until + _OUTAGE
            try:
                read = asyncio.to_thread(self.tokens.get, match[1])
                record = await asyncio.wait_for(read, 0.5 if is_scraper else None)
            except (StoreError, TimeoutError):
                if not is_scraper:
                    raise
                return principal if principal and time.time() < principal.expires_at else None
            is_known = record is not None and hmac.compare_digest(record.secret_digest, digest)
            principal = self._principal(record) if record and is_known and record.revoked_at is None else None
            if principal is None:
                self._remembered.pop(digest, None)
                NOTED.get([]).append(about | ({"reason": "revoked"} if is_known else {}))
                return None
            self._remembered[digest] = (principal, asked_at + _REMEMBERED_SECONDS)
            self._remembered.move_to_end(digest)
            if len(self._remembered) > _MOST:
                self._remembered.popitem(last=False)
        if time.time() < principal.expires_at:
            return principal
        NOTED.get([]).append(about | {"reason": "expired", "exp": round(principal.expires_at)})
        return None

    async def revoke(self, token_id: str, tenant: str) -> bool:
        """Revoke a token and its browser sessions. Return whether it existed. Other processes notice within 5 s."""
        if not _ID.fullmatch(token_id):
            return False
        revoked = await asyncio.to_thread(self.tokens.revoke, token_id, time.time(), tenant)
        self._remembered.clear()
        return revoked

    async def open_session(self, principal: Principal, kind: BrowserSession) -> str:
        """Return a token for a browser session. It ends after an hour, in the console after eight.

        The session ends earlier if the principal's token expires or is revoked.
        """
        scopes = sorted(principal.scopes - _NOT_IN_SESSIONS) if principal.provider is None else principal.scope_names
        seconds = min(_SESSION_SECONDS[kind], principal.expires_at - time.time())
        record, token = _new(principal.tenant, kind, scopes, principal.claims, seconds=seconds, principal=principal.id)
        record = replace(record, auth_time=principal.auth_time, provider=principal.provider)
        await asyncio.to_thread(self.tokens.add, record)
        return token

    def _principal(self, record: TokenRecord) -> Principal | None:
        claims = record.claims
        if claims and record.principal is None:
            # `jti` is needed to distinguish two tokens of one person when the person approves.
            claims = {**claims, "jti": record.id}
        if record.provider is None:
            scopes = frozenset(scope for scope in Scope if scope in record.scopes)
        elif record.provider in self._scopes_by_name:
            # The present settings map the provider's scopes, so that a right ends when its mapping is removed.
            by_name = self._scopes_by_name[record.provider]
            scopes = frozenset(scope for name in record.scopes for scope in by_name.get(name, ())) - _NOT_IN_SESSIONS
        else:
            return None
        return Principal(
            record.principal or record.id,
            record.tenant,
            scopes,
            frozen(claims),
            expires_at=record.expires_at,
            session=None if record.principal is None else BrowserSession(record.name),
            auth_time=record.auth_time,
            provider=record.provider,
        )


def open_tokens(settings: ServiceSettings, owned: ExitStack) -> TokenAuthenticator:
    """Open the token store: the setting `store`, else the store of the tenant `default`, else of the first tenant."""
    tenants = settings.tenants
    url = settings.store or tenants.get("default", next(iter(tenants.values()))).store
    return TokenAuthenticator(open_stores(url, owned).tokens, settings.oidc)


def issue_token(tokens: SqlTokens, tenant: str, order: TokenOrder | Mapping[str, Any]) -> tuple[TokenRecord, str]:
    """Create and store a token. Return the token's record and secret. Raise UsageError if the order is invalid."""
    try:
        wanted = TokenOrder.model_validate(order)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        raise UsageError(f"{'.'.join(map(str, first['loc'])):.60}: {first['msg']}") from None
    session = Session.read({"claims": wanted.claims})
    if wanted.claims:
        _ = session.subject  # Reading the subject raises an error if the claims have no valid subject.
    made = _new(tenant, wanted.name, sorted(set(wanted.scopes)), session.claims, seconds=wanted.expires_in)
    tokens.add(made[0])
    return made


def replaced_token(tokens: SqlTokens, old_id: str, tenant: str | None, grace: float) -> tuple[TokenRecord, str]:
    """Create a token like an active one, with its lifetime, and revoke that one after `grace` seconds."""
    old = tokens.get(old_id) if _ID.fullmatch(old_id) else None
    if old is None or old.principal or tenant not in (None, old.tenant) or old.as_json()["state"] != "active":
        raise UsageError(f"{old_id:.60}: no active token has this id", hint="see: pdp token list")
    made = _new(old.tenant, old.name, old.scopes, old.claims, seconds=old.expires_at - old.created_at)
    tokens.add(made[0])
    tokens.revoke(old.id, time.time(), old.tenant, grace=grace)
    return made


def shown_token(record: TokenRecord) -> dict[str, Any]:
    """Return a token as it is shown. If it is active, `warnings` say why it can do nothing, or too much."""
    scopes, person, first = frozenset(record.scopes), bool(record.claims), record.id == _first_id(record.tenant)
    whole, lifetime = scopes.issuperset(Scope), record.expires_at - record.created_at
    found = (
        (whole, "has every scope: create tokens with fewer scopes"),
        ("approve" in scopes and not person, "cannot approve without claims: add --session FILE"),
        (bool(scopes & {"propose", "decide"}) and not person and "assert" not in scopes,
         "cannot propose without claims: add --session FILE, or --scope assert for an application"),
        ("requests" in scopes and "audit" not in scopes, "`requests` has no effect alone: add --scope audit"),
        (scopes & {"assert", "propose", "decide"} == {"assert"}, "`assert` has no effect alone: add --scope propose"),
        (not whole and scopes >= {"assert", "approve"}, "can state claims and approve: create two tokens"),
        (not whole and scopes >= {"admin", "propose"}, "can make tokens that approve its calls: omit --scope admin"),
        (lifetime > LIFETIME + 1, "is valid for more than a year: set a shorter --expires-in"),
        (b"*" in canonical(record.claims), "`*` in claims is not a wildcard: name each value"),
    )  # fmt: skip
    shown = record.as_json()
    is_checked = shown["state"] == "active" and not first
    return {**shown, "warnings": [text for applies, text in found if applies and is_checked]}


def public_id(token: str) -> str:
    """Return the id of a token, which is its public part."""
    return token.removeprefix("pdp_")[:16]


def token_event(
    kind: str, by: str, token_id: str, scopes: Sequence[str] = (), request_id: str | None = None
) -> AuditEvent:
    """Return the audit event that records that `by` created or revoked a token."""
    return {
        "time": to_milliseconds(time.time()), "type": kind, "request_id": recordable(request_id),
        "subject": recordable(by), "reason": recordable(token_id), "codes": scopes,
    }  # fmt: skip


def first_token(tokens: SqlTokens, tenant: str, keep: Callable[[str, AuditEvent, object], None]) -> str | None:
    """Create a tenant's first token, and return it; None if the tenant has had a token. `keep` may prevent it."""
    record, token = _new(tenant, "first", sorted(Scope), {}, seconds=LIFETIME, token_id=_first_id(tenant))
    event = token_event("token.created", "pdp serve", record.id, record.scopes)
    return token if tokens.add(record, first=lambda transaction: keep(token, event, transaction)) else None


def _first_id(tenant: str) -> str:
    # All processes compute the same id for the first token, so only one of them can store it.
    return hashlib.sha256(f"the first token of {tenant}".encode()).hexdigest()[:16]


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


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
