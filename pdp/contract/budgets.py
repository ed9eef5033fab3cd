"""The amounts that a call takes from its cumulative limits, and the `context.spent` that the policy reads.

A budget is the sum for one tenant, limit, holder and time window. Amounts are decimals, because binary 0.1 + 0.2 > 0.3.
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
from pdp.request import Entity, Request
from pdp.session import Session

# The largest total that a limit counts, in units. JSON represents every whole number up to this total exactly.
MOST: Final = 10**15
RUN_SECONDS: Final = 30 * 86_400.0  # The amounts of a run are kept for this many seconds.
_UNIT: Final = "0.01"
_DAY: Final = 86_400.0
_MONDAY: Final = 4 * _DAY  # Weeks are counted from 5 January 1970, which was a Monday.
_LONGEST_CURRENCY: Final = 64


class Window(NamedTuple):
    """How long an amount counts: `seconds` after the call, or until a calendar period ends; None for the whole run."""

    seconds: float | None
    calendar: bool = False

    @classmethod
    def of(cls, limit: Limit) -> Window:
        """Return the window that a limit declares."""
        if limit.window is None:
            return cls(None)
        if isinstance(limit.window, str):
            return cls(duration_seconds(limit.window))
        return cls(limit.window.days * _DAY, calendar=True)

    def end(self, now: float) -> float:
        """Return the time at which an amount spent at `now` stops counting."""
        if self.seconds is None:
            return now + RUN_SECONDS
        if not self.calendar:
            return now + self.seconds
        return _MONDAY + ((now - _MONDAY) // self.seconds + 1) * self.seconds


class Take(NamedTuple):
    """The amount, in units, that a call takes from a budget, whose sum is limited to `cap` and has one `currency`.

    `names` describes the budget as JSON: tenant, limit, holder, unit and window. `budget` is the digest of `names`.
    """

    budget: str
    names: str
    amount: int
    window: Window
    currency: str | None = None
    cap: int = MOST


class Spent(NamedTuple):
    """The current sum of a budget, in units. `until` is when its oldest amount stops counting; None without amounts."""

    used: int
    until: float | None = None
    currency: str | None = None


class Spending(NamedTuple):
    """The amount that a call takes from one cumulative limit. A `replayed` call takes nothing.

    `take` is None if the amount cannot be determined; `problem` says why.
    """

    limit: str
    unit: Decimal
    take: Take | None
    problem: str = ""
    replayed: bool = False

    def units(self, cap: float) -> int:
        """Convert a cap to units, rounded down."""
        return int(min(Decimal(str(cap)), MOST * self.unit) // self.unit)

    def number(self, units: int) -> float:
        """Convert units to an amount as used in arguments and caps."""
        value = units * self.unit
        return int(value) if value == value.to_integral_value() else float(value)

    def as_context(self, spent: Spent, now: float) -> dict[str, Any]:
        """Return the limit's entry in `context.spent`: the sum and the call's amount, or only the problem."""
        problem, take = self.problem, self.take
        if take is not None and spent.used + take.amount > MOST:
            problem = "the total would exceed the largest amount that a limit can count"
        elif take is not None and take.amount and spent.used and spent.currency != take.currency:
            problem = (
                f"the amounts counted so far are in {spent.currency}, and a limit cannot add up several currencies"
            )
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
    """Return a `Spending` for each cumulative limit of the call's tool. `tenant` is the issuer of the subject."""
    arguments, result = checked.proposal.arguments, []
    limits = (limit for limit in checked.tool.entry.limits if limit.per is not None)
    for name, group in groupby(limits, key=lambda limit: limit.limit):
        first, *more = group
        take, problem = None, ""
        try:
            nothing = nothing_of(first, checked.tool.entry.name, session, request.resource, tenant)
            take = nothing if replayed else _with_amount(nothing, (first, *more), arguments, _unit(first))
        except ValueError as error:
            problem = str(error)
        result.append(Spending(name, _unit(first), take, problem, replayed and take is not None))
    return result


def nothing_of(limit: Limit, tool: str, session: Session, resource: Entity | None, tenant: str) -> Take:
    """Return the `Take` of nothing from the budget of a limit. Raise ValueError if its holder is not known."""
    holder, window = _holder(limit, tool, session, resource), Window.of(limit)
    names = canonical([tenant, limit.limit, limit.per, holder, str(_unit(limit)), *window]).decode()
    return Take(digest(names.encode()), names, 0, window)


def _unit(limit: Limit) -> Decimal:
    return Decimal("1" if limit.count else limit.unit or _UNIT)


def _with_amount(take: Take, limits: Sequence[Limit], arguments: Mapping[str, Any], unit: Decimal) -> Take:
    amount = sum(_amount(limit, arguments, unit) for limit in limits)
    currency, *others = {_currency(limit, arguments) for limit in limits}
    if others:
        raise ValueError("the call names several currencies, but a limit cannot add up several currencies")
    return take._replace(amount=amount, currency=currency)


def _holder(limit: Limit, tool: str, session: Session, resource: Entity | None) -> list[str]:
    """Return the holder of the call's budget, such as the subject. Raise ValueError without its run id or resource."""
    claims = session.claims
    subject = str(claims.get("sub"))
    if limit.per == "tool":
        return [tool]
    if limit.per == "resource":
        if resource is None:
            raise ValueError("the resource is not known")
        return [*resource[:2]]
    if limit.per == "agent":
        # If the claims name no agent, the subject itself is the actor.
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
        raise ValueError(f"{limit.argument} exceeds the largest amount that a limit can count")
    if amount % unit:
        raise ValueError(f"{limit.argument} is not a multiple of {unit}")
    return int(amount / unit)


def _currency(limit: Limit, arguments: Mapping[str, Any]) -> str | None:
    if limit.currency is None:
        return None
    value = arguments.get(limit.currency)
    if not (isinstance(value, str) and value.isprintable() and 0 < len(value) <= _LONGEST_CURRENCY):
        raise ValueError(f"{limit.currency} must be 1 to {_LONGEST_CURRENCY} printable characters")
    return value
