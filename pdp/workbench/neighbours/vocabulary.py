"""What policies name of a request, and the constants that stand beside it, from OPA's syntax trees.

The parts of a request are known: those of a call that has all it needs, and what a rule names behind `input`, an import
or a variable of it. How a value gets from there to a comparison is not followed: whatever part of a request has a name
that a rule names may be meant. Given the rules in which two policies differ, what these name comes first: that is where
decisions may differ.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

from pdp.opa.syntax import Node, imports_of, nodes, operator, package_of
from pdp.workbench.neighbours.values import ANY, JsonPath, is_number, leaves

Constant = str | float
Name = tuple[str | int, ...] | str
"""A part of a request by its path, or by its last step alone; `ANY` is a step that is open."""

_WITHOUT_CONSTANTS: Final = frozenset(("location", "annotations", "index", "ref"))


class Policy(NamedTuple):
    """Syntax trees of modules by their path in the bundle, and the roots of the data that they read."""

    trees: Mapping[str, Node]
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule or an import: the path of its module, and its tree."""

    module: str
    node: Node


Differing = tuple["Sequence[Rule]", "Sequence[Rule]"]
"""Of one name the rules that only the one policy has, and those that only the other has."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """What is known of a part of a request.

    Attributes:
        strings, numbers: constants to try there: new ones, those of the rules that name it, of their modules, and of
            the data that these read.
        rank: 0 if a rule that only one policy has names it; 1 if a rule of a module that is near one does; else 2.
    """

    strings: tuple[str, ...] = ()
    numbers: tuple[float, ...] = ()
    rank: int = 2


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What rules name, and all constants, new ones first.

    `new` are the constants that only one policy has, or has in a rule that differs; `near` the modules that differ or
    read data that do, that use one of these, or that one of these uses.
    """

    named: Mapping[Name, Attribute] = field(default_factory=dict)
    strings: tuple[str, ...] = ()
    numbers: tuple[float, ...] = ()
    new: frozenset[Constant] = frozenset()
    near: frozenset[str] = frozenset()

    @property
    def paths(self) -> list[JsonPath]:
        """The parts of a request that rules name without an open step, the most interesting first."""
        whole = (name for name in self.named if isinstance(name, tuple) and ANY not in name)
        return sorted(whole, key=lambda path: self.named[path].rank)

    def attribute(self, path: JsonPath) -> Attribute:
        """Return what is known of a part of a request: by its path, with open steps as well, and by its last name."""
        last = next((step for step in reversed(path) if isinstance(step, str)), "")
        elements = tuple(ANY if isinstance(step, int) else step for step in path)
        names: tuple[Name, ...] = (path, elements, (*path[:-1], ANY), last)
        known = [self.named[name] for name in dict.fromkeys(names) if name in self.named]
        return Attribute(
            tuple(dict.fromkeys(chain(*(each.strings for each in known)))),
            tuple(dict.fromkeys(chain(*(each.numbers for each in known)))),
            min((each.rank for each in known), default=2),
        )


class _Module(NamedTuple):
    """A module.

    Attributes:
        known: the names that stand for the request or a part of it.
        uses: the data that it asks for, rules among them, by their dotted paths.
        constants: its own; data: those of the data that no rule makes.
    """

    path: str
    package: str
    rules: list[Node]
    known: dict[str, JsonPath]
    uses: set[str]
    constants: list[Constant]
    data: list[Constant]

    def asks(self, other: _Module) -> bool:
        """Whether it uses another one."""
        return any(f"{use}.".startswith(f"{other.package}.") for use in self.uses)


def vocabulary(*policies: Policy, differing: Iterable[Differing] = ()) -> Vocabulary:
    """Return what one or two policies name and compare with; `differing` are the rules in which they differ."""
    modules = [_module(path, tree, policy.data) for policy in policies for path, tree in policy.trees.items()]
    differing = list(differing)
    rules = [rule for sides in differing for side in sides for rule in side]
    every = [policy.data for policy in policies]
    roots = {root for data in every for root in data for other in every if data[root] != other.get(root)}
    changed = {rule.module for rule in rules}
    changed |= {module.path for module in modules if any(use.split(".")[0] in roots for use in module.uses)}
    some = [module for module in modules if module.path in changed]
    near = changed | {module.path for module in modules for one in some if module.asks(one) or one.asks(module)}
    new = _new_constants(policies, differing)
    ranks: dict[Name, int] = {}
    # Of its rules, of their modules, and of the data that those read.
    constants: dict[Name, list[dict[Constant, None]]] = defaultdict(lambda: [{}, {}, {}])
    differ = {id(rule.node) for rule in rules}
    for module in modules:
        for node in module.rules:
            rank = 0 if id(node) in differ else 1 if module.path in near else 2
            more = [dict.fromkeys(source) for source in (_constants(node), module.constants, module.data)]
            for name in dict.fromkeys(_named(node, module.known)):
                ranks[name] = min(rank, ranks.get(name, rank))
                constants[name] = [first | then for first, then in zip(constants[name], more, strict=True)]
    modules.sort(key=lambda module: (module.path not in changed, module.path not in near))
    all_constants = chain(*(module.constants for module in modules), *map(_plain, every))
    return Vocabulary(
        {name: Attribute(*_sorted_out(chain(*constants[name]), new), rank) for name, rank in ranks.items()},
        *_sorted_out(all_constants, new),
        frozenset(new),
        frozenset(near),
    )


