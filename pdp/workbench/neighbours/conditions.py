"""What rules ask for, all of it at once: conditions that OPA's partial evaluation leaves, and requests that meet them.

OPA puts in what helpers, functions and data say, and works out constants that are put together from parts. What is left
are alternatives, each a list of conditions about the request alone.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from pdp.errors import EngineError, UsageError
from pdp.json import canonical
from pdp.workbench.neighbours.values import GONE, as_list, at, edited, is_number
from pdp.workbench.opa.evaluation import Evaluator
from pdp.workbench.opa.syntax import operator, package_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pdp.workbench.neighbours.values import Edit, JsonPath
    from pdp.workbench.neighbours.vocabulary import Policy
    from pdp.workbench.opa.syntax import Node

    _Edits = tuple[Edit, ...]
    _OpenSteps = dict[str, int | str]

Alternative = tuple["Node", ...]
"""Conditions that hold together, as expressions of OPA's syntax tree."""

FOREIGN: Final = "somebody.else"
"""A text that no policy knows."""

_PROBE: Final = "pdp_probe"
_TIMEOUT: Final = 10.0
_UNKNOWN: Final = ("input", "data.manifests", "data.directory")
_MADE: Final = re.compile(r"__(?:local|not)[0-9_]+__[0-9]*")
"""Names of variables and rules that OPA makes up."""

_STEPS: Final[dict[str, tuple[float, ...]]] = {
    "gt": (1, 0.01, 0, -0.01, -1), "gte": (0, 0.01, 1, -0.01, -1),
    "lt": (-0.01, -1, 0, 0.01, 1), "lte": (0, -0.01, -1, 0.01, 1),
}  # fmt: skip
_MEMBER: Final = "internal.member_2"
_RELATIONS: Final = ("eq", "equal", "neq", _MEMBER, *_STEPS)
_EQUAL: Final = (0, 0.01, -0.01, 1, -1)
_TURNED: Final = {"gt": "lt", "gte": "lte", "lt": "gt", "lte": "gte"}
_INVERSE: Final[dict[str, Callable[..., Any]]] = {
    "lower": lambda value: value.swapcase(), "upper": lambda value: value.swapcase(),
    "trim_space": lambda value: f" {value} ", "substring": lambda value, start, _: "x" * start + value,
    "plus": lambda value, other: value - other, "minus": lambda value, other: value + other,
    "mul": lambda value, other: value / other, "div": lambda value, other: value * other,
    "rem": lambda value, _: value, "count": lambda number: [FOREIGN] * int(number),
    "startswith": lambda text: f"{text}x", "endswith": lambda text: f"x{text}",
    "contains": lambda text: text,
}  # fmt: skip
"""Of a function that is applied to a part of the request: what that part is when this is the result."""

_HOLDS: Final = {"startswith", "endswith", "contains"}
"""Functions that hold or do not, and have no other result."""


def alternatives(
    opa: Path, policy: Policy, texts: Mapping[str, str], modules: Iterable[str]
) -> dict[bytes, Alternative]:
    """Return what the rules of modules ask for, by a form in which names do not count.

    What OPA cannot evaluate in part is left out: it has to be shown by other calls.

    Args:
        opa: the program.
        policy: syntax trees and data.
        texts: of all modules.
        modules: whose rules are looked at.
    """
    asked: dict[bytes, Alternative] = {}
    for path in modules:
        rules = list(dict.fromkeys(_questions(policy.trees[path])))
        # What fails for one rule fails for all of a run.
        for some in (rules, *([rule] for rule in rules)):
            left = _left(opa, policy, texts, some)
            asked |= {_MADE.sub("", canonical(sorted(body, key=_form)).decode()).encode(): body for body in left or ()}
            if left is not None:
                break
    return asked


