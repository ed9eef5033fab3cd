"""Tables that only the service uses: digests of access tokens, and the last sent event of each webhook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson
from sqlalchemy import delete, select, update

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
        return {
            "id": self.id, "tenant": self.tenant, "name": self.name, "scopes": list(self.scopes), "claims": self.claims,
            "created_at": to_seconds(self.created_at), "expires_at": to_seconds(self.expires_at),
            "revoked": self.revoked_at is not None,
        }  # fmt: skip


class SqlTokens(DatabaseStore):
    """Access tokens in a database. Thread-safe; raises the errors of `Database`."""

    def get(self, token_id: str) -> TokenRecord | None:
        """Return the token with this id, or None. Revoked and expired tokens are returned too."""
        with self._database.read() as connection:
            row = connection.execute(select(table).filter_by(id=token_id)).mappings().first()
        return None if row is None else _of_row(row)

    def add(self, record: TokenRecord, *, first: bool = False) -> bool:
        """Store a new token. Return False if the id is used or, with `first`, the tenant already has a token."""
        row = asdict(record)
        whole = orjson.dumps({name: row.pop(name) for name in _IN_JSON}).decode()
        with self._database.write() as connection:
            expired = table.c.principal.is_not(None) & (table.c.expires_at <= record.created_at)
            connection.execute(delete(table).where(expired))
            any_stored = select(table.c.id).filter_by(tenant=record.tenant, principal=None).limit(1)
            if first and connection.execute(any_stored).first() is not None:
                return False
            return insert_if_absent(connection, table, {**row, "record": whole})

    def list(self, tenant: str) -> Sequence[TokenRecord]:
        """Return the tokens of a tenant in the order of creation. Tokens of browser sessions are left out."""
        query = select(table).where(table.c.principal.is_(None)).filter_by(tenant=tenant)
        with self._database.read() as connection:
            records = [_of_row(row) for row in connection.execute(query).mappings()]
        return sorted(records, key=lambda record: (record.created_at, record.id))

    def revoke(self, token_id: str, now: float, tenant: str) -> bool:
        """Revoke a tenant's token and the browser sessions that belong to it. Return whether the token exists."""
        ids = (table.c.id == token_id) | (table.c.principal == token_id)
        query = update(table).where(ids).filter_by(tenant=tenant)
        with self._database.write() as connection:
            if connection.execute(select(table.c.id).filter_by(id=token_id, tenant=tenant)).first() is None:
                return False
            connection.execute(query.where(table.c.revoked_at.is_(None)).values(revoked_at=now))
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
