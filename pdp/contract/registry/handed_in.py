"""What an application hands in from Python, checked where it comes in and not where it is used."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from pdp.errors import UsageError

if TYPE_CHECKING:
    from types import UnionType

_One = TypeVar("_One")


def listed(value: Any, kind: type[_One], what: str) -> tuple[_One, ...]:
    """Return the items of a list, all of one kind.

    Raises:
        UsageError: no list, such as one text instead of several; or an item of another kind. `what` names it.
    """
    hint = f"a list of {kind.__name__}"
    if isinstance(value, str | bytes | Mapping | BaseModel) or not isinstance(value, Iterable):
        raise UsageError(f"{what} is {type(value).__name__}", hint=hint)
    items = tuple(value)
    for one in items:
        if not isinstance(one, kind):
            raise UsageError(f"{what}: {one!r:.40} is no {kind.__name__}", hint=hint)
    return items


def check_kind(value: Any, kind: type | UnionType, what: str, hint: str) -> None:
    """Check that a value is of a kind; `what` names it, and `hint` says what to hand in.

    Raises:
        UsageError: it is not.
    """
    if not isinstance(value, kind):
        raise UsageError(f"{what} is {type(value).__name__}", hint=hint)


def check_callable(value: Any, what: str, hint: str) -> None:
    """Check that a value can be called, if there is one; `what` names it, and `hint` says what to hand in.

    Raises:
        UsageError: it cannot.
    """
    if value is not None and not callable(value):
        raise UsageError(f"{what} cannot be called", hint=hint)


def end_coroutine(given: Any) -> None:
    """Close what an asynchronous function gave where a plain one is wanted: nobody is going to await it."""
    if inspect.iscoroutine(given):
        given.close()
