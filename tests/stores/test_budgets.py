"""Budgets in every store. `tests/stores/test_processes.py` tests budgets with several processes."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from pdp.contract.budgets import MOST, RUN_SECONDS, Spent, Take, Window
from pdp.errors import StoreError, StoreFullError
from pdp.stores import budgets as module
from pdp.stores.budgets import GRACE, BudgetStore, MemoryBudgets, OpenReservation

DAY = 86_400.0
MIDNIGHT = 1_782_864_000.0  # 2026-07-01T00:00:00Z, a Wednesday.
NOON = MIDNIGHT + DAY / 2
SLIDING, CALENDAR = Window(3600.0), Window(DAY, calendar=True)


def take(
    amount: int, *, cap: int = 100, window: Window = SLIDING, budget: str = "a", currency: str | None = None
) -> Take:
    return Take(budget, f'["{budget}"]', amount, window, currency, cap)


def reserve(budgets: BudgetStore, name: str, *takes: Take, now: float = NOON) -> bool:
    return budgets.reserve(name, takes, now=now, running_until=now + 60)


def used(budgets: BudgetStore, now: float = NOON, asked: Take | None = None) -> int:
    return budgets.spent(asked or take(0), now).used


@pytest.mark.parametrize(
    ("window", "end"),
    [
        pytest.param(SLIDING, NOON + 3600, id="sliding"),
        pytest.param(CALENDAR, MIDNIGHT + DAY, id="a day"),
        pytest.param(Window(7 * DAY, calendar=True), MIDNIGHT + 5 * DAY, id="a week ends before Monday"),
        pytest.param(Window(None), NOON + RUN_SECONDS, id="a run"),
    ],
)
def test_reservation_counts_until_its_window_ends(budgets: BudgetStore, window: Window, end: float) -> None:
    asked = take(30, window=window)
    assert reserve(budgets, "r", asked)
    assert budgets.spent(asked, end - 1) == Spent(30, end)
    assert budgets.spent(asked, end) == Spent(0)
    assert reserve(budgets, "s", take(100, window=window), now=end)


def test_reservation_at_midnight_counts_in_the_new_calendar_window() -> None:
    assert CALENDAR.end(MIDNIGHT) == MIDNIGHT + DAY
    assert CALENDAR.end(MIDNIGHT - 0.001) == MIDNIGHT


def test_reservation_that_exceeds_the_budget_cap_is_rejected(budgets: BudgetStore) -> None:
    answers = [reserve(budgets, str(amount), take(amount)) for amount in (60, 41, 40, 1)]
    assert (answers, used(budgets)) == ([True, False, True, False], 100)
    # An approved call has no cap, so it may exceed the limit.
    assert reserve(budgets, "approved", take(7, cap=MOST))
    assert used(budgets) == 107


def test_budget_cap_of_zero_rejects_every_reservation(budgets: BudgetStore) -> None:
    assert not reserve(budgets, "r", take(1, cap=0))
    assert budgets.spent(take(0), NOON) == Spent(0)


def test_reserving_for_a_call_reserves_all_of_its_amounts_or_no_amount(budgets: BudgetStore) -> None:
    assert reserve(budgets, "r", take(90, budget="b"))
    for order in ((take(20), take(20, budget="b")), (take(20, budget="b"), take(20, budget="c"))):
        assert not reserve(budgets, "s", *order)
    assert [used(budgets, asked=take(0, budget=name)) for name in "abc"] == [0, 90, 0]
    assert reserve(budgets, "t", take(20), take(10, budget="b"))
    budgets.release("t")
    assert [used(budgets, asked=take(0, budget=name)) for name in "ab"] == [0, 90]


def test_reservation_in_another_currency_is_rejected(budgets: BudgetStore) -> None:
    assert reserve(budgets, "r", take(10, currency="EUR"))
    assert not reserve(budgets, "s", take(10, currency="USD"))
    assert not reserve(budgets, "t", take(10))
    assert budgets.spent(take(0), NOON) == Spent(10, NOON + 3600, "EUR")
    assert reserve(budgets, "u", take(10, currency="USD"), now=NOON + 3600)
    assert budgets.spent(take(0), NOON + 3600).currency == "USD"


def test_second_release_of_a_reservation_changes_nothing(budgets: BudgetStore) -> None:
    assert reserve(budgets, "r", take(60))
    assert reserve(budgets, "s", take(40))
    for _ in range(2):
        budgets.release("r")
    assert used(budgets) == 40
    budgets.commit("s")
    assert used(budgets) == 40


def test_committed_amount_counts_in_the_window_of_its_reservation(budgets: BudgetStore) -> None:
    assert reserve(budgets, "r", take(60, window=CALENDAR), now=MIDNIGHT - 1)
    assert reserve(budgets, "s", take(100, window=CALENDAR), now=MIDNIGHT + 1)
    budgets.commit("r")
    budgets.release("r")
    assert used(budgets, MIDNIGHT + 2, take(0, window=CALENDAR)) == 100


def test_clock_that_goes_back_frees_no_budget(budgets: BudgetStore) -> None:
    assert reserve(budgets, "r", take(60))
    assert reserve(budgets, "s", take(100), now=NOON + 3600)
    for now, sum_then in ((NOON - DAY, 160), (NOON, 160), (NOON + 3600, 100)):
        assert used(budgets, now) == sum_then
        assert not reserve(budgets, "t", take(1), now=now)
    # The window is computed from the latest time that the store has seen, not from the clock of this process.
    assert budgets.spent(take(0), NOON + 3600) == Spent(100, NOON + 7200)


def test_reservation_made_while_the_clock_was_a_day_ahead_frees_no_budget(budgets: BudgetStore) -> None:
    day = take(100, window=CALENDAR)
    assert reserve(budgets, "today", day, now=NOON)
    assert reserve(budgets, "ahead", day, now=NOON + DAY)  # The clock of this process is a day ahead.
    assert budgets.prune(NOON + DAY) == 0
    assert not reserve(budgets, "again", take(1, window=CALENDAR), now=NOON + 1)
    assert not reserve(budgets, "tomorrow", take(1, window=CALENDAR), now=NOON + DAY + 1)
    assert reserve(budgets, "after", day, now=NOON + 2 * DAY)


def test_reservation_with_unknown_outcome_counts_and_is_listed(budgets: BudgetStore) -> None:
    for name in ("killed", "committed", "released"):
        assert reserve(budgets, name, take(10))
    budgets.commit("committed")
    budgets.release("released")
    assert budgets.unknown(NOON + 59) == []
    assert budgets.unknown(NOON + 60) == [OpenReservation("killed", '["a"]', 10)]
    assert used(budgets, NOON + 60) == 20
    # An operator found out that the call with the unknown outcome had no effect, and releases its reservation.
    budgets.release("killed")
    assert (budgets.unknown(NOON + 60), used(budgets, NOON + 60)) == ([], 10)


def test_reservation_with_unknown_outcome_can_be_settled_only_once(budgets: BudgetStore) -> None:
    for name in ("killed", "committed", "released"):
        assert reserve(budgets, name, take(10), take(5, budget="b"))
    assert budgets.commit("committed")
    budgets.release("released")
    names = ("killed", "committed", "released", "never begun")
    # A call that may still be running has no unknown outcome yet, so its amount cannot be settled.
    assert [budgets.commit(name, unknown_at=NOON + 59) for name in names] == [False] * 4
    assert [budgets.commit(name, unknown_at=NOON + 60) for name in names] == [True, False, False, False]
    assert not budgets.commit("killed", unknown_at=NOON + 60)
    assert [used(budgets, asked=take(0, budget=name)) for name in "ab"] == [20, 10]
    budgets.release("killed")
    assert [used(budgets, asked=take(0, budget=name)) for name in "ab"] == [10, 5]


@pytest.mark.parametrize("names", ["{", "1", '["a"]', '["t", "wire.daily", "subject", ["ann"], "x", 1, false]'])
def test_damaged_budget_raises_an_error(names: str) -> None:
    with pytest.raises(StoreError, match="the budget of reservation r cannot be read"):
        OpenReservation("r", names, 10).as_json()


def test_pruning_the_store_deletes_budgets_without_reservations(budgets: BudgetStore) -> None:
    assert reserve(budgets, "r", take(10))
    assert reserve(budgets, "s", take(10, budget="b", window=CALENDAR))
    later = NOON + GRACE
    assert [budgets.prune(now) for now in (NOON + 3600, later, later + 3600, later + 3600)] == [0, 0, 1, 0]
    assert used(budgets, asked=take(0, budget="b")) == 10
    assert budgets.unknown(later) == [OpenReservation("s", '["b"]', 10)]
    assert (budgets.prune(later + DAY), budgets.unknown(later + DAY)) == (1, [])


def test_concurrent_reservations_never_exceed_the_cap(budgets: BudgetStore) -> None:
    with ThreadPoolExecutor(16) as threads:
        answers = list(
            threads.map(lambda number: reserve(budgets, str(number), take(3), take(1, budget="b")), range(60))
        )
    assert (answers.count(True), used(budgets), used(budgets, asked=take(0, budget="b"))) == (33, 99, 33)


def test_concurrent_releases_restore_the_spent_amount(budgets: BudgetStore) -> None:
    assert reserve(budgets, "r", take(90))

    def reserve_and_release(number: int) -> None:
        if reserve(budgets, str(number), take(7), take(7, budget="b")):
            budgets.release(str(number))

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(reserve_and_release, range(60)))
    assert (used(budgets), used(budgets, asked=take(0, budget="b"))) == (90, 0)


def test_memory_store_at_its_maximum_size_rejects_new_budget_reservations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAPACITY", 2)
    budgets = MemoryBudgets()
    assert reserve(budgets, "r", take(1))
    assert reserve(budgets, "s", take(1), now=NOON + 60)
    with pytest.raises(StoreFullError, match="use a database"):
        reserve(budgets, "t", take(1), now=NOON + 60)
    # An expired reservation no longer counts towards the maximum number, even if its budget has other reservations.
    assert reserve(budgets, "t", take(1), now=NOON + 3600)
    assert used(budgets, NOON + 3600) == 2
