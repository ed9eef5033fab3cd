"""What policies read of a request, and the constants that stand beside it, from OPA's syntax trees.

Given the modules and data of two policies, what only one of them has comes first: that is where they may differ.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pdp.workbench.neighbours.values import ANY, is_number, leaves
from pdp.workbench.opa.forms import rule_forms
from pdp.workbench.opa.syntax import branches, nodes, operator, package_of, rule_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from pdp.workbench.neighbours.values import JsonPath
    from pdp.workbench.opa.syntax import Node

Constant = str | float

_MEMBERS: Final = {"internal.member_2": 1, "internal.member_3": 2}
_PASSES: Final = 4
"""How many names an attribute may go through: a rule's, an argument's, a variable's."""

_DEEPEST: Final = 12
_WITHOUT_CONSTANTS: Final = frozenset(("location", "annotations", "index", "ref"))
_Rule = tuple[str, str]
_Form = tuple[str, bytes]


class Policy(NamedTuple):
    """Syntax trees of modules by their path in the bundle, and the roots of the data."""

    trees: Mapping[str, Node]
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Attribute:
    """Something of a request that policies read.

    Attributes:
        path: where it stands in a request; `ANY` is a step that the text does not name, such as each element of a list.
        strings, numbers: constants to try there: new ones, those of its rule, of its module, and of the data that
            the module reads.
        rank: 0 if a rule that only one policy has reads it; 1 if the rule's module, or a module that uses it or that it
            uses, does; else 2.
        listed: whether a policy goes through it as a list.
    """

    path: JsonPath
    strings: tuple[str, ...]
    numbers: tuple[float, ...]
    rank: int
    listed: bool


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Attributes, the most interesting first, and all constants, new ones first.

    `new` are the constants that only one policy has, or has in a rule that differs; `near` the modules that differ or
    read data that do, that use one of these, or that one of these uses.
    """

    attributes: tuple[Attribute, ...]
    strings: tuple[str, ...]
    numbers: tuple[float, ...]
    new: frozenset[Constant] = frozenset()
    near: frozenset[str] = frozenset()


def vocabulary(policy: Policy, other: Policy | None = None) -> Vocabulary:
    """Return what a policy reads and compares with; with another one, what both do."""
    sides = [_Side(side) for side in (policy, *(() if other is None else (other,)))]
    rules = [side.rules(beside) for side, beside in zip(sides, reversed(sides), strict=True)]
    differing: set[_Form] = set() if other is None else rules[0].keys() ^ rules[1].keys()
    changed = frozenset(side[name].module for side in rules for name in differing & side.keys())
    roots = {
        root
        for side in sides
        for root in side.policy.data
        if any(side.policy.data[root] != another.policy.data.get(root) for another in sides)
    }
    changed = changed.union(*(side.reading(roots) for side in sides))
    near = changed.union(*(side.linked(changed) for side in sides))
    new = _new_constants(sides, rules, differing)
    ranks: dict[JsonPath, int] = {}
    gone_through: set[JsonPath] = set()
    # Of its rules, of their modules, and of the data that those read.
    constants: dict[JsonPath, list[dict[Constant, None]]] = defaultdict(lambda: [{}, {}, {}])
    for side, known in zip(sides, rules, strict=True):
        for form, rule in known.items():
            rank = 0 if form in differing else 1 if rule.module in near else 2
            sources = _constants(_terms(rule.node)), side.constants([rule.module]), side.data_of(rule.module)
            more = [dict.fromkeys(source) for source in sources]
            for path, listed in sorted(rule.reads, key=str):
                ranks[path] = min(rank, ranks.get(path, rank))
                gone_through |= {path} if listed else set()
                constants[path] = [first | then for first, then in zip(constants[path], more, strict=True)]
    attributes = [
        Attribute(path, *_sorted_out(chain(*constants[path]), new), rank, path in gone_through)
        for path, rank in sorted(ranks.items(), key=lambda item: item[1])
        if path
    ]
    every: dict[Constant, None] = {}
    for modules in (sorted(changed), sorted(near), *(side.policy.trees for side in sides)):
        for side in sides:
            every |= dict.fromkeys(side.constants(modules))
    for side in sides:
        every |= dict.fromkeys(_constants(leaves(dict(side.policy.data))))
    return Vocabulary(tuple(attributes), *_sorted_out(every, new), frozenset(new), near)


class _RuleReads(NamedTuple):
    """A rule: the path of its module, its name, its tree, and the attributes that it reads, listed or not."""

    module: str
    name: _Rule
    node: Node
    reads: frozenset[tuple[JsonPath, bool]]


class _Side:
    """One policy, with the names that stand for parts of the request.

    Attributes:
        aliases: the parts of a request that a rule's value is.
        arguments: the parts of a request that a function is called with, by its name and the argument's position.
        packages: of each module, its package.
        imports: of each module, the path that a name is imported for.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.packages = {path: package_of(tree) for path, tree in policy.trees.items()}
        self.imports = {path: _imports(tree) for path, tree in policy.trees.items()}
        self.aliases: dict[_Rule, set[JsonPath]] = defaultdict(set)
        self.arguments: dict[tuple[_Rule, int], set[JsonPath]] = defaultdict(set)
        self._uses: dict[str, set[str]] = defaultdict(set)
        self._data: dict[str, set[str]] = defaultdict(set)
        self._heads = {
            (self.packages[path], rule_name(rule).split(".")[0])
            for path, tree in policy.trees.items()
            for rule in tree.get("rules", ())
        }
        self._constants = {path: list(_constants(_terms(tree.get("rules", [])))) for path, tree in policy.trees.items()}
        for _ in range(_PASSES):
            for path, rule in self._rules():
                _Reader(self, path, rule).read()

    def _rules(self) -> Iterator[tuple[str, Node]]:
        return ((path, rule) for path, tree in self.policy.trees.items() for rule in tree.get("rules", ()))

    def rules(self, other: _Side) -> dict[_Form, _RuleReads]:
        """Return every rule by what it says, wherever it stands in its package."""
        return {
            (self.packages[path], form): _RuleReads(
                path, (self.packages[path], rule_name(rule)), rule, frozenset(_Reader(self, path, rule).read())
            )
            for path, forms in rule_forms(self.policy.trees, other.policy.trees).items()
            for rule, form in forms
            if "head" in rule
        }

    def constants(self, modules: Iterable[str]) -> Iterator[Constant]:
        """Yield the constants of modules."""
        for path in modules:
            yield from self._constants.get(path, ())

    def data_of(self, module: str) -> Iterator[Constant]:
        """Yield the constants of the data that a module reads, but not of manifests, which all do."""
        for root in sorted(self._data[module]):
            yield from _constants(leaves(self.policy.data.get(root)))

    def reading(self, roots: AbstractSet[str]) -> set[str]:
        """Return the modules that read these roots of data."""
        return {module for module, read in self._data.items() if read & roots}

    def linked(self, modules: Iterable[str]) -> set[str]:
        """Return the modules that use these, or that these use."""
        packages = {self.packages[path] for path in modules if path in self.packages}
        used = {package for path in modules for package in self._uses[path]}
        return {path for path, package in self.packages.items() if package in used or self._uses[path] & packages}

    def resolved(self, module: str, parts: tuple[Any, ...]) -> tuple[_Rule | None, tuple[Any, ...]]:
        """Return the rule that a reference leads to and what follows it; data that no rule makes is noted."""
        whole = (*self.imports[module].get(parts[0], parts[:1]), *parts[1:])
        if whole[0] != "data":
            rule = (self.packages[module], str(whole[0]))
            return (rule, whole[1:]) if rule in self._heads else (None, ())
        for end in range(2, len(whole)):
            rule = (".".join(map(str, whole[1:end])), str(whole[end]))
            if rule in self._heads:
                self._uses[module].add(rule[0])
                return rule, whole[end + 1 :]
        if len(whole) > 1 and whole[1] in self.policy.data and whole[1] != "manifests":
            self._data[module].add(str(whole[1]))
        return None, ()


