"""Extract the conditions of rules with OPA's partial evaluation, and edit requests so that they meet the conditions.

OPA replaces helpers, functions, data and computed constants by their values. The result is a list of alternatives; each
alternative is a list of conditions on the request alone.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

from pdp.errors import EngineError, EngineTimeoutError, UsageError
from pdp.json import MAX_NUMBER, canonical
from pdp.opa.evaluation import Evaluator
from pdp.opa.syntax import Node, branches, imports_of, is_every, mark_negations, nodes, operator, package_of, rule_name
from pdp.workbench.neighbours.values import GONE, Edit, JsonPath, as_list, at, edited, is_number, leaves
from pdp.workbench.neighbours.vocabulary import Policy

_Edits = tuple[Edit, ...]
_OpenSteps = dict[str, int | str]

Alternative = tuple["Node", ...]
"""Conditions on a request that make a rule true together, as expressions of OPA's syntax tree."""

FOREIGN: Final = "somebody.else"
"""A text that no policy contains."""

_PROBE: Final = "pdp_probe"
_MOST_LATE: Final = 2
"""The number of rules for which OPA may be late, before the conditions of further rules are not computed."""

MOST_ALTERNATIVES: Final = 20_000
"""The maximum number of alternatives of a rule whose conditions are computed; OPA needs up to 4 s for as many."""

_UNKNOWN: Final = ("input", "data.manifests", "data.directory")
_MADE: Final = re.compile(r"__(?:local|not)[0-9_]+__[0-9]*")
"""Matches the names of variables and rules that OPA generates."""

_MEMBER: Final = "internal.member_2"
_TURNED: Final = {"gt": "lt", "gte": "lte", "lt": "gt", "lte": "gte"}
_MEETS: Final = {"gt": 1, "lt": -0.01}
"""By operator, the number to add to a constant so that the result meets the comparison."""

_STEPS: Final = (0, 0.01, -0.01, 1, -1)


class RuleConditions(NamedTuple):
    """The alternatives of rules by their form, and the names of the rules whose conditions are not known."""

    alternatives: dict[str, Alternative]
    left_out: tuple[str, ...]


def alternatives(
    opa: Path, policy: Policy, texts: Mapping[str, str], modules: Iterable[str], timeout: float
) -> RuleConditions:
    """Return the alternatives (lists of conditions) of the rules in `modules`, each once. `texts` has all modules.

    The conditions of a rule are not computed if it has too many alternatives: its own and those of its helpers,
    multiplied. So the result depends on the policy alone, unless OPA needs more than `timeout` seconds for a rule. Only
    other generated calls can show the effect of rules that are left out.
    """
    found: dict[str, Alternative] = {}
    left_out: dict[str, None] = {}
    sizes, late = RuleSizes(policy.trees), 0
    for path in modules:
        package = package_of(policy.trees[path])
        rules = {f"{package}.{name}": query for name, query in _questions(policy.trees[path])}
        small = {name: query for name, query in rules.items() if sizes.of(name) <= MOST_ALTERNATIVES}
        left_out |= dict.fromkeys(rules.keys() - small.keys())
        # If OPA cannot evaluate all rules together, it evaluates each of them.
        for some in (small, *({name: query} for name, query in small.items())) if small else ():
            try:
                bodies = _remaining(opa, policy, texts, list(some.values()), timeout) if late < _MOST_LATE else None
            except EngineTimeoutError:
                bodies, late = None, late + 1
            found |= {_form(sorted(body, key=_form)): body for body in bodies or ()}
            if bodies is not None and some is small:
                break
            if bodies is None and some is not small:
                left_out |= dict.fromkeys(some)
    return RuleConditions(found, tuple(sorted(left_out)))


class RuleSizes:
    """The number of alternatives of each rule after OPA has put in all helpers, from the syntax trees of a policy."""

    def __init__(self, trees: Mapping[str, Node]) -> None:
        self._rules: dict[str, list[tuple[str, dict[str, list[Node]], Node]]] = defaultdict(list)
        self._known: dict[str, int] = {}
        for tree in trees.values():
            for rule in tree.get("rules") or ():
                package = package_of(tree)
                self._rules[f"{package}.{rule_name(rule)}"].append((package, imports_of(tree), rule))

    def of(self, name: str) -> int:
        """Return the number of alternatives of a rule, which is named with its package."""
        if name not in self._known:
            self._known[name] = 1
            bodies = (
                prod(self._sizes(own, imports, [branch["body"], branch["head"].get("value")]))
                for own, imports, rule in self._rules[name]
                if not rule.get("default")
                for branch in branches(rule)
            )
            self._known[name] = max(sum(bodies), 1)
        return self._known[name]

    def _sizes(self, package: str, imports: Mapping[str, list[Node]], body: Any) -> Iterator[int]:
        for node in nodes(body):
            if "terms" in node and is_every(node) and node["terms"]["domain"].get("type") == "array":
                # OPA evaluates the body once for each item of a constant list. The body itself counts below.
                once = prod(self._sizes(package, imports, node["terms"]["body"]))
                yield once ** max(0, len(node["terms"]["domain"]["value"]) - 1)
            if node.get("type") == "var" and f"{package}.{node['value']}" in self._rules:
                yield self.of(f"{package}.{node['value']}")
            elif node.get("type") == "ref":
                head, *steps = node["value"]
                path = [*imports.get(str(head["value"]), [head]), *steps]
                parts = [str(step["value"]) for step in path[1:] if step.get("type") == "string"]
                names = (".".join(parts[:last]) for last in range(2, len(parts) + 1) if path[0]["value"] == "data")
                yield from (self.of(name) for name in names if name in self._rules)


def _questions(tree: Node) -> Iterator[tuple[str, str]]:
    """Yield the name and a query for each rule of a module; functions and defaults are left out."""
    package = "".join(f"[{json.dumps(step)}]" for step in package_of(tree).split("."))
    for rule in tree.get("rules") or ():
        head = rule["head"]
        if "args" not in head and not rule.get("default") and len(head["ref"]) == 1:
            name = head["ref"][0]["value"]
            term = f"data{package}[{json.dumps(name)}]"
            yield name, f"q if some _ in {term}" if "key" in head else f"q if {term}"


def _remaining(
    opa: Path, policy: Policy, texts: Mapping[str, str], rules: Sequence[str], timeout: float
) -> list[Alternative] | None:
    """Return the conditions on the request that OPA's partial evaluation of rules leaves; None after an error."""
    modules = {**texts, f"{_PROBE}.rego": "\n".join((f"package {_PROBE}", *rules))}
    unknown = [part for name in _UNKNOWN for part in ("--unknowns", name)]
    with Evaluator(opa, modules, policy.data, timeout=timeout) as evaluator:
        try:
            partial = evaluator.query(f"data.{_PROBE}.q", b"{}", "--partial", *unknown).get("partial") or {}
        except EngineTimeoutError:
            raise
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
        constants = ground if isinstance(ground, list) else [ground]
        return [], [constant for constant in constants if _fits_requests(constant)]
    inner = [_parts(request, part, steps) for part in term["value"][1:]] if term.get("type") == "call" else []
    return [path for paths, _ in inner for path in paths], [value for _, values in inner for value in values]


def _fits_requests(constant: Any) -> bool:
    return all(abs(leaf) <= MAX_NUMBER for leaf in leaves(constant) if is_number(leaf))


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
    """Return the path of the request attribute that a term names. A key that is a variable becomes a new element."""
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
