"""Recorded requests in a database: read with their audit events, and deleted when their time is over."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sqlalchemy import delete, select

from pdp.stores.sql.database import DatabaseStore
from pdp.stores.sql.events import Wanted
from pdp.stores.sql.tables import audit, requests

_PAGE: Final = 1000


class SqlRequests(DatabaseStore):
    """The recorded requests in a database, encrypted. `SqlAudit` stores them, each with its event."""

    def read(self, seq: int) -> bytes | None:
        """Return the record of an event; None if its request was not recorded, or was deleted."""
        with self._database.read() as connection:
            sealed: bytes | None = connection.execute(select(requests.c.sealed).where(requests.c.seq == seq)).scalar()
        return sealed

    def records(self, wanted: Mapping[str, Any]) -> Iterator[tuple[str, bytes | None]]:
        """Yield the lines of the decisions with these fields of `Wanted`, in order, each with its record, if any."""
        query = select(audit.c.seq, audit.c.line, requests.c.sealed)
        query = query.where(*Wanted(**wanted).conditions())
        query = query.outerjoin_from(audit, requests, audit.c.seq == requests.c.seq).order_by(audit.c.seq).limit(_PAGE)
        after = -1
        while True:
            with self._database.read() as connection:
                rows = connection.execute(query.where(audit.c.seq > after)).all()
            if not rows:
                return
            yield from ((line, sealed) for _, line, sealed in rows)
            after = rows[-1].seq

    def prune(self, now: float) -> int:
        """Delete the records whose time is over, and return how many there were."""
        with self._database.write() as connection:
            return connection.execute(delete(requests).where(requests.c.expires_at <= now)).rowcount
