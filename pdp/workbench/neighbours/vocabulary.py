"""Collect the request attributes that policies name, and constants to try for them, from OPA's syntax trees.

An attribute is a part of a complete call, or a reference in a rule through `input`, an import or a variable. How a rule
uses a value is not analysed, so each constant is tried for every attribute that the rule names. If two policies differ,
the attributes in differing rules come first, because decisions may differ there.
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
"""An attribute of a request: its path, or only the last key of its path. `ANY` in a path matches every key."""

_WITHOUT_CONSTANTS: Final = frozenset(("location", "annotations", "index", "ref"))


class Policy(NamedTuple):
    """The syntax trees of a policy's modules by path in the bundle, and the data that they read by root."""

    trees: Mapping[str, Node]
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """The syntax tree of a rule or an import, and the path of its module."""

    module: str
    node: Node


Differing = tuple["Sequence[Rule]", "Sequence[Rule]"]
"""The rules of one name that only the first policy has, and those that only the second policy has."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """The constants to try as values of a request attribute.

    Constants of only one policy come first, then the constants in rules that name the attribute, in the rules'
    modules, and in data that the modules read. `rank` is 0 if a differing rule names the attribute, 1 if a rule in a
    module near a change names the attribute, otherwise 2.
    """

    strings: tuple[str, ...] = ()
    numbers: tuple[float, ...] = ()
    rank: int = 2


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The attributes that rules name, and all constants, starting with those in `new`.

    `new` has the constants that only one policy or a differing rule has. `near` has the modules that differ or read
    changed data, the modules that use such a module, and the modules that it uses.
    """

    named: Mapping[Name, Attribute] = field(default_factory=dict)
    strings: tuple[str, ...] = ()
    numbers: tuple[float, ...] = ()
    new: frozenset[Constant] = frozenset()
    near: frozenset[str] = frozenset()

    @property
    def paths(self) -> list[JsonPath]:
        """The attributes that rules name with a complete path. Attributes of changed rules (rank 0) come first."""
        whole = (name for name in self.named if isinstance(name, tuple) and ANY not in name)
        return sorted(whole, key=lambda path: self.named[path].rank)

    def attribute(self, path: JsonPath) -> Attribute:
        """Return the constants to try for a path: the constants of attributes whose path or last key matches it."""
        last = next((step for step in reversed(path) if isinstance(step, str)), "")
        elements = tuple(ANY if isinstance(step, int) else step for step in path)
        names: tuple[Name, ...] = (path, elements, (*path[:-1], ANY), last)
        known = [self.named[name] for name in dict.fromkeys(names) if name in self.named]
        return Attribute(
            tuple(dict.fromkeys(chain(*(each.strings for each in known)))),
            tuple(dict.fromkeys(chain(*(each.numbers for each in known)))),
            min((each.rank for each in known), default=2),
        )


class _ParsedModule(NamedTuple):
    """A module. `known` maps imports to paths in the request; `uses` are the data and rules that the module reads."""

    path: str
    package: str
    rules: list[Node]
    known: dict[str, JsonPath]
    uses: set[str]
    constants: list[Constant]
    data: list[Constant]

    def reads(self, other: _ParsedModule) -> bool:
        return any(f"{use}.".startswith(f"{other.package}.") for use in self.uses)


def vocabulary(*policies: Policy, differing: Iterable[Differing] = ()) -> Vocabulary:
    """Return the attributes and constants of one or two policies. `differing` are the rules in which they differ."""
    modules = [_module(path, tree, policy.data) for policy in policies for path, tree in policy.trees.items()]
    differing = list(differing)
    rules = [rule for sides in differing for side in sides for rule in side]
    every = [policy.data for policy in policies]
    roots = {root for data in every for root in data for other in every if data[root] != other.get(root)}
    changed = {rule.module for rule in rules}
    changed |= {module.path for module in modules if any(use.split(".")[0] in roots for use in module.uses)}
    core = [module for module in modules if module.path in changed]
    near = changed | {module.path for module in modules for other in core if module.reads(other) or other.reads(module)}
    new = _new_constants(policies, differing)
    ranks: dict[Name, int] = {}
    # Constants come from three sources: the rule, its module, and data that the module reads.
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


def _module(path: str, tree: Node, data: Mapping[str, Any]) -> _ParsedModule:
    rules = tree.get("rules") or []
    imports = imports_of(tree)
    known: dict[str, JsonPath] = {"input": ()}
    known |= {name: _steps(parts) for name, parts in imports.items() if parts[0]["value"] == "input"}
    references = [*(node["value"] for node in nodes(rules) if node.get("type") == "ref"), *imports.values()]
    uses = {".".join(map(str, _steps(parts))) for parts in references if parts[0].get("value") == "data"}
    # Manifests are left out, because all modules read them.
    roots = data.keys() & {use.split(".")[0] for use in uses} - {"manifests"}
    read = _plain([data[root] for root in sorted(roots)])
    return _ParsedModule(path, package_of(tree), rules, known, uses, list(_constants(rules)), list(read))


def _named(rule: Node, known: Mapping[str, JsonPath]) -> Iterator[Name]:
    """Yield the attributes that a rule names: paths after a `known` name, and single keys of other references."""
    known = dict(known)
    for node in nodes(rule):
        terms = node.get("terms")
        if isinstance(terms, list) and operator(terms) == "assign" and terms[1].get("type") == "var":
            base = _path(terms[2], known)
            known |= {} if base is None else {terms[1]["value"]: base}
        path = _path(node, known)
        if path:
            yield path
        elif node.get("type") == "ref":
            yield from (step for step in _steps(node["value"]) if isinstance(step, str))
        elif node.get("type") == "call" and operator(node["value"]) == "object.get":
            yield from (step for step in _keys(node["value"][2]) if isinstance(step, str))


def _path(term: Node, known: Mapping[str, JsonPath]) -> JsonPath | None:
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
    base = _path(holder, known)
    return None if base is None else (*base, *steps)


def _steps(reference: Sequence[Node]) -> JsonPath:
    return tuple(map(_step, reference[1:]))


def _keys(key: Node) -> JsonPath:
    return tuple(map(_step, key["value"] if key.get("type") == "array" else [key]))


def _step(part: Node) -> str | int:
    plain = part.get("type") in ("string", "number") and isinstance(part["value"], str | int)
    return part["value"] if plain else ANY


def _constants(tree: Any) -> Iterator[Constant]:
    """Yield the constants in a syntax tree, without names of attributes and without the details of reasons."""
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
    """Return constants that only one policy has, then constants that differing rules of one policy use more often."""
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
