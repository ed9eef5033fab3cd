"""Extract the conditions of rules with OPA's partial evaluation, and edit requests so that they meet the conditions.

OPA replaces helpers, functions, data and computed constants by their values. The result is a list of alternatives; each
alternative is a list of conditions on the request alone.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from pdp.errors import EngineError, UsageError
from pdp.json import canonical
from pdp.opa.evaluation import Evaluator
from pdp.opa.syntax import Node, mark_negations, operator, package_of
from pdp.workbench.neighbours.values import GONE, Edit, JsonPath, as_list, at, edited, is_number
from pdp.workbench.neighbours.vocabulary import Policy

_Edits = tuple[Edit, ...]
_OpenSteps = dict[str, int | str]

Alternative = tuple["Node", ...]
"""Conditions on a request that make a rule true together, as expressions of OPA's syntax tree."""

FOREIGN: Final = "somebody.else"
"""A text that no policy contains."""

_PROBE: Final = "pdp_probe"
_TIMEOUT: Final = 10.0
_UNKNOWN: Final = ("input", "data.manifests", "data.directory")
_MADE: Final = re.compile(r"__(?:local|not)[0-9_]+__[0-9]*")
"""Matches the names of variables and rules that OPA generates."""

_MEMBER: Final = "internal.member_2"
_TURNED: Final = {"gt": "lt", "gte": "lte", "lt": "gt", "lte": "gte"}
_MEETS: Final = {"gt": 1, "lt": -0.01}
"""By operator, the number to add to a constant so that the result meets the comparison."""

_STEPS: Final = (0, 0.01, -0.01, 1, -1)


def alternatives(opa: Path, policy: Policy, texts: Mapping[str, str], modules: Iterable[str]) -> dict[str, Alternative]:
    """Return the alternatives (lists of conditions) of the rules in `modules`, each once. `texts` has all modules.

    Rules that OPA cannot evaluate partially are left out. Only other generated calls can show the effect of such rules.
    """
    found: dict[str, Alternative] = {}
    for path in modules:
        rules = list(dict.fromkeys(_questions(policy.trees[path])))
        # If partial evaluation fails for all rules together, each rule is tried separately.
        for some in (rules, *([rule] for rule in rules)) if rules else ():
            remaining = _remaining(opa, policy, texts, some)
            found |= {_form(sorted(body, key=_form)): body for body in remaining or ()}
            if remaining is not None:
                break
    return found


def _questions(tree: Node) -> Iterator[str]:
    """Yield a query for each rule of a module; functions and defaults are left out."""
    package = "".join(f"[{json.dumps(step)}]" for step in package_of(tree).split("."))
    for rule in tree.get("rules") or ():
        head = rule["head"]
        if "args" not in head and not rule.get("default") and len(head["ref"]) == 1:
            term = f"data{package}[{json.dumps(head['ref'][0]['value'])}]"
            yield f"q if some _ in {term}" if "key" in head else f"q if {term}"


def _remaining(opa: Path, policy: Policy, texts: Mapping[str, str], rules: Sequence[str]) -> list[Alternative] | None:
    """Return the conditions on the request that OPA's partial evaluation of rules leaves; None after an error."""
    modules = {**texts, f"{_PROBE}.rego": "\n".join((f"package {_PROBE}", *rules))}
    unknown = [part for name in _UNKNOWN for part in ("--unknowns", name)]
    with Evaluator(opa, modules, policy.data, timeout=_TIMEOUT if len(rules) > 1 else _TIMEOUT / 4) as evaluator:
        try:
            partial = evaluator.query(f"data.{_PROBE}.q", b"{}", "--partial", *unknown).get("partial") or {}
        except (UsageError, EngineError):
            return None
    bodies = [*(partial.get("queries") or ())]
    bodies += [rule["body"] for module in partial.get("support") or () for rule in module.get("rules") or ()]
    mark_negations(bodies)
    return [
        tuple({key: part for key, part in condition.items() if key != "index"} for condition in body) for body in bodies
    ]


