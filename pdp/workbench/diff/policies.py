"""Compare the Rego of two bundles rule by rule, using OPA's parser.

Comments, layout, the order of rules, and the file of a rule within its package are ignored.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pdp.engine.bundle.file import Bundle
from pdp.json import canonical, digest
from pdp.manifest.diff import ContentChange, Direction
from pdp.opa.modules import Module, modules_of_bundle
from pdp.opa.rules import RuleSite, rule_sites
from pdp.opa.syntax import Node, package_of, parse_modules, rule_name
from pdp.workbench.diff.manifests import Manifests
from pdp.workbench.neighbours.vocabulary import Rule
from pdp.workbench.rego_forms import rule_forms


@dataclass(frozen=True)
class BundleRules:
    """The policies of a bundle, which OPA parses once. Locations are `NAME!PATH`, where NAME is the bundle's file."""

    bundle: Bundle
    name: str
    opa: Path

    @cached_property
    def modules(self) -> dict[str, Module]:
        """The Rego modules by path."""
        return modules_of_bundle(self.name, self.bundle.modules)

    @cached_property
    def trees(self) -> dict[str, Node]:
        """The syntax tree of each module."""
        return parse_modules(self.opa, self.modules)

    @cached_property
    def sites(self) -> tuple[RuleSite, ...]:
        """The rules that produce findings. They are cached, because reading METADATA takes a second."""
        return rule_sites(self.modules)


@dataclass(frozen=True, slots=True)
class ComparedRule(Rule):
    """A rule or import at `place` (`FILE:LINE`), with the `site` of its finding. Rules of equal form decide equally."""

    site: RuleSite | None
    place: str
    form: tuple[str, bytes]


Rules = dict[str, list[ComparedRule]]
"""Rules and imports by reason code, or by `PACKAGE NAME` if a rule has no code."""


@dataclass(frozen=True)
class BundlePair:
    """Two bundles to compare. OPA parses their policies only when a property needs them."""

    old: BundleRules
    new: BundleRules

    @classmethod
    def of(cls, opa: Path, old: Bundle, new: Bundle, *, names: tuple[str, str] = ("old", "new")) -> BundlePair:
        """Return two bundles as a pair to compare; `names` are the names of their files."""
        return cls(BundleRules(old, names[0], opa), BundleRules(new, names[1], opa))

    @property
    def bundles(self) -> tuple[Bundle, Bundle]:
        """The old bundle and the new bundle."""
        return self.old.bundle, self.new.bundle

    @cached_property
    def manifests(self) -> Manifests:
        """The manifests of both bundles, in pairs of an old and a new manifest."""
        return Manifests(*(bundle.data.get("manifests", {}) for bundle in self.bundles))

    @cached_property
    def rules(self) -> tuple[Rules, Rules]:
        """The rules of the old and of the new bundle. Modules that are equal in both bundles are left out."""
        return _rules(self.old, self.new), _rules(self.new, self.old)

    @cached_property
    def differing(self) -> dict[str, tuple[list[ComparedRule], list[ComparedRule]]]:
        """By name, the rules that only the old bundle has and the rules that only the new bundle has."""
        before, after = self.rules
        removed, added = _not_in(before, after), _not_in(after, before)
        return {name: (removed.get(name, []), added.get(name, [])) for name in sorted({*removed, *added})}


def _rules(side: BundleRules, other: BundleRules) -> Rules:
    rules: Rules = defaultdict(list)
    changed = [path for path, text in side.bundle.modules.items() if text != other.bundle.modules.get(path)]
    for path, forms in rule_forms(side.trees, other.trees, changed).items():
        package = package_of(side.trees[path])
        sites = [site for site in side.sites if site.module == path]
        for node, form in forms:
            line = int((node.get("location") or node["path"]["location"])["row"])
            site = next((site for site in sites if site.line <= line <= site.last_line), None)
            name = f"{package} {rule_name(node) if 'head' in node else 'imports'}"
            if site is not None:
                name = site.code or f"{site.concern} {site.part} without a code"
            place = f"{side.name}!{path}:{line if site is None else site.line}"
            rules[name].append(ComparedRule(path, node, site, place, (package, form)))
    return rules


def _not_in(rules: Rules, others: Rules) -> Rules:
    """Return the rules of `rules` that `others` does not have, or has less often. Names of helpers are ignored."""
    left: Rules = defaultdict(list)
    known = Counter((_compared(name, rule), rule.form) for name, every in others.items() for rule in every)
    for name, rule in ((name, rule) for name, every in rules.items() for rule in every):
        known[_compared(name, rule), rule.form] -= 1
        if known[_compared(name, rule), rule.form] < 0:
            left[name].append(rule)
    return left


def _compared(name: str, rule: ComparedRule) -> str | None:
    return None if rule.site is None else name


def rule_changes(pair: BundlePair) -> tuple[ContentChange, ...]:
    """Return the changes of rules by name, with digests of the old and new rules. Added rules have no old digest."""
    before, after = pair.rules
    return tuple(_change(name, before.get(name, []), after.get(name, [])) for name in pair.differing)


def _change(name: str, old: Sequence[ComparedRule], new: Sequence[ComparedRule]) -> ContentChange:
    kind = "added" if not old else "removed" if not new else "changed"
    before, after = ([rule.site for rule in side if rule.site is not None] for side in (old, new))
    direction = Direction.UNCLEAR
    if not before and not after:
        what = f"{kind}; decisions show its effect"
    elif kind == "changed":
        what = f"the {after[0].part} rule changed"
        if before[0].part != after[0].part:
            what = f"{before[0].part} became {after[0].part}"
    else:
        site = (before or after)[0]
        direction = Direction.LOOSENS if (site.part == "allow") == bool(after) else Direction.TIGHTENS
        what = f"{kind} {site.part}: {site.title}"
    digests = [
        digest(canonical(sorted(digest(rule.form[1]) for rule in side))) if side else None for side in (old, new)
    ]
    where = ", ".join(dict.fromkeys(rule.place for rule in (*old, *new)))
    return ContentChange(name, direction, digests[0], digests[1], what, where)
