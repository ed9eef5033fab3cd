"""Budgets: how much of each cumulative limit is spent, the protocol of the store, and the store in memory.

    reserve ──> the tool runs ── commit ───> counts until its window ends
                             ├── release ──> no longer counts
                             └── neither ──> counts, and is listed as unknown once the tool cannot run any more

A reservation counts in the window in which it was made, no matter when its tool ends. A wrong clock cannot free a
budget: for each caller, an amount counts until that caller's clock passes the window's end, and is kept `GRACE` longer.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import takewhile
from typing import Any, Final, NamedTuple, Protocol

import orjson

from pdp.contract.budgets import Spent, Take
from pdp.errors import StoreError, StoreFullError
from pdp.stores.approvals import Transaction
from pdp.stores.memory import CAPACITY

GRACE: Final = 2 * 86_400.0
"""Seconds for which an amount is stored after its end, so that a clock this far ahead cannot free a budget."""


class OpenReservation(NamedTuple):
    """A reserved amount of a call whose outcome is unknown."""

    id: str  # The id of the decision that allowed the call.
    names: str  # Identifies the budget.
    amount: int  # In the budget's units.

    def as_json(self) -> dict[str, Any]:
        """Return `tenant`, `limit`, `per`, `holder` and decimal amount. Raise `StoreError` if the record is damaged."""
        try:
            tenant, limit, per, holder, unit, *_ = orjson.loads(self.names)
            amount = format(self.amount * Decimal(unit), "f")
        except (ValueError, TypeError, ArithmeticError) as error:
            raise StoreError(
                f"the budget of reservation {self.id} cannot be read", hint="another program changed it"
            ) from error
        return {"id": self.id, "amount": amount, "limit": limit, "per": per, "holder": holder, "tenant": tenant}


class BudgetSums(NamedTuple):
    """The amounts that count in a budget at one time, in units: of finished calls, of running calls, and unknown ones.

    `until` is when the first amount stops counting.
    """

    budget: str
    names: str
    spent: int
    reserved: int
    unknown: int
    currency: str | None
    until: float | None

    def named(self) -> dict[str, Any]:
        """Return `tenant`, `limit`, `per`, `holder` and the sums as Decimal. Raise StoreError for a damaged record."""
        named = OpenReservation(self.budget, self.names, 1).as_json()
        unit = Decimal(named.pop("amount"))
        sums = {name: getattr(self, name) * unit for name in ("spent", "reserved", "unknown")}
        return {**named, **sums}


class BudgetStore(Protocol):
    """A thread-safe store of budgets. Each method is one atomic step. Times are seconds since 1970."""

    blocking: bool  # Whether the methods wait for a disk or a network.

    def spent(self, take: Take, now: float) -> Spent:
        """Return the amount that is spent or reserved of the budget that `take` names."""

    def reserve(
        self,
        reservation_id: str,
        takes: Sequence[Take],
        *,
        now: float,
        running_until: float,
        within: Transaction | None = None,
    ) -> bool:
        """Reserve all amounts in `takes`. Reserve none and return False if one exceeds its cap or has another currency.

        `within` is a transaction of the same database. The caller must roll back if nothing is reserved.
        """

    def commit(self, reservation_id: str, *, unknown_at: float | None = None) -> bool:
        """Mark a reservation as spent; with `unknown_at`, only if unknown at that time. Return whether marked."""

    def release(self, reservation_id: str) -> None:
        """Release a reservation, so that its amounts no longer count."""

    def unknown(self, now: float) -> Sequence[OpenReservation]:
        """Return the reservations that are neither committed nor released, although their tool cannot run any more."""

    def prune(self, now: float) -> int:
        """Delete budgets whose amounts all ended more than `GRACE` seconds ago. Return how many were deleted."""


class _Amount(NamedTuple):
    reservation: OpenReservation
    ends: float
    running_until: float | None

    def is_unknown(self, now: float) -> bool:
        return self.running_until is not None and self.running_until <= now


@dataclass(slots=True)
class _Budget:
    """A budget: its amounts by reservation id, in the order in which their windows end, and their total (`used`)."""

    latest: float
    used: int = 0
    currency: str | None = None
    amounts: dict[str, _Amount] = field(default_factory=dict)

    def at(self, now: float, grace: float = GRACE) -> None:
        """Delete the amounts whose windows ended more than `grace` seconds ago."""
        self.latest = max(self.latest, now)
        while (oldest := next(iter(self.amounts.items()), None)) and oldest[1].ends <= self.latest - grace:
            self.used -= self.amounts.pop(oldest[0]).reservation.amount

    def counting(self, now: float) -> int:
        """Return the sum of the amounts whose windows have not ended at `now`."""
        ended = takewhile(lambda amount: amount.ends <= now, self.amounts.values())
        return self.used - sum(amount.reservation.amount for amount in ended)


class MemoryBudgets:
    """A `BudgetStore` in memory, with reservations of at most 100,000 calls."""

    blocking = False

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._budgets: dict[str, _Budget] = {}
        self._reserved: dict[str, Sequence[str]] = {}

    def spent(self, take: Take, now: float) -> Spent:
        with self._lock:
            budget = self._budgets.get(take.budget)
            if budget is None:
                return Spent(0)
            budget.at(now)
            ends = next((amount.ends for amount in budget.amounts.values() if amount.ends > now), None)
            return Spent(budget.counting(now), ends, budget.currency)

    def reserve(
        self,
        reservation_id: str,
        takes: Sequence[Take],
        *,
        now: float,
        running_until: float,
        within: Transaction | None = None,  # noqa: ARG002 - for databases
    ) -> bool:
        with self._lock:
            if len(self._reserved) >= CAPACITY:
                self._prune(now, grace=0)
                if len(self._reserved) >= CAPACITY:
                    raise StoreFullError(
                        f"the store in memory is full: it keeps the amounts of {CAPACITY} calls", hint="use a database"
                    )
            opened = [(self._budgets.setdefault(take.budget, _Budget(now)), take) for take in takes]
            for budget, take in opened:
                budget.at(now)
                used = budget.counting(now)
                if (used and budget.currency != take.currency) or used + take.amount > take.cap:
                    return False
            for budget, take in opened:
                budget.used += take.amount
                budget.currency = take.currency
                reservation = OpenReservation(reservation_id, take.names, take.amount)
                budget.amounts[reservation_id] = _Amount(reservation, take.window.end(budget.latest), running_until)
            self._reserved[reservation_id] = [take.budget for take in takes]
            return True

    def commit(self, reservation_id: str, *, unknown_at: float | None = None) -> bool:
        with self._lock:
            rows = [(budget, budget.amounts[reservation_id]) for budget in self._of(reservation_id)]
            rows = [(budget, amount) for budget, amount in rows if unknown_at is None or amount.is_unknown(unknown_at)]
            for budget, amount in rows:
                budget.amounts[reservation_id] = amount._replace(running_until=None)
            return bool(rows)

    def release(self, reservation_id: str) -> None:
        with self._lock:
            for budget in self._of(reservation_id):
                budget.used -= budget.amounts.pop(reservation_id).reservation.amount
            self._reserved.pop(reservation_id, None)

    def unknown(self, now: float) -> Sequence[OpenReservation]:
        with self._lock:
            return [
                amount.reservation
                for budget in self._budgets.values()
                for amount in budget.amounts.values()
                if amount.is_unknown(now)
            ]

    def prune(self, now: float) -> int:
        return self._prune(now, GRACE)

    def _prune(self, now: float, grace: float) -> int:
        with self._lock:
            for budget in self._budgets.values():
                budget.at(now, grace)
            empty = [name for name, budget in self._budgets.items() if not budget.amounts]
            for name in empty:
                del self._budgets[name]
            self._reserved = {name: names for name, names in self._reserved.items() if any(self._of(name))}
            return len(empty)

    def _of(self, reservation_id: str) -> Sequence[_Budget]:
        budgets = map(self._budgets.get, self._reserved.get(reservation_id, ()))
        return [budget for budget in budgets if budget is not None and reservation_id in budget.amounts]
