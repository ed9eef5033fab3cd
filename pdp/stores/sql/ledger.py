"""The run ledger in a database, shared by all processes and kept after a restart.

A run's labels are in its row, which is locked by any transaction that adds to the run. Values are rows that are only
inserted. No result is stored in clear: values are keyed hashes, with the call whose result contained them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, Final

import orjson
from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    Text,
    bindparam,
    cast,
    delete,
    func,
    select,
    true,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from pdp.errors import StoreError
from pdp.ledger.ledger import LIFETIME, MOST_VALUES, REMEMBERED, Origin, RunExpiredError, RunLabels, RunView, overfull
from pdp.stores.sql.database import Database, DatabaseStore
from pdp.stores.sql.tables import insert_if_absent, ledger_key, runs
from pdp.stores.sql.tables import run_values as values

_SELDOM: Final = LIFETIME / 24  # If a run gets no new data, its last use is written at most once in this many seconds.
_EACH: Final = 2  # Each new run deletes at most this many expired runs. `prune` deletes the others.
_AT_ONCE: Final = 100  # `prune` deletes this many runs per transaction.
_OPEN, _OVER = "open", "over"

# The statements are built only once, because building one takes longer than SQLite takes to run it.
_RUN = select(runs).where(runs.c.id == bindparam("run")).with_for_update()
_PUT = update(runs).where(runs.c.seq == bindparam("run"))
_USED = (
    update(runs)
    .where(runs.c.id == bindparam("run"), runs.c.state == _OPEN, runs.c.used_at < bindparam("now"))
    .values(used_at=bindparam("now"))
)


class _Statements:
    """SQL statements that differ between SQLite and PostgreSQL. Ids and origins are passed as JSON text."""

    def __init__(self, dialect: str) -> None:
        text = bindparam("json", type_=Text)
        wanted: ColumnElement[bool]
        insert: Any
        if dialect == "sqlite":
            wanted = values.c.id.in_(select(func.json_each(text).table_valued("value").c.value))
            pairs, insert = func.json_each(text).table_valued("key", "value"), sqlite.insert
        else:
            # The ids are passed as an array. If they were passed otherwise, PostgreSQL would misjudge their number and
            # read all values of the run.
            names = select(func.json_array_elements_text(cast(text, JSON)))
            wanted = values.c.id == func.any(func.array(names.scalar_subquery()))
            pairs, insert = func.json_each_text(cast(text, JSON)).table_valued("key", "value"), postgresql.insert
        of_run = runs.outerjoin(values, (values.c.run == runs.c.seq) & wanted)
        self.read = select(runs, values.c.id.label("value"), values.c.origin).select_from(of_run)
        self.read = self.read.where(runs.c.id == bindparam("run"))
        run = bindparam("run", type_=BigInteger)
        self.count = select(func.count()).select_from(values).where(values.c.run == run, wanted)
        added = select(run, pairs.c.key, pairs.c.value).where(true())
        self.add = insert(values).from_select(["run", "id", "origin"], added).on_conflict_do_nothing()


_STATEMENTS: Final = {dialect: _Statements(dialect) for dialect in ("sqlite", "postgresql")}


class SqlLedger(DatabaseStore):
    """A `LedgerStore` in a database. Its hash key is in the database, so all processes compute the same ids."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._statements = _STATEMENTS[database.dialect]

    @cached_property
    def key(self) -> bytes:
        with self._database.read() as connection:
            secret: str | None = connection.execute(select(ledger_key.c.secret)).scalar()
        if secret is None:
            raise StoreError("the key of the run ledger is missing", hint="restore the table pdp_ledger_key")
        return bytes.fromhex(secret)

    def read(self, run: str, ids: Collection[str], now: float) -> RunView:
        with self._database.read() as connection:
            rows = connection.execute(self._statements.read, {"run": run, "json": _json(list(ids))}).all()
        if not rows:
            return RunView(RunLabels(), {})
        labels = _labels(rows[0], now)
        if rows[0].used_at + _SELDOM < now:
            with self._database.write(durable=False) as connection:
                connection.execute(_USED, {"run": run, "now": now})
        return RunView(labels, {row.value: Origin(*orjson.loads(row.origin)) for row in rows if row.value is not None})

    def write(self, run: str, labels: RunLabels, sources: Mapping[str, Origin], now: float) -> None:
        origins = {origin: _json(origin) for origin in set(sources.values())}
        text = _json({name: origins[origin] for name, origin in sources.items()})
        # If there are no new labels, the write need not be durable: a power failure can then lose only sources of
        # values.
        with self._database.write(durable=labels != RunLabels()) as connection:
            row = _locked(connection, run, now)
            before, count, named = _labels(row, now), row.values_count, {"run": row.seq, "json": text}
            if count + len(sources) > MOST_VALUES:
                wanted = {**named, "json": _json(list(sources))}
                known: int = connection.execute(self._statements.count, wanted).scalar_one()
                if count + len(sources) - known > MOST_VALUES:
                    labels, sources = overfull(count, labels, sources)
                    named["json"] = _json({name: origins[origin] for name, origin in sources.items()})
            if sources:
                # Without `preserve_rowcount`, psycopg always reports -1 for an INSERT.
                options = {"preserve_rowcount": True}
                count += connection.execute(self._statements.add, named, execution_options=options).rowcount
            after = before.joined(labels)
            if (after, count) != (before, row.values_count) or row.used_at + _SELDOM < now:
                state = {"labels": _labels_text(after), "values_count": count, "used_at": max(row.used_at, now)}
                connection.execute(_PUT, {"run": row.seq, **state})

    def end(self, run: str) -> None:
        with self._database.write(durable=False) as connection:
            row = connection.execute(_RUN, {"run": run}).first()
            if row is not None:
                connection.execute(delete(values).where(values.c.run == row.seq))
                connection.execute(delete(runs).where(runs.c.seq == row.seq))

    def prune(self, now: float) -> int:
        count = 0
        while True:
            with self._database.write() as connection:
                expired, deleted = _prune(connection, now, _AT_ONCE)
            count += expired
            if expired + deleted == 0:
                return count


