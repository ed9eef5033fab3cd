"""What the service alone stores in a database: digests of access tokens, and how far each webhook has come."""

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

_IN_JSON = ("name", "scopes", "claims", "created_at")


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """What is stored of a token; times in seconds since 1970.

    Attributes:
        id: public; unique in the database.
        secret_digest: SHA-256 of the whole token, hexadecimal.
        claims: of whom it stands for, as of `Session.claims`; empty: of no person.
        principal: whose browser session it is; None: not one, but a token of its own.
    """

    id: str
    tenant: str
    secret_digest: str = field(repr=False)
    name: str
    scopes: tuple[str, ...]
    claims: Mapping[str, Any]
    created_at: float
    expires_at: float
    revoked_at: float | None = None
    principal: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return what people may see of it."""
        return {
            "id": self.id, "tenant": self.tenant, "name": self.name, "scopes": list(self.scopes), "claims": self.claims,
            "created_at": to_seconds(self.created_at), "expires_at": to_seconds(self.expires_at),
            "revoked": self.revoked_at is not None,
        }  # fmt: skip


class SqlTokens(DatabaseStore):
    """Tokens in a database. Safe to share between threads; errors as of `Database`."""

    def get(self, token_id: str) -> TokenRecord | None:
        """Return the token of an id, revoked and expired ones too."""
        with self._database.read() as connection:
            row = connection.execute(select(table).filter_by(id=token_id)).mappings().first()
        return None if row is None else _of_row(row)

    def add(self, record: TokenRecord, *, first: bool = False) -> bool:
        """Store a token, unless its id is taken; with `first`, unless its tenant has any. Return whether it is stored.

        Browser sessions that are over are forgotten.
        """
        row = asdict(record)
        whole = orjson.dumps({name: row.pop(name) for name in _IN_JSON}).decode()
        with self._database.write() as connection:
            over = table.c.principal.is_not(None) & (table.c.expires_at <= record.created_at)
            connection.execute(delete(table).where(over))
            any_stored = select(table.c.id).filter_by(tenant=record.tenant).limit(1)
            if first and connection.execute(any_stored).first() is not None:
                return False
            return insert_if_absent(connection, table, {**row, "record": whole})

    def list(self, tenant: str) -> Sequence[TokenRecord]:
        """Return the tokens of a tenant, without browser sessions, in the order of being made."""
        query = select(table).where(table.c.principal.is_(None)).filter_by(tenant=tenant)
        with self._database.read() as connection:
            records = [_of_row(row) for row in connection.execute(query).mappings()]
        return sorted(records, key=lambda record: (record.created_at, record.id))

    def revoke(self, token_id: str, now: float, tenant: str) -> bool:
        """Revoke a token of a tenant, and its browser sessions; return whether there is one."""
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
    """Webhooks by their ids. Times are seconds since 1970."""

    def hold(self, webhook_id: str, held: float, until: float, now: float, first: int) -> int | None:
        """Hold a webhook `until` a time, and return the number of the last event that was sent.

        None: another process holds it. `held`: until when the caller holds it, or a time that is over; `first`: the
        number for a webhook that is new.
        """
        with self._database.write(durable=False) as connection:
            insert_if_absent(connection, webhooks, {"id": webhook_id, "seq": first, "held_until": 0.0})
            row = connection.execute(select(webhooks).filter_by(id=webhook_id).with_for_update()).one()
            if row.held_until > now and row.held_until != held:
                return None
            connection.execute(update(webhooks).filter_by(id=webhook_id).values(held_until=until))
            return int(row.seq)

    def advance(self, webhook_id: str, held: float, seq: int) -> bool:
        """Note the number of the last event that was sent, and return whether the caller still holds the webhook."""
        with self._database.write(durable=False) as connection:
            done = connection.execute(update(webhooks).filter_by(id=webhook_id, held_until=held).values(seq=seq))
            return done.rowcount == 1
