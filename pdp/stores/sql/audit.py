"""The stream of events in a database, which several processes append to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from sqlalchemy import select, text

from pdp.audit.chain import AuditEvent, AuditLog
from pdp.errors import AuditError, StoreError
from pdp.stores.sql.tables import audit

if TYPE_CHECKING:
    from pdp.stores.sql.database import Database

_LOCK = 0x7064705F61756400  # a number that no other program takes a lock of PostgreSQL with


class SqlAudit(AuditLog):
    """A stream in a database. Its events are committed when `append` returns."""

    may_wait = True

    def __init__(self, database: Database, key: bytes | None = None) -> None:
        super().__init__(key)
        self._database = database

    def _record(self, event: AuditEvent) -> None:
        try:
            with self._database.write(durable=False) as connection:
                if connection.dialect.name == "postgresql":
                    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
                last = connection.execute(select(audit.c.line).order_by(audit.c.seq.desc()).limit(1)).scalar()
                if last is not None:
                    before = orjson.loads(last)
                    self._seq, self._prev = before["seq"] + 1, before["hash"]
                line, _ = self._chained(event)
                row = {"seq": self._seq, "type": event["type"], "approval_id": event.get("approval_id")}
                connection.execute(audit.insert(), {**row, "line": line.decode()})
        except StoreError as error:
            raise AuditError(error.message, hint=error.hint) from error

    def _write(self, line: bytes, line_hash: str) -> None:
        raise NotImplementedError
