"""How much an expression may cost on given inputs, computed before it is evaluated.

CEL evaluation cannot be interrupted, and the library copies what a macro has collected at every step, so that a nested
`map` over a thousand items runs for half a minute. The unit is one scalar handled once, about 100 ns; the sums are
upper bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pdp.manifest.expressions.scan import ExpressionError, Group, Macro, Reading

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_COST: Final = 500_000
"""Most that an evaluation may cost: about 50 ms."""

_CHARACTERS: Final = 64
"""So many characters of a string cost as much as a scalar."""


class _Bound(NamedTuple):
    """What a macro's variable stands for: weight of the heaviest element, and the elements where they are inputs."""

    weight: float
    elements: list[Any] | None


class _List(NamedTuple):
    """A list that a macro runs over: its greatest length, its weight, and what its elements are."""

    length: int
    weight: float
    element: _Bound
    cost: float


def check_cost(group: Group, inputs: Mapping[str, Any]) -> None:
    """Check that evaluating a scanned expression on `inputs` is cheap enough.

    Raises:
        ExpressionError: it could cost more than `MAX_COST`, or a macro would run over an object.
    """
    cost, _ = _cost(group, {name: _Bound(0, [value]) for name, value in inputs.items()})
    if cost > MAX_COST:
        raise ExpressionError(
            "expression would cost too much on these inputs", hint="hand in smaller lists, or nest fewer macros"
        )


def _cost(group: Group, scope: dict[str, _Bound]) -> tuple[float, float]:
    """Return what a group costs, and what its result weighs at most."""
    weight = float(group.literals)
    for reading in group.readings:
        weight += _weight_of(reading, scope)
    cost = 0.0
    for macro in group.macros:
        result = _run(macro, scope)
        cost += result.cost
        weight += result.weight
    return cost + (1 + group.operators) * weight + group.operators, weight


def _run(macro: Macro, scope: dict[str, _Bound]) -> _List:
    """Return the list that a macro gives (for those that give a boolean: a list that weighs 1)."""
    over = _run(macro.receiver, scope) if isinstance(macro.receiver, Macro) else _list_of(macro.receiver, scope)
    body_cost, body_weight = _cost(macro.body, {**scope, macro.variable: over.element})
    cost = over.cost + over.weight + over.length * (body_cost + 1)
    if macro.kind not in ("map", "filter"):
        return _List(0, 1, _Bound(1, None), cost)
    element = over.element if macro.kind == "filter" else _Bound(body_weight, None)
    # What is collected so far is copied for each element that is added: half of the square.
    cost += over.length * over.length * (element.weight + 1) / 2
    return _List(over.length, over.length * (element.weight + 1), element, cost)


def _list_of(reading: Reading, scope: dict[str, _Bound]) -> _List:
    values = _values(reading, scope)
    if any(isinstance(value, dict) for value in values):
        # The library walks objects in a random order: the same call would give different requests.
        raise ExpressionError(f"macro over `{_shown(reading)}`, which is an object", hint="macros run over lists")
    lists = [value for value in values if isinstance(value, list)]
    elements = [element for one in lists for element in one]
    heaviest = max((_weight(element) for element in elements), default=0)
    weight = max((_weight(one) for one in lists), default=0)
    return _List(max(map(len, lists), default=0), weight, _Bound(heaviest, elements), 0)


def _weight_of(reading: Reading, scope: dict[str, _Bound]) -> float:
    bound = scope[reading.variable]
    if bound.elements is None or (not reading.steps and bound.weight):
        return bound.weight
    return max((_weight(value) for value in _values(reading, scope)), default=0) + 1


def _values(reading: Reading, scope: dict[str, _Bound]) -> list[Any]:
    """Return what the reading can stand for: one value, or one for each element of a macro's list."""
    values = scope[reading.variable].elements or []
    for step in reading.steps:
        found = []
        for value in values:
            if isinstance(step, str):
                if isinstance(value, dict) and step in value:
                    found.append(value[step])
            elif isinstance(value, list) and step < len(value):
                found.append(value[step])
        values = found
    return values


def _weight(value: Any) -> int:
    weight, stack = 0, [value]
    while stack:
        one = stack.pop()
        weight += 1
        if isinstance(one, str):
            weight += len(one) // _CHARACTERS
        elif isinstance(one, dict):
            weight += sum(1 + len(name) // _CHARACTERS for name in one)
            stack.extend(one.values())
        elif isinstance(one, list):
            stack.extend(one)
        if weight > MAX_COST:
            break
    return weight


def _shown(reading: Reading) -> str:
    return reading.variable + "".join(f".{step}" if isinstance(step, str) else f"[{step}]" for step in reading.steps)
