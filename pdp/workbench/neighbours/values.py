"""JSON values: what stands at a path, and the same value with something else there."""

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final, TypeGuard

JsonPath = tuple[str | int, ...]
"""Keys and positions, the outermost first."""

ANY: Final = "[]"
"""A step of a path that stands for each element of a list, or each value of an object."""

GONE: Final = object()
"""Stands for a value that is taken away."""

Edit = tuple[JsonPath, Any]
"""A path, and what stands there afterwards."""

_DEEPEST: Final = 7


def at(value: Any, path: JsonPath) -> Any:
    """Return what stands at `path`, or `GONE`."""
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return GONE
    return value


def edited(value: Any, *edits: Edit) -> Any:
    """Return the value with edits applied in their order; nothing changes in place.

    Objects on the way are made, and the position behind the last of a list is one element more.
    """
    for path, new in edits:
        value = _put(value, path, new)
    return value


def paths(value: Any, path: JsonPath = ()) -> Iterator[JsonPath]:
    """Yield the paths of all that stands in a value, the outer first; of a list only elements that hold more."""
    if path:
        yield path
    if len(path) >= _DEEPEST:
        return
    members = value.items() if isinstance(value, dict) else enumerate(as_list(value))
    for step, inner in members:
        if isinstance(value, dict) or isinstance(inner, dict | list):
            yield from paths(inner, (*path, step))


def leaves(value: Any) -> Iterator[Any]:
    """Yield every key and every value that holds no others."""
    if not isinstance(value, dict | list):
        yield value
        return
    for item in chain.from_iterable(value.items()) if isinstance(value, dict) else value:
        yield from leaves(item)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a JSON number; booleans are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_dict(value: Any) -> dict[str, Any]:
    """Return an object as it is, and anything else as an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, and anything else as an empty one."""
    return value if isinstance(value, list) else []


def texts(value: Any) -> list[str]:
    """Return the strings of a list; of anything else none."""
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
