"""The rules of a policy by their full name, with all that is needed to understand a rule by itself."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pdp.json import canonical
from pdp.opa.modules import Module
from pdp.opa.rules import PARTS, statements
from pdp.opa.syntax import Node, Source, imports_of, nodes, package_of, parse_modules
from pdp.workbench.rego_forms import rule_forms

Rules = Mapping[str, tuple["PolicyRule", ...]]
"""Rules by package and name, such as `authz.lib.flow.known`."""

_HEADS: Final = [[part] for part in PARTS]
_ROOTS: Final = ("authz", "custom")  # where policies are in the data
_SCOPED: Final = ("rego", "v2")  # the import with which `not` looks up all of its parts inside


class OutsideError(Exception):
    """Part of a policy cannot be translated. The message is its text and place."""


@dataclass(frozen=True, slots=True, eq=False)
class PolicyRule:
    """One rule. `imports` are paths by the name that the module uses. `form` is equal for rules that decide alike."""

    package: str
    node: Node
    imports: Mapping[str, tuple[str, ...]]
    metadata: Mapping[str, Any]
    source: Source
    form: bytes

    @property
    def name(self) -> str:
        """The full name of the rule, or of the object that it belongs to."""
        return f"{self.package}.{self.node['head']['ref'][0]['value']}"

    @property
    def scoped_not(self) -> bool:
        """Whether `not` is true if a value inside it is undefined. In other modules, the whole body is undefined."""
        return _SCOPED in self.imports.values()

    def outside(self, what: str, node: Node | None = None) -> OutsideError:
        """Return the error for a part of the rule."""
        span = self.source.span(node or {}) or self.source.span(self.node)
        if span is None:
            return OutsideError(f"{what} in {self.name}")
        place = self.source.place(span[0])
        return OutsideError(f"{what}: {self.source.line(span[0]).strip()} ({place.file}:{place.line})")


def policy_rules(opa: Path, modules: Mapping[str, Module], others: Mapping[str, Module]) -> Rules:
    """Return the rules of a policy. `others` is the policy to which it is compared."""
    trees, beside = parse_modules(opa, modules), parse_modules(opa, others)
    rules: dict[str, list[PolicyRule]] = {}
    for path, forms in rule_forms(trees, beside, trees).items():
        for rule in _rules_of(trees[path], modules[path], {id(node): form for node, form in forms}):
            rules.setdefault(rule.name, []).append(rule)
    return {name: tuple(of_name) for name, of_name in rules.items()}


def _rules_of(tree: Node, module: Module, forms: Mapping[int, bytes]) -> Iterator[PolicyRule]:
    imports = {name: tuple(part["value"] for part in path) for name, path in imports_of(tree).items()}
    source = Source(module.file, module.text)
    metadata = {statement.line: statement.metadata for statement in statements(module.text)}
    for node in tree.get("rules") or ():
        notes = metadata.get(node["location"]["row"], {})
        # A rule's meaning depends on its imports, and its findings on its METADATA.
        form = b"\n".join(
            (forms[id(node)], canonical({name: list(path) for name, path in imports.items()}), canonical(_plain(notes)))
        )
        yield PolicyRule(package_of(tree), node, imports, notes, source, form)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else str(value)


def heads(rules: Rules) -> set[str]:
    """Return the names of the findings of all concerns: `authz.concerns.limits.deny`."""
    return {
        name
        for name in rules
        if name.split(".")[0] in _ROOTS and name.split(".")[1:2] == ["concerns"] and name.split(".")[3:] in _HEADS
    }


def uses(rules: Rules) -> dict[str, set[str]]:
    """Return the names of the rules that each rule mentions."""
    found = {}
    for name, of_name in rules.items():
        every = [(rule, node) for rule in of_name for node in nodes(rule.node) if node.get("type") in ("ref", "var")]
        inside = {id(node["value"][0]) for _, node in every if node["type"] == "ref"}
        found[name] = {used for rule, node in every if id(node) not in inside for used in _used(rules, rule, node)}
    return found


def closure(uses: Mapping[str, set[str]], name: str) -> set[str]:
    """Return the names of all rules that a rule may use, itself included."""
    found: set[str] = set()
    waiting = {name}
    while waiting:
        found |= waiting
        waiting = {used for name in waiting for used in uses.get(name, ())} - found
    return found


def _used(rules: Rules, rule: PolicyRule, node: Node) -> list[str]:
    parts = node["value"] if node["type"] == "ref" else [node]
    head = str(parts[0].get("value"))
    path = list(rule.imports.get(head, ("data",) if head == "data" else ("data", *rule.package.split("."), head)))
    for part in parts[1:]:
        if part["type"] != "string":
            break
        path.append(str(part["value"]))
    if path[0] != "data":
        return []
    known = [name for end in range(2, len(path) + 1) if (name := ".".join(path[1:end])) in rules]
    if known or (len(path) > 1 and path[1] not in _ROOTS):
        return known
    # A path that ends above the rules may lead to any rule below it.
    above = "".join(f"{part}." for part in path[1:])
    return [name for name in rules if name.startswith(above)]


def closure_form(rules: Rules, names: Iterable[str]) -> list[tuple[str, bytes]]:
    """Return the forms of rules. Policies with equal forms of all rules that a rule may use decide alike."""
    return sorted((rule.package, rule.form) for name in names for rule in rules.get(name, ()))
