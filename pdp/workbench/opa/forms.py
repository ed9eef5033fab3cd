"""Rules of two policies in a form without what has no meaning: rules of equal forms decide alike.

That is locations, comments, and the order in which a set, an object or a body is written. OPA itself orders the
expressions of a body so that each variable has a value before it is needed. One body keeps its order: a comprehension
or `every` in it uses the name of a rule which the body declares as a variable as well. Before the declaration the name
means the rule, after it the variable.

Names have no meaning either: those of variables, and those of helpers that only one of the two policies has, where no
reference could reach a helper by a name that is computed.
"""

from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from itertools import takewhile
from typing import Any, Final

from pdp.json import canonical, digest
from pdp.workbench.opa.syntax import Node, declared, imports_of, is_every, nodes, package_of, rule_name, variables

_WITHOUT_MEANING: Final = frozenset(("location", "annotations", "comments", "index"))
_UNORDERED: Final = ("set", "object")
_POLICIES: Final = ("authz", "custom")
_ANY_NAME: Final = "$"


def rule_forms(trees: Mapping[str, Node], others: Mapping[str, Node]) -> dict[str, list[tuple[Node, bytes]]]:
    """Return the imports and rules of each module, each with its form; `others` are the policy to compare with."""
    forms = _Forms(trees, others)
    return {
        path: [
            (node, forms.form(package_of(tree), node)) for key in ("imports", "rules") for node in tree.get(key) or ()
        ]
        for path, tree in trees.items()
    }


class _Forms:
    """The names of one policy, and what they stand for in forms."""

    def __init__(self, trees: Mapping[str, Node], others: Mapping[str, Node]) -> None:
        self._names: dict[str, set[str]] = defaultdict(set)
        self._rules: dict[tuple[str, str], list[Node]] = defaultdict(list)
        beside: dict[str, set[str]] = defaultdict(set)
        # A name that stands in a text may be asked for by it.
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
            # A name that is a rule's and a variable's is left as it is: its meaning depends on where it stands.
            name: "" if name == own else self._stand_in(package, name)
            for part, name in self._rules
            if part == package and name in used and name not in local
        }
        plain = _sorted(_renamed(node, renamed), names, dict.fromkeys(local - names, _ANY_NAME))
        order = (name for name in variables(plain) if name in local - names)
        return canonical(_renamed(plain, {name: f"%{number}" for number, name in enumerate(order)}))

    def _stand_in(self, package: str, name: str) -> str:
        """What stands for the name of a helper: a digest of what it says."""
        if (package, name) not in self._stand_ins:
            self._stand_ins[package, name] = name
            forms = sorted(self.form(package, rule).decode() for rule in self._rules[package, name])
            self._stand_ins[package, name] = digest(canonical(forms))
        return self._stand_ins[package, name]


def _names(tree: Node) -> set[str]:
    rules = {rule_name(rule).partition(".")[0] for rule in tree.get("rules") or ()}
    return rules | {"input", "data", *imports_of(tree)}


def _computes(tree: Node, rules: AbstractSet[str]) -> bool:
    """Whether a module may reach a rule by a name that it computes: through a package, or a step that is open."""
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
        # What stands above the rules reaches all of them, or one by a name behind an open step.
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
    """A part of a tree with other names for variables and rules, and without what has no meaning."""
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {key: _renamed(item, names) for key, item in value.items() if key not in _WITHOUT_MEANING}
    name = plain.get("value")
    if plain.get("type") == "var" and isinstance(name, str):
        # Each `_` is a variable of its own, numbered by its place.
        plain["value"] = names.get(name, _ANY_NAME if name.startswith(_ANY_NAME) else name)
    if plain.get("name") in names and "ref" in plain:
        plain["name"] = names[plain["name"]]
    return plain


def _sorted(value: Any, names: AbstractSet[str], blank: Mapping[str, str]) -> Any:
    """A part of a tree with what has no order sorted, first by what does not depend on the names of variables."""
    if isinstance(value, list):
        return [_sorted(item, names, blank) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {key: _sorted(item, names, blank) for key, item in value.items()}
    unordered = "value" if plain.get("type") in _UNORDERED else "body"
    items = plain.get(unordered)
    if isinstance(items, list) and not (unordered == "body" and _order_matters(value["body"], names)):
        plain[unordered] = sorted(items, key=lambda item: (canonical(_renamed(item, blank)), canonical(item)))
    return plain


def _order_matters(body: list[Node], names: AbstractSet[str]) -> bool:
    brought = {name for expression in body for name in declared(expression)} & names
    # The comprehensions and `every` within the expressions.
    inner = (node for node in nodes(body) if isinstance(node.get("body"), list))
    return any(brought & variables(node).keys() for node in inner)
