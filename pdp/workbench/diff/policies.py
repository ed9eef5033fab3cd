"""What changed in the Rego of two bundles, rule by rule, as OPA parses it.

Comments, layout, the order of rules, and the file of a package that a rule stands in are no change.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from pdp.json import canonical, digest
from pdp.manifest.diff import ContentChange, Direction
from pdp.workbench.opa.modules import modules_of_bundle
from pdp.workbench.opa.rules import rule_sites, sites_by_code
from pdp.workbench.opa.syntax import normal_form, package_of, parse_modules, rule_name, rule_names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pdp.engine.bundle.file import Bundle
    from pdp.workbench.opa.modules import Module
    from pdp.workbench.opa.rules import RuleSite
    from pdp.workbench.opa.syntax import Node

_ADDED: Final = {"deny": Direction.TIGHTENS, "step_up": Direction.TIGHTENS, "allow": Direction.LOOSENS,
                 "obligations": Direction.TIGHTENS}  # fmt: skip
_REMOVED: Final = {part: Direction.TIGHTENS if direction is Direction.LOOSENS else Direction.LOOSENS
                   for part, direction in _ADDED.items()}  # fmt: skip


@dataclass(frozen=True)
class BundleRules:
    """The rules of one bundle, read once.

    Attributes:
        bundle: the bundle; name: of its file, which stands before each module's path as `NAME!PATH`.
        opa: the program that parses.
    """

    bundle: Bundle
    name: str
    opa: Path

    @cached_property
    def modules(self) -> dict[str, Module]:
        """The modules by path."""
        return modules_of_bundle(self.name, self.bundle.modules)

    @cached_property
    def trees(self) -> dict[str, Node]:
        """The syntax tree of each module."""
        return parse_modules(self.opa, self.modules)

    @cached_property
    def sites(self) -> tuple[RuleSite, ...]:
        """The rules that find something. Reading METADATA takes a second."""
        return rule_sites(self.modules)

    @cached_property
    def responsible(self) -> Mapping[str, tuple[RuleSite, ...]]:
        """The rules by reason code, and those of obligations also by the obligation's id."""
        obligations: dict[str, list[RuleSite]] = defaultdict(list)
        for site in self.sites:
            if site.obligation is not None:
                obligations[site.obligation].append(site)
        return {**{name: tuple(sites) for name, sites in obligations.items()}, **sites_by_code(self.sites)}

    def rules(self, paths: Collection[str]) -> dict[str, list[_Rule]]:
        """Return the rules and imports of modules by the name under which they are compared."""
        names: dict[str, set[str]] = defaultdict(set)
        for tree in self.trees.values():
            names[package_of(tree)] |= rule_names(tree)
        rules: dict[str, list[_Rule]] = defaultdict(list)
        for path in paths:
            tree = self.trees[path]
            package = package_of(tree)
            sites = [site for site in self.sites if site.module == path]
            for node in (*(tree.get("imports") or ()), *(tree.get("rules") or ())):
                line = int((node.get("location") or node["path"]["location"])["row"])
                site = next((site for site in sites if site.line <= line <= site.last_line), None)
                name = f"{package} {rule_name(node) if 'head' in node else 'imports'}"
                if site is not None:
                    name = site.code or f"{site.concern} {site.part} without a code"
                place = f"{self.name}!{path}:{line if site is None else site.line}"
                rules[name].append(_Rule(site, place, normal_form(node, names[package])))
        return rules


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule or an import: its site if it finds something, its place, and its normal form."""

    site: RuleSite | None
    place: str
    form: bytes


def rule_changes(old: BundleRules, new: BundleRules) -> tuple[ContentChange, ...]:
    """Return what changed in the policies, sorted by name; texts for people last.

    A rule's name is its reason code, or `PACKAGE NAME` of a rule without one; rules of one name are one. `old` and
    `new` are digests of the rules on that side in normal form, None where there is none.

    Raises:
        FileFaultsError: a module that OPA cannot parse.
        UsageError: OPA cannot be run.
    """
    modules = old.bundle.modules, new.bundle.modules
    before, after = (
        side.rules([path for path in side.bundle.modules if modules[0].get(path) != modules[1].get(path)])
        for side in (old, new)
    )
    changes = [
        _change(name, before.get(name, []), after.get(name, []))
        for name in before.keys() | after.keys()
        if Counter(rule.form for rule in before.get(name, ())) != Counter(rule.form for rule in after.get(name, ()))
    ]
    changes += _texts(old, new)
    return tuple(sorted(changes, key=lambda change: (change.direction is Direction.TEXT, change.name)))


def _change(name: str, old: Sequence[_Rule], new: Sequence[_Rule]) -> ContentChange:
    kind = "added" if not old else "removed" if not new else "changed"
    before, after = ([rule.site for rule in side if rule.site is not None] for side in (old, new))
    direction = Direction.UNCLEAR
    if not before and not after:
        what = f"{kind}: its effect on decisions is below"
    elif kind == "changed":
        what = f"the {after[0].part} rule reads otherwise"
        if before[0].part != after[0].part:
            what = f"{before[0].part} became {after[0].part}"
    else:
        site = (before or after)[0]
        direction = (_ADDED if after else _REMOVED)[site.part]
        what = f"{kind} {site.part}: {site.title}"
    digests = [digest(canonical(sorted(digest(rule.form) for rule in side))) if side else None for side in (old, new)]
    return ContentChange(name, direction, digests[0], digests[1], what, _where(rule.place for rule in (*old, *new)))


def _texts(old: BundleRules, new: BundleRules) -> Iterator[ContentChange]:
    before = {site.code: site for site in old.sites if site.code}
    for site in new.sites:
        known = before.get(site.code or "")
        if site.code and known and (known.title, known.description) != (site.title, site.description):
            where = _where(f"{place.file}:{place.line}" for place in (known, site))
            what = "says something else to people"
            yield ContentChange(site.code, Direction.TEXT, known.title, site.title, what, where)


def _where(places: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(places))
