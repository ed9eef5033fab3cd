"""The run ledger in a database: for all processes, and after a restart.

Labels of a run stand in its row, which whoever adds to it holds until the end of the transaction; values are rows that
are only inserted. Nothing of a result is in clear: values are keyed hashes, with the call that brought them in.
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

_SELDOM: Final = LIFETIME / 24  # for how many seconds the use of a run is not written where nothing else is
_EACH: Final = 2  # how many runs that have expired each new run forgets; for what is not, there is `prune`
_AT_ONCE: Final = 100  # likewise, `prune` in one transaction
_OPEN, _OVER = "open", "over"

# Made once: making them takes longer than SQLite takes to answer.
_RUN = select(runs).where(runs.c.id == bindparam("run")).with_for_update()
_PUT = update(runs).where(runs.c.seq == bindparam("run"))
_USED = (
    update(runs)
    .where(runs.c.id == bindparam("run"), runs.c.state == _OPEN, runs.c.used_at < bindparam("now"))
    .values(used_at=bindparam("now"))
)


class _Statements:
    """What each dialect says in its own way: ids, and values with where they came from, as one JSON text."""

    def __init__(self, dialect: str) -> None:
        text = bindparam("json", type_=Text)
        asked: ColumnElement[bool]
        insert: Any
        if dialect == "sqlite":
            asked = values.c.id.in_(select(func.json_each(text).table_valued("value").c.value))
            pairs, insert = func.json_each(text).table_valued("key", "value"), sqlite.insert
        else:
            # As an array, since PostgreSQL would guess how many they are, and read all values of the run.
            names = select(func.json_array_elements_text(cast(text, JSON)))
            asked = values.c.id == func.any(func.array(names.scalar_subquery()))
            pairs, insert = func.json_each_text(cast(text, JSON)).table_valued("key", "value"), postgresql.insert
        of_run = runs.outerjoin(values, (values.c.run == runs.c.seq) & asked)
        self.read = select(runs, values.c.id.label("value"), values.c.origin).select_from(of_run)
        self.read = self.read.where(runs.c.id == bindparam("run"))
        run = bindparam("run", type_=BigInteger)
        self.count = select(func.count()).select_from(values).where(values.c.run == run, asked)
        added = select(run, pairs.c.key, pairs.c.value).where(true())
        self.add = insert(values).from_select(["run", "id", "origin"], added).on_conflict_do_nothing()


_STATEMENTS: Final = {dialect: _Statements(dialect) for dialect in ("sqlite", "postgresql")}


class SqlLedger(DatabaseStore):
    """Runs in a database; a `LedgerStore`. All that use the database have the same key."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._statements = _STATEMENTS[database.dialect]

    @cached_property
    def key(self) -> bytes:
        with self._database.read() as connection:
            secret: str | None = connection.execute(select(ledger_key.c.secret)).scalar()
        if secret is None:
            raise StoreError("the key of the run ledger is not there", hint="restore the table pdp_ledger_key")
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
        # What a power failure takes of the rest says where a value came from; what the run carries is still known.
        with self._database.write(durable=labels != RunLabels()) as connection:
            row = _locked(connection, run, now)
            before, count, named = _labels(row, now), row.values_count, {"run": row.seq, "json": text}
            if count + len(sources) > MOST_VALUES:
                asked = {**named, "json": _json(list(sources))}
                known: int = connection.execute(self._statements.count, asked).scalar_one()
                if count + len(sources) - known > MOST_VALUES:
                    labels, sources = overfull(count, labels, sources)
                    named["json"] = _json({name: origins[origin] for name, origin in sources.items()})
            if sources:
                # Without `preserve_rowcount` the count of an INSERT is -1 with psycopg, whatever happened.
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
                over, gone = _forget(connection, now, _AT_ONCE)
            count += over
            if over + gone == 0:
                return count


def _locked(connection: Connection, run: str, now: float) -> Row[Any]:
    """Return the row of a run, made where it is absent, which no other transaction changes until this one ends."""
    while (row := connection.execute(_RUN, {"run": run}).first()) is None:
        new = {"id": run, "state": _OPEN, "used_at": now, "labels": _labels_text(RunLabels()), "values_count": 0}
        if insert_if_absent(connection, runs, new):
            _forget(connection, now, _EACH)
    return row


def _forget(connection: Connection, now: float, most: int) -> tuple[int, int]:
    """Forget what some runs that have expired knew, and that some were; return of how many, and how many runs.

    Those that another transaction holds are left to it.
    """
    numbers = {}
    for state, seconds in ((_OPEN, LIFETIME), (_OVER, REMEMBERED)):
        query = select(runs.c.seq).where(runs.c.state == state, runs.c.used_at <= now - seconds)
        query = query.order_by(runs.c.used_at).limit(most).with_for_update(skip_locked=True)
        numbers[state] = connection.execute(query).scalars().all()
    if numbers[_OPEN]:
        connection.execute(delete(values).where(values.c.run.in_(numbers[_OPEN])))
        over = update(runs).where(runs.c.seq.in_(numbers[_OPEN])).values(state=_OVER, labels="", values_count=0)
        connection.execute(over)
    if numbers[_OVER]:
        connection.execute(delete(runs).where(runs.c.seq.in_(numbers[_OVER])))
    return len(numbers[_OPEN]), len(numbers[_OVER])


def _labels(row: Row[Any], now: float) -> RunLabels:
    """Return the labels in a run's row; RunExpiredError where its time is over."""
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