def _module(path: str, tree: Node, data: Mapping[str, Any]) -> _Module:
    rules = tree.get("rules") or []
    imports = imports_of(tree)
    known: dict[str, JsonPath] = {"input": ()}
    known |= {name: _steps(parts) for name, parts in imports.items() if parts[0]["value"] == "input"}
    references = [*(node["value"] for node in nodes(rules) if node.get("type") == "ref"), *imports.values()]
    uses = {".".join(map(str, _steps(parts))) for parts in references if parts[0].get("value") == "data"}
    # All modules read the manifests.
    roots = data.keys() & {use.split(".")[0] for use in uses} - {"manifests"}
    read = _plain([data[root] for root in sorted(roots)])
    return _Module(path, package_of(tree), rules, known, uses, list(_constants(rules)), list(read))


def _named(rule: Node, known: Mapping[str, JsonPath]) -> Iterator[Name]:
    """Yield what a rule names: parts of the request behind names that are `known`, and of anything else each step."""
    known = dict(known)
    for node in nodes(rule):
        terms = node.get("terms")
        if isinstance(terms, list) and operator(terms) == "assign" and terms[1].get("type") == "var":
            held = _path(terms[2], known)
            known |= {} if held is None else {terms[1]["value"]: held}
        path = _path(node, known)
        if path:
            yield path
        elif node.get("type") == "ref":
            yield from (step for step in _steps(node["value"]) if isinstance(step, str))
        elif node.get("type") == "call" and operator(node["value"]) == "object.get":
            yield from (step for step in _keys(node["value"][2]) if isinstance(step, str))


def _path(term: Node, known: Mapping[str, JsonPath]) -> JsonPath | None:
    """The part of a request that a term names; None where it names none."""
    value: Any = term.get("value")
    match term.get("type"):
        case "var":
            return known.get(value)
        case "ref":
            holder, steps = value[0], _steps(value)
        case "call" if operator(value) == "object.get":
            holder, steps = value[1], _keys(value[2])
        case _:
            return None
    held = _path(holder, known)
    return None if held is None else (*held, *steps)


def _steps(reference: Sequence[Node]) -> JsonPath:
    return tuple(map(_step, reference[1:]))


def _keys(key: Node) -> JsonPath:
    """The steps of `object.get`: its key, or a list of them."""
    return tuple(map(_step, key["value"] if key.get("type") == "array" else [key]))


def _step(part: Node) -> str | int:
    plain = part.get("type") in ("string", "number") and isinstance(part["value"], str | int)
    return part["value"] if plain else ANY


def _constants(tree: Any) -> Iterator[Constant]:
    """Yield the constants of a tree: not names of attributes, nor what a reason says for explanation."""
    parts = tree if isinstance(tree, list) else []
    if isinstance(tree, dict):
        parts = [inner for key, inner in tree.items() if key not in _WITHOUT_CONSTANTS]
        if tree.get("type") in ("string", "number"):
            yield from _plain(tree["value"])
        elif tree.get("type") == "ref":
            parts = [step for step in tree["value"][1:] if step.get("type") != "string"]
    elif parts and isinstance(parts[0], dict) and operator(parts).endswith("reason.new"):
        return
    for part in parts:
        yield from _constants(part)


def _plain(value: Any) -> Iterator[Constant]:
    return (leaf for leaf in leaves(value) if isinstance(leaf, str) or is_number(leaf))


def _new_constants(policies: Sequence[Policy], differing: Iterable[Differing]) -> list[Constant]:
    """The constants that only one policy has, then those that the rules of a name have more often in one of them."""
    rules = [[tree.get("rules") for tree in policy.trees.values()] for policy in policies]
    sides = [{*_constants(every), *_plain(policy.data)} for every, policy in zip(rules, policies, strict=True)]
    own = sides[0] ^ sides[-1]
    counts = [[Counter(_constants([rule.node for rule in side])) for side in sides] for sides in differing]
    moved = {constant for before, after in counts for constant in (*(before - after), *(after - before))}
    return [*sorted(own, key=str), *sorted(moved - own, key=str)]


def _sorted_out(constants: Iterable[Constant], new: Iterable[Constant]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    known = dict.fromkeys(constants)
    ordered = dict.fromkeys((*(constant for constant in new if constant in known), *known))
    strings = tuple(constant for constant in ordered if isinstance(constant, str))
    return strings, tuple(constant for constant in ordered if not isinstance(constant, str))
