"""Requests near a recorded one: an attribute or two taken away, emptied, mistyped, moved to a boundary or exchanged."""

from __future__ import annotations

import random
from itertools import combinations, islice
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdp.workbench.diff.grid.vocabulary import Vocabulary, Way

GONE: Final = object()
"""Stands for an attribute that is taken away."""

_MISTYPED: Final[tuple[Any, ...]] = (None, "", [], {}, 0, 7, True, False, "a text", [7])
_STRINGS: Final = 16
_DEEPEST: Final = 7
_KEPT: Final = ("manifest_digest", "manifest_version", "tool")

Change = tuple["Way", Any]


def together(body: Any) -> Iterator[tuple[Change, ...]]:
    """Yield changes of two attributes that have the same text, and of all that do: they stay equal whatever it is."""
    same: dict[str, list[Way]] = {}
    for way in _ways(body, ()):
        value = at(body, way)
        if isinstance(value, str) and value and not (way[0] == "action" and way[-1] in _KEPT):
            same.setdefault(value, []).append(way)
    for ways in same.values():
        for some in dict.fromkeys((*combinations(ways, 2), tuple(ways))) if len(ways) > 1 else ():
            for other in (*_MISTYPED, "~", GONE):
                yield tuple((way, other) for way in some)


def changes(body: Any, words: Vocabulary) -> Iterator[Change]:
    """Yield single changes of a request: those of what policies read, then those of what else it has."""
    ways = dict.fromkeys((*words.attributes, *_ways(body, ())))
    for way in ways:
        if way[-1] in _KEPT and way[0] == "action":
            continue
        yield way, GONE
        current = at(body, way)
        yield from ((way, value) for value in _values(current, words))
    yield from _approvals(body)
    yield from _agents(body)


def pairs(singles: Sequence[Change], seed: int) -> Iterator[tuple[Change, Change]]:
    """Yield pairs of changes in an order that is shuffled, always in the same way."""
    shuffled = random.Random(seed)  # noqa: S311 - which requests are tried first is no secret
    if len(singles) < 2:  # noqa: PLR2004 - a pair
        return
    while True:
        one, other = shuffled.sample(singles, 2)
        if one[0][: len(other[0])] != other[0] and other[0][: len(one[0])] != one[0]:
            yield one, other


def changed(body: Any, *applied: Change) -> Any:
    """Return the request with changes applied; it is not changed itself."""
    for way, value in applied:
        body = _put(body, way, value)
    return body


def at(body: Any, way: Way) -> Any:
    """Return what stands at `way`, or `GONE`."""
    for step in way:
        try:
            body = body[step]
        except (KeyError, IndexError, TypeError):
            return GONE
    return body


def _values(current: Any, words: Vocabulary) -> Iterator[Any]:
    if isinstance(current, bool):
        yield not current
    elif isinstance(current, int | float):
        yield from words.boundaries()
    elif isinstance(current, str):
        yield from islice((word for word in words.strings if word != current), _STRINGS)
    elif isinstance(current, list):
        for index in range(len(current)):
            yield current[:index] + current[index + 1 :]
        yield from ([*current, word] for word in islice(words.strings, _STRINGS) if word not in current)
        yield [*current, 7]
        yield current + current[:1]
    elif isinstance(current, dict):
        yield from (
            {**current, word: value} for word in islice(words.strings, 10) for value in (0, True) if word not in current
        )
    else:
        yield from islice(words.strings, _STRINGS)
        yield from ([word] for word in islice(words.strings, _STRINGS))
    yield from (value for value in _MISTYPED if type(value) is not type(current) or value != current)


def _approvals(body: Any) -> Iterator[Change]:
    """The approval that the request has: older, of another call, granted by others or fewer, or without roles."""
    way: Way = ("context", "approval")
    approval = at(body, way)
    if not isinstance(approval, dict) or not isinstance(approval.get("grants"), list):
        return
    grants = approval["grants"]
    yield way, approval | {"call_digest": "sha256:of-another-call"}
    for age in (-1, 0, 1, 59, 60, 61, 599, 600, 601, 3599, 3600, 3601, 86400):
        yield way, approval | {"age_seconds": age}
    subject, agent = at(body, ("subject", "id")), at(body, ("context", "agent"))
    acting = at(body, ("subject", "properties", "act", "sub"))
    people = [who for who in (subject, agent, acting, "somebody-else") if isinstance(who, str)]
    for index, grant in enumerate(grants):
        if not isinstance(grant, dict):
            continue
        rest = grants[index + 1 :]
        before = grants[:index]
        for who in people:
            for issuer in (GONE, None, "", "https://one.example", "https://other.example"):
                other = {key: value for key, value in grant.items() if key != "iss"} | {"sub": who}
                yield way, approval | {"grants": [*before, other if issuer is GONE else other | {"iss": issuer}, *rest]}
        for roles in ([], ["another.role"], None, "a.role", [7]):
            yield way, approval | {"grants": [*before, grant | {"roles": roles}, *rest]}
        yield way, approval | {"grants": [*grants, grant]}
        yield way, approval | {"grants": [*grants, grant | {"sub": "somebody-else"}]}


def _agents(body: Any) -> Iterator[Change]:
    """A chain of one to five agents that hold what the subject holds, and what the nearest lacks."""
    properties = at(body, ("subject", "properties"))
    if not isinstance(properties, dict):
        return
    held = {name: properties[name] for name in ("scopes", "clearances", "limits", "entitlements") if name in properties}
    way: Way = ("subject", "properties", "act")
    chain: Any = None
    for depth in range(1, 6):
        chain = {"sub": f"agent:{depth}", **held} | ({} if chain is None else {"act": chain})
        yield way, chain
        for name in ("scopes", "clearances", "purposes", "limits", "entitlements"):
            empty: tuple[Any, ...] = ([], {}, None)
            for value in empty:
                yield way, chain | {name: value}
            if name in chain:
                yield way, {key: each for key, each in chain.items() if key != name}


def _ways(value: Any, way: Way) -> Iterator[Way]:
    if way:
        yield way
    if len(way) >= _DEEPEST:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _ways(inner, (*way, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            if isinstance(inner, dict | list):
                yield from _ways(inner, (*way, index))


def _put(value: Any, way: Way, new: Any) -> Any:
    step, rest = way[0], way[1:]
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        inner = [] if not rest and new is GONE else [_put(value[step], rest, new) if rest else new]
        return [*value[:step], *inner, *value[step + 1 :]]
    if isinstance(step, int):
        return value
    holder = value if isinstance(value, dict) else {}
    if not rest:
        return {key: each for key, each in holder.items() if key != step} if new is GONE else holder | {step: new}
    if new is GONE and step not in holder:
        return value
    return holder | {step: _put(holder.get(step), rest, new)}