def _form(conditions: Node | list[Node]) -> str:
    return _MADE.sub("", canonical(conditions).decode())


def meeting(request: Any, conditions: Alternative) -> Iterator[tuple[bool, _Edits]]:
    """Yield edits of a request, each with True if the result meets all conditions, False if one condition is not met.

    Nothing is yielded if the conditions require another tool than the request's tool.
    """
    wholes: list[_Edits] = []
    for last in (False, True):
        choices = _choices(request, conditions, last=last)
        first = [choice[0] for choice in choices]
        whole = tuple(chain(*first))
        if not choices or whole in wholes:
            return
        wholes.append(whole)
        yield True, whole
        for number, choice in enumerate(choices):
            for other in choice[1:]:
                yield False, tuple(chain(*first[:number], other, *first[number + 1 :]))


def _choices(request: Any, conditions: Alternative, *, last: bool) -> list[list[_Edits]]:
    """Return the edits to try for each condition. With `last`, two compared attributes get the value of the second."""
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
    """Yield edits that meet a condition, then edits that nearly meet it. Unknown kinds of conditions get no edits.

    Functions are not inverted: an attribute gets the constant in the condition, or the value of the other attribute.
    """
    terms = _terms(condition)
    name = operator(terms) if terms else ""
    sides = [_parts(request, term, steps) for term in terms[1:]]
    places = [path for paths, _ in sides for path in paths]
    # A constant that is a whole side of a comparison is tried first, such as 37 in `x % 100 == 37`.
    constants = [constant for _, ground in sorted(sides, key=lambda side: bool(side[0])) for constant in ground]
    if len(places) > 1:
        ends = [(*path, len(items)) if isinstance(items := at(request, path), list) else path for path in places[:2]]
        known = [value for value in (at(request, path) for path in ends) if value is not GONE]
        yield tuple((path, (known or [FOREIGN])[-last]) for path in ends)
    elif places and constants:
        relation = name if sides[0][0] else _TURNED.get(name, name)
        is_list = name == _MEMBER and not sides[0][0]
        place = (*places[0], len(as_list(at(request, places[0])))) if is_list else places[0]
        yield from (((place, value),) for constant in constants for value in _near(relation, constant))
    elif places and not name:
        value = at(request, places[0])
        present = True if value in (GONE, None, False) else value
        yield from (((places[0], other),) for other in (present, GONE, False))


def _parts(request: Any, term: Node, steps: _OpenSteps) -> tuple[list[JsonPath], list[Any]]:
    if path := _path(request, term, steps):
        return [path], []
    ground = _ground(term)
    if ground is not GONE:
        return [], ground if isinstance(ground, list) else [ground]
    inner = [_parts(request, part, steps) for part in term["value"][1:]] if term.get("type") == "call" else []
    return [path for paths, _ in inner for path in paths], [value for _, values in inner for value in values]


def _terms(condition: Node) -> list[Node]:
    terms = condition.get("terms")
    return terms if isinstance(terms, list) else [{}, terms] if terms and "type" in terms else []


def _near(relation: str, value: Any) -> list[Any]:
    """Return a value for which the comparison with `value` is true, followed by other values near `value`."""
    if is_number(value):
        steps = dict.fromkeys((_MEETS.get(relation, 0), *_STEPS))
        return [*(_whole(value + step) for step in steps), _whole(value / 2), GONE]
    if isinstance(value, str):
        return [value, f"{value}x", f"x{value}", value.swapcase(), FOREIGN, GONE]
    return [] if value is GONE else [value, GONE]


def _whole(value: float) -> float:
    return int(value) if value == int(value) else round(value, 6)


def _path(request: Any, term: Node, steps: _OpenSteps) -> JsonPath:
    """Return the path of the request attribute that a term names. A variable key stands for a new element."""
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
    """Return the value of a constant term; `GONE` for a term with variables."""
    kind, value = term.get("type"), term.get("value")
    if kind in ("string", "number", "boolean", "null"):
        return value
    if kind in ("array", "set"):
        items = [_ground(item) for item in value or ()]
        return GONE if GONE in items else items
    return GONE
