"""Which rules a decision asks for, and what of a package others ask for.

What only another entrypoint asks for, no scenario can notice; and what does not show in the rules that others ask for
changes no decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdp.workbench.opa.syntax import rule_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdp.workbench.opa.syntax import Node

Rule = tuple[str, str]
"""A package, dotted and without `data`, and the first part of a rule's name."""

_DECISION: Final = ("authz", "decision")
_Path = tuple[str, ...]


def asked_rules(trees: Mapping[str, Node]) -> frozenset[Rule]:
    """Return the rules that `authz/decision` asks for, directly or through others.

    Behind a variable (`data.authz.concerns[name].deny`) all rules count as asked for: rather too many than too few.

    Args:
        trees: every module's syntax tree, by its path in the bundle.
    """
    asks = _asks(trees)
    found: set[Rule] = set()
    left = [_DECISION]
    while left:
        rule = left.pop()
        if rule in asks and rule not in found:
            found.add(rule)
            left += [other for other in asks if any(_meets(path, other) for path in asks[rule])]
    return frozenset(found)


def views(trees: Mapping[str, Node]) -> dict[str, str]:
    """Return, for packages that others know only by the values of their rules, these values as one expression of Rego.

    Where it has the same value for a request before and after a change of the package, the decision is the same. There
    is none for a package of which a function is asked for, as nothing lists its values, nor for the decision's own.

    Args:
        trees: as of `asked_rules`.
    """
    asks, asked = _asks(trees), asked_rules(trees)
    functions = {rule for tree in trees.values() for rule in _functions(tree)}
    found: dict[str, str] = {}
    for package in {package for package, _ in asked} - {_DECISION[0]}:
        paths = {path for rule in asked if rule[0] != package for path in asks[rule]}
        if not any(_names(path, rule) for rule in functions if rule[0] == package for path in paths):
            way = "".join(f'["{part}"]' for part in _path(package))
            found[package] = f"json.marshal(data{way})"
    return found


def _asks(trees: Mapping[str, Node]) -> dict[Rule, set[_Path]]:
    """What each rule asks for."""
    asks: dict[Rule, set[_Path]] = {}
    for tree in trees.values():
        package = package_of(tree)
        imports = dict(_imported(entry) for entry in tree.get("imports", ()))
        for rule in tree.get("rules", ()):
            plain = {key: value for key, value in rule.items() if key != "annotations"}
            asks.setdefault((package, _first(rule)), set()).update(_paths(plain, imports, _path(package)))
    return asks


def _functions(tree: Node) -> Iterator[Rule]:
    for rule in tree.get("rules", ()):
        if "args" in rule["head"]:
            yield package_of(tree), _first(rule)


def _first(rule: Node) -> str:
    return rule_name(rule).split(".")[0]


def package_of(tree: Node) -> str:
    """Return a module's package, dotted and without `data`."""
    return ".".join(str(part["value"]) for part in tree["package"]["path"][1:])


def _path(package: str) -> _Path:
    return tuple(package.split("."))


def _meets(path: _Path, rule: Rule) -> bool:
    """Whether one who asks for a path may get a rule's value: it, a part of it, or what it is a part of."""
    whole = (*_path(rule[0]), rule[1])
    shared = min(len(path), len(whole))
    return path[:shared] == whole[:shared]


def _names(path: _Path, rule: Rule) -> bool:
    """Whether a path leads to a rule by its name, and not to a whole of which it is a part."""
    return len(path) > len(_path(rule[0])) and _meets(path, rule)


def _imported(entry: Node) -> tuple[str, _Path]:
    path = tuple(str(part["value"]) for part in entry["path"]["value"])
    return str(entry.get("alias") or path[-1]), path


def _paths(node: Any, imports: Mapping[str, _Path], package: _Path) -> Iterator[_Path]:
    """Yield the paths below `data` that a part of a tree asks for; names of the package's own rules among them."""
    if isinstance(node, list):
        for part in node:
            yield from _paths(part, imports, package)
        return
    if not isinstance(node, dict):
        return
    value = node.get("value")
    if node.get("type") == "var":
        yield from _below_data((str(value),), imports, package)
        return
    if node.get("type") == "ref" and isinstance(value, list):
        head, rest = value[0], value[1:]
        if head.get("type") == "var":
            names = []
            for part in rest:
                if part.get("type") != "string":
                    break
                names.append(str(part["value"]))
            yield from _below_data((str(head["value"]), *names), imports, package)
            yield from _paths(rest, imports, package)
            return
    yield from _paths([each for key, each in node.items() if key != "location"], imports, package)


def _below_data(names: _Path, imports: Mapping[str, _Path], package: _Path) -> Iterator[_Path]:
    whole = (*imports.get(names[0], names[:1]), *names[1:])
    if whole[0] == "data":
        yield whole[1:]
    elif names[0] not in imports:
        yield (*package, *names)