class _Reader:
    """One rule: its variables, and what it reads."""

    def __init__(self, side: _Side, module: str, rule: Node) -> None:
        self._side, self._module, self._rule = side, module, rule
        self._scope: dict[str, set[JsonPath]] = defaultdict(set)

    def read(self) -> Iterator[tuple[JsonPath, bool]]:
        """Return what the rule reads, each attribute with whether it is gone through; names are noted on the way."""
        own = (self._side.packages[self._module], rule_name(self._rule).split(".")[0])
        for branch in branches(self._rule):
            for index, argument in enumerate(branch["head"].get("args", ())):
                self._bind(argument, self._side.arguments[own, index])
        for node in nodes(self._rule):
            self._declare(node)
        for branch in branches(self._rule):
            value = branch["head"].get("value")
            if value is not None and "key" not in branch["head"]:
                self._side.aliases[own] |= self._paths(value)
        read: dict[tuple[JsonPath, bool], None] = {}
        for node in nodes(self._rule):
            if node.get("type") == "ref" or (node.get("type") == "call" and operator(node["value"]) == "object.get"):
                read |= dict.fromkeys((path, False) for path in self._paths(node))
            for listed in self._listed(node):
                read |= dict.fromkeys((path, True) for path in self._paths(listed))
        return iter(read)

    def _declare(self, node: Node) -> None:
        """Note what variables stand for, and what functions are called with."""
        terms = _called(node) or []
        name = operator(terms) if terms else None
        if name in ("assign", "eq") and len(terms) == 3:  # noqa: PLR2004 - an operator with two sides
            self._bind(terms[1], self._paths(terms[2]))
        elif terms and name not in _MEMBERS:
            parts = tuple(part.get("value") for part in terms[0].get("value", ()))
            rule, _ = self._side.resolved(self._module, parts) if parts else (None, ())
            for index, term in enumerate(terms[1:] if rule else ()):
                if rule is not None:
                    self._side.arguments[rule, index] |= self._paths(term)
        for variable, domain in _iterated(node):
            self._bind(variable, {(*path, ANY) for path in self._paths(domain)})

    def _listed(self, node: Node) -> Iterator[Node]:
        """The terms that are gone through as lists."""
        terms = _called(node)
        if terms is not None and operator(terms) in _MEMBERS:
            yield terms[-1]
        yield from (domain for _, domain in _iterated(node))

    def _bind(self, variable: Any, paths: Iterable[JsonPath]) -> None:
        if isinstance(variable, dict) and variable.get("type") == "var":
            self._scope[variable["value"]].update(paths)

    def _paths(self, term: Node) -> set[JsonPath]:
        """The parts of a request that a term stands for, up to a depth: rules may refer to each other in a circle."""
        return {path for path in self._stood_for(term) if len(path) <= _DEEPEST}

    def _stood_for(self, term: Node) -> set[JsonPath]:
        kind, value = term.get("type"), term.get("value")
        if kind == "var":
            return self._below(str(value), ())
        if kind == "ref" and value and value[0].get("type") == "var":
            return self._below(str(value[0]["value"]), tuple(map(_step, value[1:])))
        if kind == "call" and operator(term["value"]) == "object.get" and len(term["value"]) > 2:  # noqa: PLR2004
            holder, key = term["value"][1:3]
            steps = [*map(_step, key["value"] if key.get("type") == "array" else [key])]
            return {(*path, *steps) for path in self._paths(holder)}
        return set()

    def _below(self, name: str, steps: tuple[Any, ...]) -> set[JsonPath]:
        if name == "input":
            return {steps}
        if name in self._scope:
            return {(*path, *steps) for path in self._scope[name]}
        imported = self._side.imports[self._module].get(name)
        if imported is not None and imported[0] == "input":
            return {(*imported[1:], *steps)}
        rule, rest = self._side.resolved(self._module, (name, *steps))
        return {(*path, *rest) for path in self._side.aliases[rule]} if rule else set()


