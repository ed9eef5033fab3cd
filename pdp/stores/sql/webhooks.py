"""How far each webhook has come, in a database, and which process sends to it."""

from sqlalchemy import select, update

from pdp.stores.sql.database import DatabaseStore
from pdp.stores.sql.tables import insert_if_absent, webhooks


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
