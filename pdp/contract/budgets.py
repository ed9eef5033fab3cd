"""What a call takes of its cumulative limits: how many units of which budget, and what the policy is shown of it.

A budget is one sum: of one tenant, limit, window, and subject, agent, run, tool or resource. Amounts are whole numbers
of the limit's unit, worked out in decimals: in binary fractions, 0.1 and 0.2 are more than 0.3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import groupby
from typing import Any, Final, NamedTuple

from pdp.clock import LAST_SECOND, to_seconds
from pdp.contract.checks import Checked
from pdp.json import canonical, digest
from pdp.manifest.fields import duration_seconds
from pdp.manifest.model import Limit
from pdp.request import Request
from pdp.session import Session

MOST: Final = 10**15  # how many units a sum may have: up to here, each has a JSON number of its own
RUN_SECONDS: Final = 30 * 86_400.0  # how long what a run has spent is remembered
_UNIT: Final = "0.01"
_DAY: Final = 86_400.0
_MONDAY: Final = 4 * _DAY  # 5 January 1970
_LONGEST_CURRENCY: Final = 64


class Window(NamedTuple):
    """How long an amount counts: `seconds` from its call on, or to the end of the calendar days; None: for the run."""

    seconds: float | None
    calendar: bool = False

    @classmethod
    def of(cls, limit: Limit) -> Window:
        """Return the window that a limit states."""
        if limit.window is None:
            return cls(None)
        if isinstance(limit.window, str):
            return cls(duration_seconds(limit.window))
        return cls(limit.window.days * _DAY, calendar=True)

    def end(self, now: float) -> float:
        """Return when an amount that is taken at `now` counts no more."""
        if self.seconds is None:
            return now + RUN_SECONDS
        if not self.calendar:
            return now + self.seconds
        return _MONDAY + ((now - _MONDAY) // self.seconds + 1) * self.seconds


class Take(NamedTuple):
    """What one call takes of one budget.

    Attributes:
        budget: the digest of `names`, which say for people what budget it is.
        amount: in units; taken only where the sum does not pass `cap` with it.
        currency: what the amount is in; it is taken only where the sum is in the same one.
    """

    budget: str
    names: str
    amount: int
    window: Window
    currency: str | None = None
    cap: int = MOST


class Spent(NamedTuple):
    """What a budget holds, in units; `until` is when the first of it counts no more, None where it is empty."""

    used: int
    until: float | None = None
    currency: str | None = None


class Spending(NamedTuple):
    """What a call takes of one cumulative limit; `take` is None where it can take nothing, as `problem` says.

    `replayed`: it takes nothing, as its tool will not run again.
    """

    limit: str
    unit: Decimal
    take: Take | None
    problem: str = ""
    replayed: bool = False

    def units(self, cap: float) -> int:
        """Return how many whole units a cap has."""
        return int(min(Decimal(str(cap)), MOST * self.unit) // self.unit)

    def number(self, units: int) -> float:
        """Return units as the number that arguments and caps are stated in."""
        value = units * self.unit
        return int(value) if value == value.to_integral_value() else float(value)

    def as_context(self, spent: Spent, now: float) -> dict[str, Any]:
        """Return the entry of `context.spent`: with what is spent, or with the problem alone."""
        problem, take = self.problem, self.take
        if take is not None and spent.used + take.amount > MOST:
            problem = "the sum would be too large to be counted"
        elif take is not None and take.amount and spent.used and spent.currency != take.currency:
            problem = f"the sum is in {spent.currency}, and one sum has one currency"
        if take is None or problem:
            return {"limit": self.limit, "problem": problem}
        until = take.window.end(now) if take.window.calendar else spent.until
        ends = None if take.window.seconds is None or until is None else to_seconds(min(math.ceil(until), LAST_SECOND))
        return {
            "limit": self.limit,
            "used": self.number(spent.used),
            "amount": self.number(take.amount),
            "total": self.number(spent.used + take.amount),
            "window_ends": ends,
        }


def spendings(checked: Checked, session: Session, request: Request, tenant: str, *, replayed: bool) -> list[Spending]:
    """Return what a call takes of each cumulative limit of its tool, one for each name.

    `tenant` is who issues subjects. `replayed`: the call has been made before, and takes nothing again.
    """
    arguments, taken = checked.proposal.arguments, []
    limits = (limit for limit in checked.tool.entry.limits if limit.per is not None)
    for name, group in groupby(limits, key=lambda limit: limit.limit):
        first, *more = group
        unit, window = Decimal("1" if first.count else first.unit or _UNIT), Window.of(first)
        take, problem = None, ""
        try:
            holder = _holder(first, checked, session, request)
            names = canonical([tenant, name, first.per, holder, str(unit), *window]).decode()
            nothing = Take(digest(names.encode()), names, 0, window)
            take = nothing if replayed else _with_amount(nothing, (first, *more), arguments, unit)
        except ValueError as error:
            problem = str(error)
        taken.append(Spending(name, unit, take, problem, replayed and take is not None))
    return taken


def _with_amount(take: Take, limits: Sequence[Limit], arguments: Mapping[str, Any], unit: Decimal) -> Take:
    amount = sum(_amount(limit, arguments, unit) for limit in limits)
    currency, *others = {_currency(limit, arguments) for limit in limits}
    if others:
        raise ValueError("one sum has one currency, and the call names several")
    return take._replace(amount=amount, currency=currency)


def _holder(limit: Limit, checked: Checked, session: Session, request: Request) -> list[str]:
    """Return who or what a budget is of; ValueError where the call does not say."""
    claims = session.claims
    subject = str(claims.get("sub"))
    if limit.per == "tool":
        return [checked.tool.entry.name]
    if limit.per == "resource":
        return [*request.resource[:2]]
    if limit.per == "agent":
        # Without an agent, the subject is who acts.
        act = claims.get("act")
        agent = session.agent or (act.get("sub") if isinstance(act, dict) else None)
        return ["agent", str(agent)] if agent else ["subject", subject]
    if limit.per != "run":
        return [subject]
    if session.run_id is None:
        raise ValueError("the session has no run_id")
    return [subject, session.run_id]


def _amount(limit: Limit, arguments: Mapping[str, Any], unit: Decimal) -> int:
    if limit.argument is None:
        return 1
    value = arguments.get(limit.argument)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError(f"{limit.argument} is not a number of at least zero")
    amount = Decimal(str(value))
    if amount > MOST * unit:
        raise ValueError(f"{limit.argument} is too large to be counted")
    if amount % unit:
        raise ValueError(f"{limit.argument} is not a multiple of {unit}")
    return int(amount / unit)


def _currency(limit: Limit, arguments: Mapping[str, Any]) -> str | None:
    if limit.currency is None:
        return None
    value = arguments.get(limit.currency)
    if not (isinstance(value, str) and value.isprintable() and 0 < len(value) <= _LONGEST_CURRENCY):
        raise ValueError(f"{limit.currency} is not a currency")
    return value
