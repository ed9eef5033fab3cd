"""Budgets: the sums of cumulative limits, the store that keeps them, and the one in memory.

    reserve ──> the tool runs ── commit ───> counts until its window is over
                             ├── release ──> as if it had never been
                             └── neither: nobody knows; it counts, and is listed when the tool cannot run any more

What is reserved counts in the window that it was reserved in, whenever its tool ends. A clock that is wrong for a while
frees nothing: an amount counts for each caller until that caller's clock has passed its end, and stays stored for
`GRACE` seconds after it.
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
"""For how many seconds an amount stays stored after its end: a clock may be ahead by as much and empty no budget."""


class OpenReservation(NamedTuple):
    """What is reserved for a call of which nobody knows what came: of the budget `names`, so many units.

    `id` is that of the decision by which the call was allowed.
    """

    id: str
    names: str
    amount: int

    def as_json(self) -> dict[str, Any]:
        """Return whose budget it is (`tenant`, `limit`, `per`, `holder`), and the amount as a decimal; StoreError."""
        try:
            tenant, limit, per, holder, unit, *_ = orjson.loads(self.names)
            amount = format(self.amount * Decimal(unit), "f")
        except (ValueError, TypeError, ArithmeticError) as error:
            raise StoreError(
                f"the budget that {self.id} holds of cannot be read", hint="another program changed it"
            ) from error
        return {"id": self.id, "amount": amount, "limit": limit, "per": per, "holder": holder, "tenant": tenant}


class BudgetStore(Protocol):
    """A store of budgets. Safe to share between threads; each method is one atomic step, and raises StoreError.

    `blocking`: whether its methods wait for a disk or a network. Times are seconds since 1970.
    """

    blocking: bool

    def spent(self, take: Take, now: float) -> Spent:
        """Return what the budget of `take` holds."""

    def reserve(
        self,
        reservation_id: str,
        takes: Sequence[Take],
        *,
        now: float,
        running_until: float,
        within: Transaction | None = None,
    ) -> bool:
        """Take all of `takes`, or nothing where one passes its cap or has another currency; return whether it did.

        It checks and adds in one step: two callers never both take what is there for one. `within`: the transaction to
        do it in, for a store of the same database; it has to be rolled back where nothing is taken.
        """

    def commit(self, reservation_id: str, *, unknown_at: float | None = None) -> bool:
        """Let what is reserved be spent; with a time, only if nobody knows of it then. Return whether anything was."""

    def release(self, reservation_id: str) -> None:
        """Give back what is reserved; nothing happens where it counts no more."""

    def unknown(self, now: float) -> Sequence[OpenReservation]:
        """Return what is neither committed nor released, and whose tool cannot run any more."""

    def prune(self, now: float) -> int:
        """Forget the budgets whose amounts all ended more than `GRACE` seconds ago, and return how many."""


class _Amount(NamedTuple):
    reservation: OpenReservation
    ends: float
    running_until: float | None

    def is_unknown(self, now: float) -> bool:
        return self.running_until is not None and self.running_until <= now


@dataclass(slots=True)
class _Budget:
    """One sum: its amounts by the id of their reservation, in the order in which they end. `used` is all of them."""

    latest: float
    used: int = 0
    currency: str | None = None
    amounts: dict[str, _Amount] = field(default_factory=dict)

    def at(self, now: float, grace: float = GRACE) -> None:
        """Forget the amounts that ended more than `grace` seconds ago."""
        self.latest = max(self.latest, now)
        while (oldest := next(iter(self.amounts.items()), None)) and oldest[1].ends <= self.latest - grace:
            self.used -= self.amounts.pop(oldest[0]).reservation.amount

    def counting(self, now: float) -> int:
        """Return the sum of the amounts that have not ended at `now`."""
        over = takewhile(lambda amount: amount.ends <= now, self.amounts.values())
        return self.used - sum(amount.reservation.amount for amount in over)


class MemoryBudgets:
    """Budgets in memory, of at most 100,000 calls; a `BudgetStore`."""

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
        within: Transaction | None = None,  # noqa: ARG002 - of databases
    ) -> bool:
        """Take all of `takes`, or nothing where one passes its cap or has another currency.

        StoreFullError: 100,000 calls count in budgets in memory.
        """
        with self._lock:
            if len(self._reserved) >= CAPACITY:
                self._prune(now, grace=0)
                if len(self._reserved) >= CAPACITY:
                    raise StoreFullError(f"{CAPACITY} calls count in budgets in memory", hint="use a database")
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
            held = [(budget, budget.amounts[reservation_id]) for budget in self._of(reservation_id)]
            held = [(budget, amount) for budget, amount in held if unknown_at is None or amount.is_unknown(unknown_at)]
            for budget, amount in held:
                budget.amounts[reservation_id] = amount._replace(running_until=None)
            return bool(held)

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
            over = [name for name, budget in self._budgets.items() if not budget.amounts]
            for name in over:
                del self._budgets[name]
            self._reserved = {name: names for name, names in self._reserved.items() if any(self._of(name))}
            return len(over)

    def _of(self, reservation_id: str) -> Sequence[_Budget]:
        held = map(self._budgets.get, self._reserved.get(reservation_id, ()))
        return [budget for budget in held if budget is not None and reservation_id in budget.amounts]