def _questions(tree: Node) -> Iterator[str]:
    """Rego that holds where a rule of a module does, for each that is no function."""
    package = "".join(f"[{json.dumps(step)}]" for step in package_of(tree).split("."))
    for rule in tree.get("rules") or ():
        head = rule["head"]
        if "args" not in head and not rule.get("default") and len(head["ref"]) == 1:
            term = f"data{package}[{json.dumps(head['ref'][0]['value'])}]"
            yield f"q if some _ in {term}" if "key" in head else f"q if {term}"


def _left(opa: Path, policy: Policy, texts: Mapping[str, str], rules: Sequence[str]) -> list[Alternative] | None:
    """What is left of rules when all but the request and the manifests is put in; None where that fails."""
    modules = {**texts, f"{_PROBE}.rego": "\n".join((f"package {_PROBE}", *rules))}
    unknown = [part for name in _UNKNOWN for part in ("--unknowns", name)]
    with Evaluator(opa, modules, policy.data, timeout=_TIMEOUT) as evaluator:
        try:
            left = evaluator.query(f"data.{_PROBE}.q", b"{}", "--partial", *unknown).get("partial") or {}
        except (UsageError, EngineError):
            return None
    bodies = [*(left.get("queries") or ())]
    bodies += [rule["body"] for module in left.get("support") or () for rule in module.get("rules") or ()]
    return [
        tuple({key: part for key, part in condition.items() if key != "index"} for condition in body) for body in bodies
    ]


def _form(condition: Node) -> str:
    return _MADE.sub("", canonical(condition).decode())


def meeting(request: Any, conditions: Alternative) -> Iterator[tuple[bool, tuple[Edit, ...]]]:
    """Yield edits of a request, and whether all conditions hold afterwards: all but one do, or one is nearly met.

    Nothing, where another tool than the request's would have to be called.
    """
    wholes: list[tuple[Edit, ...]] = []
    for last in (False, True):
        choices = _choices(request, conditions, last=last)
        first = [choice[0] for choice in choices]
        whole = tuple(edit for edits in first for edit in edits)
        if not choices or whole in wholes:
            return
        wholes.append(whole)
        yield True, whole
        for number, choice in enumerate(choices):
            for other in choice[1:]:
                yield False, tuple(edit for edits in (*first[:number], other, *first[number + 1 :]) for edit in edits)


def _choices(request: Any, conditions: Alternative, *, last: bool) -> list[list[_Edits]]:
    """What to write for each condition, first so that it holds; of two attributes alike, the value of the last."""
    steps: _OpenSteps = {}
    met, choices = request, []
    for condition in conditions:
        tried = [*_candidates(met, condition, steps, last=last)]
        if any(path[0] == "action" for edits in tried[:1] for path, _ in edits):
            if edited(met, *tried[0]) != met:
                return []
        elif tried and (condition.get("negated") or operator(_terms(condition)) == "neq"):
            choices.append([(), *tried])
        elif tried:
            met = edited(met, *tried[0])
            choices.append([tried[0], (), *tried[1:]])
    return choices


def _candidates(request: Any, condition: Node, steps: _OpenSteps, *, last: bool) -> Iterator[_Edits]:
    """Yield what to write so that a condition holds, and then what is near that; nothing where it is not understood."""
    terms = _terms(condition)
    name, operands = operator(terms) if terms else "", terms[1:]
    paths = [_path(request, operand, steps) for operand in operands]
    grounds = [_ground(operand) for operand in operands]
    match operands:
        case [_] if not name and paths[0]:
            value = at(request, paths[0])
            present = True if value in (GONE, None, False) else value
            yield from (((paths[0], other),) for other in (present, GONE, False))
        case [_, _] if name in _RELATIONS and all(paths):
            ends = paths if name != _MEMBER else [paths[0], (*paths[1], len(as_list(at(request, paths[1]))))]
            known = [value for value in (at(request, path) for path in paths) if value is not GONE]
            yield tuple((path, (known or [FOREIGN])[-last]) for path in ends)
        case [element, _] if name == _MEMBER and isinstance(grounds[1], list):
            yield from _reached(request, element, grounds[1], steps)
        case [_, _] if name == _MEMBER and paths[1]:
            place = (*paths[1], len(as_list(at(request, paths[1]))))
            yield from (((place, value),) for value in _near("eq", grounds[0]))
        case [left, right] if name in _RELATIONS:
            turned = grounds[0] is not GONE
            values = _near(_TURNED.get(name, name) if turned else name, grounds[0] if turned else grounds[1])
            yield from _reached(request, right if turned else left, values, steps)
        case [*_, _] if name in _HOLDS:
            yield from _reached(request, {"type": "call", "value": terms}, [True], steps)
        case [*_, _]:
            yield from _reached(request, {"type": "call", "value": terms[:-1]}, _near("eq", grounds[-1]), steps)