def _iterated(node: Node) -> list[tuple[Node, Node]]:
    """Return of `some x in xs` and `every x in xs` the variable and the list; of anything else nothing."""
    if "domain" in node and "body" in node:
        return [(node["value"], node["domain"])]
    symbols = node.get("symbols")
    calls = (symbol["value"] for symbol in symbols if symbol.get("type") == "call") if isinstance(symbols, list) else ()
    return [(call[-2], call[-1]) for call in calls]


def _called(node: Node) -> list[Node] | None:
    """The operator and operands of a call, as an expression or as a term."""
    terms = node.get("terms", node.get("value") if node.get("type") == "call" else None)
    return terms if isinstance(terms, list) and terms and isinstance(terms[0], dict) else None


def _imports(tree: Node) -> dict[str, tuple[Any, ...]]:
    paths = ((node, tuple(part["value"] for part in node["path"]["value"])) for node in tree.get("imports", ()))
    return {str(node.get("alias") or path[-1]): path for node, path in paths}


def _step(part: Node) -> str | int:
    """A step of a reference."""
    plain = part.get("type") in ("string", "number") and isinstance(part["value"], str | int)
    return part["value"] if plain else ANY


def _terms(tree: Any) -> Iterator[Any]:
    """Yield the constants of a tree: not names of attributes, operators, or what a reason says for explanation."""
    if isinstance(tree, list):
        for part in tree:
            yield from _terms(part)
        return
    if not isinstance(tree, dict):
        return
    if tree.get("type") in ("string", "number"):
        yield tree["value"]
        return
    if tree.get("type") == "ref":
        yield from _terms([part for part in tree["value"][1:] if part.get("type") != "string"])
        return
    terms = _called(tree)
    if terms is not None:
        yield from _terms([] if operator(terms).endswith("reason.new") else terms[1:])
        yield from _terms(tree.get("with"))
        return
    yield from _terms([value for key, value in tree.items() if key not in _WITHOUT_CONSTANTS])


def _constants(values: Iterable[Any]) -> Iterator[Constant]:
    return (value for value in values if isinstance(value, str) or is_number(value))


def _new_constants(
    sides: Sequence[_Side], rules: Sequence[Mapping[_Form, _RuleReads]], differing: AbstractSet[_Form]
) -> list[Constant]:
    """The constants that only one policy has, then those that a rule of the same name has more often in one of them."""
    if len(sides) == 1:
        return []
    before, after = (
        {*side.constants(side.policy.trees), *_constants(leaves(dict(side.policy.data)))} for side in sides
    )
    counts: dict[_Rule, list[Counter[Constant]]] = defaultdict(lambda: [Counter(), Counter()])
    for number, known in enumerate(rules):
        for name in differing & known.keys():
            counts[known[name].name][number].update(_constants(_terms(known[name].node)))
    moved = {constant for first, second in counts.values() for constant in (*(first - second), *(second - first))}
    return [*sorted(before ^ after, key=str), *sorted(moved - (before ^ after), key=str)]


def _sorted_out(constants: Iterable[Constant], new: Iterable[Constant]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Texts and numbers apart, new ones first."""
    known = dict.fromkeys(constants)
    ordered = dict.fromkeys((*(constant for constant in new if constant in known), *known))
    strings = tuple(constant for constant in ordered if isinstance(constant, str))
    return strings, tuple(constant for constant in ordered if not isinstance(constant, str))
