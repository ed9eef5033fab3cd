"""Budgets in a database: all processes share one total per budget, exact even with concurrent calls.

A budget is a row with its total. Each amount is a row with the time at which the amount stops counting. A change locks
the budget's row. The budgets of a call are locked in a fixed order, so that calls do not deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, case, delete, func, insert, or_, select, update

from pdp.contract.budgets import Spent, Take
from pdp.stores.approvals import Transaction
from pdp.stores.budgets import GRACE, BudgetSums, OpenReservation
from pdp.stores.sql.database import DatabaseStore
from pdp.stores.sql.tables import budgets, dialect_insert, reservations


def _later(first: ColumnElement[Any], second: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((first > second, first), else_=second)


_OF_BUDGET = reservations.c.budget == budgets.c.id
_NOW: ColumnElement[Any] = bindparam("now")
_ENDED = select(func.coalesce(func.sum(reservations.c.amount), 0)).where(_OF_BUDGET, reservations.c.ends <= _NOW)
_FIRST = select(func.min(reservations.c.ends)).where(_OF_BUDGET, reservations.c.ends > _NOW)
_SPENT = select(
    budgets.c.used - _ENDED.scalar_subquery(), _FIRST.scalar_subquery(), budgets.c.currency
).where(budgets.c.id == bindparam("budget"))  # fmt: skip
_FORGET = (
    delete(reservations)
    .where(reservations.c.budget == bindparam("budget"), reservations.c.ends <= bindparam("long_ago"))
    .returning(reservations.c.amount)
)
_KEPT = budgets.c.used - bindparam("expired")
_COUNTING = _KEPT - _ENDED.scalar_subquery()
_ADD = (
    update(budgets)
    .where(budgets.c.id == bindparam("budget"))
    .where(_COUNTING + bindparam("amount") <= bindparam("cap"))
    .where(or_(_COUNTING == 0, budgets.c.currency.is_not_distinct_from(bindparam("now_in"))))
    .values(
        used=_KEPT + bindparam("amount"), currency=bindparam("now_in"), ends=_later(budgets.c.ends, bindparam("until"))
    )
)


class _OverCapError(Exception):
    """An amount does not fit into its budget's cap, or the budget is in another currency."""


class SqlBudgets(DatabaseStore):
    """A `BudgetStore` in a database."""

    def spent(self, take: Take, now: float) -> Spent:
        with self._database.read() as connection:
            row = connection.execute(_SPENT, {"budget": take.budget, "now": now}).first()
        # PostgreSQL returns sums as decimals, so they are converted.
        return Spent(0) if row is None else Spent(int(row[0]), row[1], row[2])

    def reserve(
        self,
        reservation_id: str,
        takes: Sequence[Take],
        *,
        now: float,
        running_until: float,
        within: Transaction | None = None,
    ) -> bool:
        try:
            with self._database.joined(within) as connection:
                for take in sorted(takes):
                    end = _take(connection, take, now)
                    row = {"id": reservation_id, "budget": take.budget, "names": take.names, "amount": take.amount}
                    connection.execute(insert(reservations), {**row, "ends": end, "running_until": running_until})
        except _OverCapError:
            return False
        return True

    def commit(self, reservation_id: str, *, unknown_at: float | None = None) -> bool:
        spent = update(reservations).filter_by(id=reservation_id).values(running_until=None)
        spent = spent if unknown_at is None else spent.where(reservations.c.running_until <= unknown_at)
        with self._database.write() as connection:
            return connection.execute(spent).rowcount > 0

    def release(self, reservation_id: str) -> None:
        its_budgets = select(reservations.c.budget).filter_by(id=reservation_id)
        locked = select(budgets.c.id).where(budgets.c.id.in_(its_budgets)).order_by(budgets.c.id).with_for_update()
        returning = (reservations.c.budget, reservations.c.amount)
        with self._database.write() as connection:
            connection.execute(locked)
            released = connection.execute(delete(reservations).filter_by(id=reservation_id).returning(*returning)).all()
            for budget, amount in released:
                connection.execute(update(budgets).filter_by(id=budget).values(used=budgets.c.used - amount))

    def unknown(self, now: float) -> Sequence[OpenReservation]:
        columns = (reservations.c.id, reservations.c.names, reservations.c.amount)
        query = select(*columns).where(reservations.c.running_until <= now).order_by(reservations.c.running_until)
        with self._database.read() as connection:
            return [OpenReservation(*row) for row in connection.execute(query)]

    def sums(self, now: float, limit: int, *, after: str = "", of: Sequence[str] | None = None) -> Sequence[BudgetSums]:
        """Return the sums of up to `limit` budgets in which amounts count at `now`, in the order of their ids.

        Args:
            now: the time, in seconds since 1970.
            limit: the largest number of budgets.
            after: only budgets with a larger id.
            of: only the budgets with these ids.
        """
        page = select(budgets.c.id, budgets.c.currency).where(budgets.c.ends > now, budgets.c.id > after)
        page = page if of is None else page.where(budgets.c.id.in_(of))
        shown = page.order_by(budgets.c.id).limit(limit).subquery()
        until = reservations.c.running_until
        states = (until.is_(None), until > now, until <= now)
        columns = [func.sum(case((state, reservations.c.amount), else_=0)) for state in states]
        query = (
            select(shown.c.id, reservations.c.names, *columns, shown.c.currency, func.min(reservations.c.ends))
            .join(reservations, reservations.c.budget == shown.c.id)
            .where(reservations.c.ends > now)
            .group_by(shown.c.id, reservations.c.names, shown.c.currency)
            .order_by(shown.c.id)
        )
        with self._database.read() as connection:
            return [
                BudgetSums(row[0], row[1], int(row[2]), int(row[3]), int(row[4]), row[5], row[6])
                for row in connection.execute(query)
            ]

    def prune(self, now: float) -> int:
        with self._database.write() as connection:
            count = connection.execute(delete(budgets).where(budgets.c.ends <= now - GRACE)).rowcount
            connection.execute(delete(reservations).where(reservations.c.budget.not_in(select(budgets.c.id))))
        return count


def _take(connection: Connection, take: Take, now: float) -> float:
    """Add an amount to its budget, and return the end of the amount's window. May raise `_OverCapError`."""
    made = dialect_insert(connection)(budgets).values(id=take.budget, latest=now, ends=now, used=0)
    # The upsert locks the budget's row until the end of the transaction.
    locked = made.on_conflict_do_update(
        index_elements=["id"], set_={"latest": _later(budgets.c.latest, made.excluded.latest)}
    ).returning(budgets.c.latest)
    latest: float = connection.execute(locked).scalar_one()
    expired = sum(connection.execute(_FORGET, {"budget": take.budget, "long_ago": latest - GRACE}).scalars())
    end = take.window.end(latest)
    added = {
        "budget": take.budget, "expired": expired, "amount": take.amount, "cap": take.cap, "now_in": take.currency,
        "now": now, "until": end,
    }  # fmt: skip
    if connection.execute(_ADD, added).rowcount != 1:
        raise _OverCapError
    return end