def _terms(condition: Node) -> list[Node]:
    """Operator and operands of a condition; without an operator, a reference that has to be there."""
    terms = condition.get("terms")
    return terms if isinstance(terms, list) else [{}, terms] if terms and "type" in terms else []


def _reached(request: Any, term: Node, results: Iterable[Any], steps: _OpenSteps) -> Iterator[tuple[Edit, ...]]:
    """Yield what to write so that a term, a part of the request or a function of one, has these values."""
    for result in results:
        inner, value = term, result
        while inner.get("type") == "call":
            name, operands = operator(inner["value"]), inner["value"][1:]
            if name == "object.get":
                break
            grounds = [_ground(operand) for operand in operands]
            rest = [ground for ground in grounds if ground is not GONE]
            if name not in _INVERSE or len(rest) != len(grounds) - 1:
                return
            try:
                value = _INVERSE[name](*(rest if name in _HOLDS else (value, *rest)))
            except (TypeError, ValueError, AttributeError, ZeroDivisionError):
                return
            inner = operands[grounds.index(GONE)]
        if path := _path(request, inner, steps):
            yield (((path, _whole(value)),))


def _near(relation: str, value: Any) -> list[Any]:
    """A value that is in this relation to another one, and then those near it."""
    if is_number(value):
        return [*(_whole(value + step) for step in _STEPS.get(relation, _EQUAL)), _whole(value / 2), GONE]
    if isinstance(value, str):
        return [value, f"{value}x", f"x{value}", value.swapcase(), FOREIGN, GONE]
    return [] if value is GONE else [value, GONE]


def _whole(value: Any) -> Any:
    """A number without the traces of binary fractions; anything else as it is."""
    if not is_number(value):
        return value
    return int(value) if value == int(value) else round(value, 6)


def _path(request: Any, term: Node, steps: _OpenSteps) -> JsonPath:
    """The part of a request that a term names; a step that is open is one element more than there is."""
    value = term.get("value")
    if term.get("type") == "call" and value and operator(value) == "object.get":
        key = _ground(value[2])
        holder = _path(request, value[1], steps)
        return (*holder, *(key if isinstance(key, list) else [key])) if holder and key is not GONE else ()
    if term.get("type") != "ref" or not value or value[0].get("value") != "input":
        return ()
    path: JsonPath = ()
    for step in value[1:]:
        known = _ground(step)
        if known is GONE:
            holder = at(request, path)
            more = "made" if isinstance(holder, dict) else len(as_list(holder))
            known = steps.setdefault(str(step["value"]), more) if step.get("type") == "var" else GONE
        if not isinstance(known, str | int):
            return ()
        path = (*path, known)
    return path


def _ground(term: Node) -> Any:
    """The value of a term that has no variable; `GONE` of any other."""
    kind, value = term.get("type"), term.get("value")
    if kind in ("string", "number", "boolean", "null"):
        return value
    if kind in ("array", "set"):
        items = [_ground(item) for item in value or ()]
        return GONE if GONE in items else items
    return GONE
