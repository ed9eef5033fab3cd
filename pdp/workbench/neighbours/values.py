"""Read and edit JSON values by path."""

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final, TypeGuard

JsonPath = tuple[str | int, ...]
"""The keys and indices that lead to a value, starting at the outermost."""

ANY: Final = "[]"
"""A key in a path that matches each element of a list and each value of an object."""

GONE: Final = object()
"""A missing value. In an edit, it removes the value."""

Edit = tuple[JsonPath, Any]
"""The path of a value to replace, and the new value."""

_DEEPEST: Final = 7


def at(value: Any, path: JsonPath) -> Any:
    """Return the value at `path`, or `GONE` if there is no value."""
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return GONE
    return value


def edited(value: Any, *edits: Edit) -> Any:
    """Return a copy of a value with edits applied in order. Missing objects are created; lists can grow by an item."""
    for path, new in edits:
        value = _put(value, path, new)
    return value


def paths(value: Any, path: JsonPath = ()) -> Iterator[JsonPath]:
    """Yield the paths of all values inside a value, outer paths first. Scalar values in lists are left out."""
    if path:
        yield path
    if len(path) >= _DEEPEST:
        return
    members = value.items() if isinstance(value, dict) else enumerate(as_list(value))
    for step, inner in members:
        if isinstance(value, dict) or isinstance(inner, dict | list):
            yield from paths(inner, (*path, step))


def leaves(value: Any) -> Iterator[Any]:
    """Yield all object keys and all scalar values inside a value."""
    if not isinstance(value, dict | list):
        yield value
        return
    for item in chain.from_iterable(value.items()) if isinstance(value, dict) else value:
        yield from leaves(item)


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a JSON number; booleans are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_dict(value: Any) -> dict[str, Any]:
    """Return the value if it is an object, otherwise an empty object."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return the value if it is a list, otherwise an empty list."""
    return value if isinstance(value, list) else []


def texts(value: Any) -> list[str]:
    """Return the strings of a list; an empty list for any other value."""
    return [item for item in as_list(value) if isinstance(item, str)]


def _put(value: Any, path: JsonPath, new: Any) -> Any:
    if not path:
        return new
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        items = [] if value in (None, GONE) else value
        if not isinstance(items, list) or step > len(items):
            return value
        here = items[step] if step < len(items) else None
        inner = [] if not rest and new is GONE else [_put(here, rest, new)]
        return [*items[:step], *inner, *items[step + 1 :]]
    holder = as_dict(value)
    if new is GONE:
        if step not in holder:
            return value
        if not rest:
            return {key: each for key, each in holder.items() if key != step}
    return holder | {step: _put(holder.get(step), rest, new)}
