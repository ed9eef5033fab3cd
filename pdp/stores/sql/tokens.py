"""Tables that only the service uses: digests of access tokens, and the last sent event of each webhook."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson
from sqlalchemy import delete, func, select, update

from pdp.clock import to_seconds
from pdp.stores.sql.database import DatabaseStore
from pdp.stores.sql.tables import insert_if_absent, webhooks
from pdp.stores.sql.tables import tokens as table

_IN_JSON = ("name", "scopes", "claims", "created_at", "auth_time", "provider")


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """The stored record of an access token. Times are seconds since 1970."""

    id: str
    tenant: str
    secret_digest: str = field(repr=False)  # SHA-256 of the whole token, hexadecimal.
    name: str
    scopes: tuple[str, ...]  # With `provider`, these are names of the provider's scopes.
    claims: Mapping[str, Any]  # As in `Session.claims`; empty if the token belongs to no person.
    created_at: float
    expires_at: float
    revoked_at: float | None = None
    principal: str | None = None  # The owner's id, if the token is a browser session.
    auth_time: float | None = None  # When the owner signed in at an identity provider.
    provider: str | None = None  # The key of the provider that issued the owner's token.

    def as_json(self) -> dict[str, Any]:
        """Return the fields of an access token that may be shown, such as its name and scopes."""
        is_valid = time.time() < self.expires_at
        return {
            "id": self.id, "tenant": self.tenant, "name": self.name, "scopes": list(self.scopes), "claims": self.claims,
            "created_at": to_seconds(self.created_at), "expires_at": to_seconds(self.expires_at),
            "revoked": self.revoked_at is not None,
            "state": "revoked" if self.revoked_at is not None else "active" if is_valid else "expired",
        }  # fmt: skip


class SqlTokens(DatabaseStore):
    """Access tokens in a database. Thread-safe; raises the errors of `Database`."""

    def get(self, token_id: str) -> TokenRecord | None:
        """Return the token with this id, or None. Revoked and expired tokens are returned too."""
        with self._database.read() as connection:
            row = connection.execute(select(table).filter_by(id=token_id)).mappings().first()
        return None if row is None else _of_row(row)

    def add(self, record: TokenRecord, *, first: Callable[[object], None] | None = None) -> bool:
        """Store a token, then call `first`. Return False if the id is used or, with `first`, the tenant has a token."""
        row = asdict(record)
        whole = orjson.dumps({name: row.pop(name) for name in _IN_JSON}).decode()
        with self._database.write() as connection:
            expired = table.c.principal.is_not(None) & (table.c.expires_at <= record.created_at)
            connection.execute(delete(table).where(expired))
            any_stored = select(table.c.id).filter_by(tenant=record.tenant, principal=None).limit(1)
            if first and connection.execute(any_stored).first() is not None:
                return False
            is_added = insert_if_absent(connection, table, {**row, "record": whole})
            if first and is_added:
                first(connection)
            return is_added

    def list(self, tenant: str | None = None) -> Sequence[TokenRecord]:
        """Return the tokens of one or all tenants in the order of creation. Tokens of browser sessions are left out."""
        query = select(table).where(table.c.principal.is_(None), table.c.tenant == (tenant or table.c.tenant))
        with self._database.read() as connection:
            records = [_of_row(row) for row in connection.execute(query).mappings()]
        return sorted(records, key=lambda record: (record.created_at, record.id))

    def expiring(self, now: float, before: float) -> dict[str, int]:
        """Return how many tokens of each tenant expire after `now` and before `before`. Sessions are left out."""
        valid = table.c.principal.is_(None), table.c.revoked_at.is_(None), table.c.expires_at.between(now, before)
        query = select(table.c.tenant, func.count()).where(*valid).group_by(table.c.tenant)
        with self._database.read() as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    def revoke(self, token_id: str, now: float, tenant: str | None = None, *, grace: float = 0) -> bool:
        """Revoke a tenant's token and its browser sessions, `grace` seconds after `now`. Return whether it exists."""
        own = table.c.tenant == (tenant or table.c.tenant)
        ids = (table.c.id == token_id) | (table.c.principal == token_id)
        query = update(table).where(own, ids, table.c.revoked_at.is_(None), table.c.expires_at > now + grace)
        with self._database.write() as connection:
            if connection.execute(select(table.c.id).filter_by(id=token_id).where(own)).first() is None:
                return False
            connection.execute(query.values({"expires_at": now + grace} if grace else {"revoked_at": now}))
        return True


def _of_row(row: Mapping[Any, Any]) -> TokenRecord:
    fields = dict(row)
    whole = orjson.loads(fields.pop("record"))
    return TokenRecord(**{**fields, **whole, "scopes": tuple(whole["scopes"])})


class SqlWebhooks(DatabaseStore):
    """The number of the last event sent to each webhook, by webhook id. Times are seconds since 1970."""

    def hold(self, webhook_id: str, held: float, until: float, now: float, first: int) -> int | None:
        """Reserve a webhook for this process. Return its last sent event's number; None if another process reserved it.

        `held` is the end of the caller's earlier reservation, or a past time; `until` is the end of the new
        reservation. For a webhook that is not stored yet, the method returns `first`.
        """
        with self._database.write(durable=False) as connection:
            insert_if_absent(connection, webhooks, {"id": webhook_id, "seq": first, "held_until": 0.0})
            row = connection.execute(select(webhooks).filter_by(id=webhook_id).with_for_update()).one()
            if row.held_until > now and row.held_until != held:
                return None
            connection.execute(update(webhooks).filter_by(id=webhook_id).values(held_until=until))
            return int(row.seq)

    def advance(self, webhook_id: str, held: float, seq: int) -> bool:
        """Store the number of the last sent event. Return False if the caller's reservation of the webhook is lost."""
        with self._database.write(durable=False) as connection:
            done = connection.execute(update(webhooks).filter_by(id=webhook_id, held_until=held).values(seq=seq))
            return done.rowcount == 1
