"""Canonical forms of the rules of two policies: rules with equal forms decide alike.

A form leaves out locations, comments, and the order in which a set, an object or a body is written. OPA itself orders
the expressions of a body so that each variable has a value before it is used. A body keeps its order if a comprehension
or `every` in it uses a name that is both a rule and a variable of the body, because the name means the rule before the
declaration of the variable, and the variable after it.

A form replaces the names of variables, and of helpers that only one of the two policies has. The names of helpers are
kept if a policy may compute the name of a rule at run time.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import takewhile
from typing import Any, Final

from pdp.json import digest
from pdp.opa.syntax import Node, declared, imports_of, is_every, nodes, package_of, rule_name, variables

_WITHOUT_MEANING: Final = frozenset(("location", "annotations", "comments", "index"))
_UNORDERED: Final = ("set", "object")
_POLICIES: Final = ("authz", "custom")
_ANY_NAME: Final = "$"


def rule_forms(
    trees: Mapping[str, Node], others: Mapping[str, Node], paths: Iterable[str]
) -> dict[str, list[tuple[Node, bytes]]]:
    """Return imports and rules of the modules at `paths` with their forms. `others` are the other policy's modules."""
    forms = _Forms(trees, others)
    return {
        path: [
            (node, forms.form(package_of(trees[path]), node))
            for key in ("imports", "rules")
            for node in trees[path].get(key) or ()
        ]
        for path in paths
    }


class _Forms:
    """Creates the forms of a policy's rules, and the replacements of helpers' names in them."""

    def __init__(self, trees: Mapping[str, Node], others: Mapping[str, Node]) -> None:
        self._names: dict[str, set[str]] = defaultdict(set)
        self._rules: dict[tuple[str, str], list[Node]] = defaultdict(list)
        beside: dict[str, set[str]] = defaultdict(set)
        # Names that also occur as a string are kept, because the policy may use the string to look up a rule by its
        # name.
        every = (node for tree in (*trees.values(), *others.values()) for node in nodes(tree.get("rules") or ()))
        texts = {str(node["value"]) for node in every if node.get("type") == "string"}
        for tree in others.values():
            beside[package_of(tree)] |= _names(tree)
        for tree in trees.values():
            self._names[package_of(tree)] |= _names(tree)
            for rule in tree.get("rules") or ():
                name, package = rule_name(rule), package_of(tree)
                if name.startswith("_") and name not in beside[package] | texts:
                    self._rules[package, name].append(rule)
        known = {f"{package_of(tree)}.{name}" for tree in (*trees.values(), *others.values()) for name in _names(tree)}
        if any(_computes(tree, known) for tree in (*trees.values(), *others.values())):
            self._rules.clear()
        self._stand_ins: dict[tuple[str, str], str] = {}

    def form(self, package: str, node: Node) -> bytes:
        own = rule_name(node) if "head" in node else None
        names, local, used = self._names[package], _locals(node), variables(node)
        renamed = {
            # A name that is used for both a rule and a variable is kept, because its meaning depends on its location.
            name: "" if name == own else self._stand_in(package, name)
            for part, name in self._rules
            if part == package and name in used and name not in local
        }
        plain = _sorted(_renamed(node, renamed), names, dict.fromkeys(local - names, _ANY_NAME))
        order = (name for name in variables(plain) if name in local - names)
        return _written(_renamed(plain, {name: f"%{number}" for number, name in enumerate(order)}))

    def _stand_in(self, package: str, name: str) -> str:
        """Return the text that replaces a helper's name: a digest of the helper's rules."""
        if (package, name) not in self._stand_ins:
            self._stand_ins[package, name] = name
            forms = sorted(self.form(package, rule).decode() for rule in self._rules[package, name])
            self._stand_ins[package, name] = digest(_written(forms))
        return self._stand_ins[package, name]


def _names(tree: Node) -> set[str]:
    rules = {rule_name(rule).partition(".")[0] for rule in tree.get("rules") or ()}
    return rules | {"input", "data", *imports_of(tree)}


def _computes(tree: Node, rules: AbstractSet[str]) -> bool:
    """Return whether a module may compute the name of a rule, through a whole package or a variable key."""
    imports, every = imports_of(tree), list(nodes(tree.get("rules") or ()))
    heads = {id(node["value"][0]) for node in every if node.get("type") == "ref"}
    for node in every:
        head, *steps = node["value"] if node.get("type") == "ref" else [node]
        if head.get("type") != "var" or id(node) in heads:
            continue
        path = [part["value"] for part in imports.get(str(head["value"]), [head])]
        path += (step["value"] if step.get("type") == "string" else None for step in steps)
        if path[0] != "data" or (len(path) > 1 and path[1] not in _POLICIES):
            continue
        known = "".join(f"{step}." for step in takewhile(lambda step: step is not None, path[1:]))
        # A reference to a parent of the rules reaches all rules below it, and a variable in it may reach any of them.
        if not any(known.startswith(f"{rule}.") for rule in rules) and (path[-1] is None or None not in path):
            return True
    return False


def _locals(node: Node) -> set[str]:
    local: set[str] = set()
    used: set[str] = set()
    for part in nodes(node):
        local |= variables(part.get("args")).keys()
        if "terms" in part:
            local |= declared(part)
            if is_every(part):
                local |= variables([part["terms"].get("key"), part["terms"]["value"]]).keys()
        terms = part.get("terms", part.get("value") if part.get("type") == "call" else None)
        if isinstance(terms, list) and terms:
            used |= variables(terms[0]).keys()
    return {name for name in local - used if not name.startswith("$")}


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Return a part of a syntax tree with renamed variables and rules, without locations and comments."""
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {key: _renamed(item, names) for key, item in value.items() if key not in _WITHOUT_MEANING}
    name = plain.get("value")
    if plain.get("type") == "var" and isinstance(name, str):
        # OPA numbers each `_` by its location, so the number is left out.
        plain["value"] = names.get(name, _ANY_NAME if name.startswith(_ANY_NAME) else name)
    if plain.get("name") in names and "ref" in plain:
        plain["name"] = names[plain["name"]]
    return plain


def _written(value: Any) -> bytes:
    # Unlike the canonical form of requests, this admits the integers of Rego, which have any size.
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _sorted(value: Any, names: AbstractSet[str], blank: Mapping[str, str]) -> Any:
    """Return a part of a syntax tree with unordered items sorted, independently of variable names if possible."""
    if isinstance(value, list):
        return [_sorted(item, names, blank) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {key: _sorted(item, names, blank) for key, item in value.items()}
    unordered = "value" if plain.get("type") in _UNORDERED else "body"
    items = plain.get(unordered)
    if isinstance(items, list) and not (unordered == "body" and _order_matters(value["body"], names)):
        plain[unordered] = sorted(items, key=lambda item: (_written(_renamed(item, blank)), _written(item)))
    return plain


def _order_matters(body: list[Node], names: AbstractSet[str]) -> bool:
    brought = {name for expression in body for name in declared(expression)} & names
    # Within the body, only comprehensions and `every` can give one name two meanings.
    inner = (node for node in nodes(body) if isinstance(node.get("body"), list))
    return any(brought & variables(node).keys() for node in inner)
