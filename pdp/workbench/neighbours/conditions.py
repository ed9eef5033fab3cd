"""What rules ask for, all of it at once: conditions that OPA's partial evaluation leaves, and requests that meet them.

OPA puts in what helpers, functions and data say, and works out constants that are put together from parts. What is left
are alternatives, each a list of conditions about the request alone.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from pdp.errors import EngineError, UsageError
from pdp.json import canonical
from pdp.workbench.neighbours.values import GONE, Edit, JsonPath, as_list, at, edited, is_number
from pdp.workbench.neighbours.vocabulary import Policy
from pdp.workbench.opa.evaluation import Evaluator
from pdp.workbench.opa.syntax import Node, mark_negations, operator, package_of

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

_MEMBER: Final = "internal.member_2"
_TURNED: Final = {"gt": "lt", "gte": "lte", "lt": "gt", "lte": "gte"}
_MEETS: Final = {"gt": 1, "lt": -0.01}
"""How far a number is from another one that it is more or less than."""

_STEPS: Final = (0, 0.01, -0.01, 1, -1)


def alternatives(opa: Path, policy: Policy, texts: Mapping[str, str], modules: Iterable[str]) -> dict[str, Alternative]:
    """Return what the rules of some `modules` ask for, by a form in which names do not count; `texts` are of all.

    What OPA cannot evaluate in part is left out: it has to be shown by other calls.
    """
    asked: dict[str, Alternative] = {}
    for path in modules:
        rules = list(dict.fromkeys(_questions(policy.trees[path])))
        # What fails for one rule fails for all of a run.
        for some in (rules, *([rule] for rule in rules)):
            left = _left(opa, policy, texts, some)
            asked |= {_form(sorted(body, key=_form)): body for body in left or ()}
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
    with Evaluator(opa, modules, policy.data, timeout=_TIMEOUT if len(rules) > 1 else _TIMEOUT / 4) as evaluator:
        try:
            left = evaluator.query(f"data.{_PROBE}.q", b"{}", "--partial", *unknown).get("partial") or {}
        except (UsageError, EngineError):
            return None
    bodies = [*(left.get("queries") or ())]
    bodies += [rule["body"] for module in left.get("support") or () for rule in module.get("rules") or ()]
    mark_negations(bodies)
    return [
        tuple({key: part for key, part in condition.items() if key != "index"} for condition in body) for body in bodies
    ]


def _form(conditions: Node | list[Node]) -> str:
    return _MADE.sub("", canonical(conditions).decode())


def meeting(request: Any, conditions: Alternative) -> Iterator[tuple[bool, _Edits]]:
    """Yield edits of a request, and whether all conditions hold afterwards: all but one do, or one is nearly met.

    Nothing, where another tool than the request's would have to be called.
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
    """Yield what to write so that a condition holds, and then what is near that; nothing where it is not understood.

    Functions are not turned round: a part of the request has the constant that stands beside it, or the value of the
    other part. Where that is not enough, another call has to show what the condition does.
    """
    terms = _terms(condition)
    name = operator(terms) if terms else ""
    sides = [_parts(request, term, steps) for term in terms[1:]]
    places = [path for paths, _ in sides for path in paths]
    # What stands alone on a side first: of `x % 100 == 37` the 37.
    constants = [constant for _, ground in sorted(sides, key=lambda side: bool(side[0])) for constant in ground]
    if len(places) > 1:
        ends = [(*path, len(held)) if isinstance(held := at(request, path), list) else path for path in places[:2]]
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
    """A value that is in this relation to another one, and then those near it."""
    if is_number(value):
        steps = dict.fromkeys((_MEETS.get(relation, 0), *_STEPS))
        return [*(_whole(value + step) for step in steps), _whole(value / 2), GONE]
    if isinstance(value, str):
        return [value, f"{value}x", f"x{value}", value.swapcase(), FOREIGN, GONE]
    return [] if value is GONE else [value, GONE]


def _whole(value: float) -> float:
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