def _locked(connection: Connection, run: str, now: float) -> Row[Any]:
    """Return the row of a run, created if necessary. The row is locked until the transaction ends."""
    while (row := connection.execute(_RUN, {"run": run}).first()) is None:
        new = {"id": run, "state": _OPEN, "used_at": now, "labels": _labels_text(RunLabels()), "values_count": 0}
        if insert_if_absent(connection, runs, new):
            _prune(connection, now, _EACH)
    return row


def _prune(connection: Connection, now: float, most: int) -> tuple[int, int]:
    """Delete the data of at most `most` expired runs and as many old run ids. Skip locked rows. Return both counts."""
    numbers = {}
    for state, seconds in ((_OPEN, LIFETIME), (_OVER, REMEMBERED)):
        query = select(runs.c.seq).where(runs.c.state == state, runs.c.used_at <= now - seconds)
        query = query.order_by(runs.c.used_at).limit(most).with_for_update(skip_locked=True)
        numbers[state] = connection.execute(query).scalars().all()
    if numbers[_OPEN]:
        connection.execute(delete(values).where(values.c.run.in_(numbers[_OPEN])))
        expired = update(runs).where(runs.c.seq.in_(numbers[_OPEN])).values(state=_OVER, labels="", values_count=0)
        connection.execute(expired)
    if numbers[_OVER]:
        connection.execute(delete(runs).where(runs.c.seq.in_(numbers[_OVER])))
    return len(numbers[_OPEN]), len(numbers[_OVER])


def _labels(row: Row[Any], now: float) -> RunLabels:
    if row.state == _OVER or row.used_at + LIFETIME <= now:
        raise RunExpiredError
    try:
        untrusted, markings, plan, full = orjson.loads(row.labels)
        return RunLabels(frozenset(untrusted), frozenset(markings), None if plan is None else tuple(plan), full)
    except (ValueError, TypeError) as error:
        raise StoreError(
            "a run of pdp_runs cannot be read", hint="another program changed it, or a newer release wrote it"
        ) from error


def _labels_text(labels: RunLabels) -> str:
    return _json([sorted(labels.untrusted), sorted(labels.markings), labels.plan, labels.full])


def _json(value: Any) -> str:
    return orjson.dumps(value, default=list).decode()
