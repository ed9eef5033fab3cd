"""The changes between two bundles. Each can be undone in the new bundle, or applied alone to the old bundle.

Both are the same step: a bundle gets the other bundle's rules, or the other bundle's value at a path of the data.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pdp.manifest.diff import ContentChange
from pdp.opa.syntax import Node, Source, Span, imports_of, package_of, rule_name
from pdp.workbench.diff.policies import BundlePair, BundleRules, ComparedRule
from pdp.workbench.diff.structure import Structure, changed_data
from pdp.workbench.neighbours.values import JsonPath, at, edited
from pdp.workbench.rego_edits import edits

_PACKAGE: Final = re.compile(r"^package .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class BundleChange:
    """A change of rules with one name, of one field of a tool's entry, or of one value in the data.

    `contents` are the listed changes that it consists of. `rules` are the old and the new rules. `paths` are the
    places of the value in the data of the old and of the new bundle. `tool` is empty except for entries.
    """

    name: str
    contents: tuple[ContentChange, ...]
    rules: tuple[Sequence[ComparedRule], Sequence[ComparedRule]] = ((), ())
    paths: tuple[tuple[JsonPath, JsonPath], ...] = ()
    tool: str = ""


class Edition(NamedTuple):
    """Modules that replace or join a bundle's, and the bundle's data, with some changes undone or applied."""

    modules: dict[str, str]
    data: Mapping[str, Any]


def changes_between(pair: BundlePair, structure: Structure) -> tuple[BundleChange, ...]:
    """Return every change between two bundles: of entries and manifests, then of rules, then of data."""
    return (*_entries(pair), *_rules(pair, structure), *_values(pair))


def _entries(pair: BundlePair) -> Iterator[BundleChange]:
    found: dict[tuple[str, str], list[tuple[ContentChange, tuple[JsonPath, JsonPath]]]] = defaultdict(list)
    for manifests, content in pair.manifests.changed():
        tool, _, field = content.name.rpartition(": ")
        # A replaced manifest is no change itself, because the changes of its fields are.
        if field != "manifest" or None in (content.old, content.new):
            digests = manifests.old or manifests.new, manifests.new or manifests.old
            old, new = (("manifests", str(digest)) for digest in digests)
            documents = [at(bundle.data, path) for bundle, path in zip(pair.bundles, (old, new), strict=True)]
            steps = _steps(tool, field, documents)
            found[tool, field].append((content, ((*old, *steps), (*new, *steps))))
    for (tool, field), parts in found.items():
        contents, paths = zip(*parts, strict=True)
        yield BundleChange(field, contents, paths=tuple(dict.fromkeys(paths)), tool=tool)


def _steps(tool: str, field: str, documents: Sequence[Any]) -> JsonPath:
    """Return the path of a field in a manifest: the deepest path that leads to different values in objects of both."""
    if field == "manifest":
        return ()
    if field == "tools":
        return "tools", tool
    top, _, rest = field.partition(".")
    holder: JsonPath = ("tools", tool) if tool else ()
    agent, _, pinned = rest.rpartition(".")
    for steps in ((*field.split("."),), (top, rest), (top, agent, pinned)):
        holders = [at(document, (*holder, *steps[:-1])) for document in documents]
        if all(isinstance(each, dict) and each for each in holders):
            old, new = (at(each, steps[-1:]) for each in holders)
            # A duration has its seconds beside it, so the object that holds both is the value.
            beside = any(f"{steps[-1]}_seconds" in each for each in holders)
            if old != new:
                return (*holder, *(steps[:-1] if beside else steps))
    return (*holder, top)


def _rules(pair: BundlePair, structure: Structure) -> Iterator[BundleChange]:
    contents = {content.name: content for content in structure.rules}
    for name, rules in pair.differing.items():
        yield BundleChange(name, (contents[name],), rules=rules)


def _values(pair: BundlePair) -> Iterator[BundleChange]:
    for path, content in changed_data(*pair.bundles):
        yield BundleChange(content.name, (content,), paths=((path, path),))


def edition(
    pair: BundlePair, data: Sequence[Mapping[str, Any]], changes: Sequence[BundleChange], *, undone: bool
) -> Edition:
    """Return the new bundle's edition without some changes if `undone`, otherwise the old bundle's with only them.

    `data` is the complete data of the old and of the new bundle.
    """
    turn = -1 if undone else 1
    target, other = data[::-1] if undone else data
    paths = (pair[::turn] for change in changes for pair in change.paths)
    values = edited(target, *((path, at(other, its)) for path, its in paths))
    return Edition(swapped(pair, [change.rules[::turn] for change in changes], undone=undone), values)


def swapped(pair: BundlePair, swaps: Iterable[Sequence[Sequence[ComparedRule]]], *, undone: bool) -> dict[str, str]:
    """Return the modules of the new (if `undone`) or old bundle that change if one list of rules replaces another.

    Rules that nothing replaces are made never true, because other rules may use their name. With rules of the other
    bundle come those of its helpers that are missing.
    """
    target, other = (pair.new, pair.old) if undone else (pair.old, pair.new)
    replaced: dict[str, list[tuple[Span, str]]] = defaultdict(list)
    added: dict[str, list[ComparedRule]] = defaultdict(list)
    paths = {package_of(tree): path for path, tree in target.trees.items()}
    names = {(package_of(tree), rule_name(rule)) for tree in target.trees.values() for rule in tree.get("rules") or ()}
    for gone, comes in swaps:
        for rule in gone:
            replaced[rule.module] += [(_annotated(target, rule), "")] if comes else _never(target, rule)
        for rule in comes:
            path = rule.module if rule.module in target.trees else paths.get(rule.form[0], rule.module)
            added[path].append(rule)
    for rule in (rule for rules in pair.rules[not undone].values() for rule in rules if added):
        name = rule.form[0], rule_name(rule.node) if "head" in rule.node else ""
        if rule.site is None and name[1] and name not in names:
            path = paths.get(name[0], rule.module)
            added[path] += [rule] if rule not in added[path] else []
    return {path: _edited(target, other, path, replaced[path], added[path]) for path in {*replaced, *added}}


def _edited(
    target: BundleRules, other: BundleRules, path: str, replaced: list[tuple[Span, str]], added: list[ComparedRule]
) -> str:
    package = added[0].form[0] if path not in target.trees else ""
    text = target.bundle.modules.get(path, f"package {package}\n")
    # The edits are made from the end of the text, so that the offsets of the other edits stay valid.
    for (start, end), edit in sorted(replaced, reverse=True):
        text = text[:start] + edit + text[end:]
    known = imports_of(target.trees[path]) if path in target.trees else {}
    imports = {
        line: None
        for rule in added
        for name, parts in imports_of(other.trees[rule.module]).items()
        if name not in known and (path not in target.trees or parts[0]["value"] != "rego")
        for line in (_import_line(name, parts),)
    }
    texts = [_text(other, _annotated(other, rule), rule) for rule in added if "head" in rule.node]
    imports |= {_text(other, _span(other, rule), rule): None for rule in added if "head" not in rule.node}
    text = _PACKAGE.sub(lambda found: "\n".join((found[0], *imports)), text, count=1)
    return "\n\n".join((text, *texts))


def _import_line(name: str, parts: list[Node]) -> str:
    path = ".".join(str(part["value"]) for part in parts)
    return f"import {path}" if parts[-1]["value"] == name else f"import {path} as {name}"


def _never(side: BundleRules, rule: ComparedRule) -> list[tuple[Span, str]]:
    if "head" not in rule.node:
        return [(_span(side, rule), "")]
    source = Source(side.modules[rule.module].file, side.bundle.modules[rule.module])
    return [(edit.span, edit.text) for edit in edits({"rules": [rule.node]}, source) if edit.kind == "rule dropped"]


def has_effect(rule: ComparedRule) -> bool:
    """Return whether a rule, and not only an import, differs. The import `rego.v2` changes the meaning of `not`."""
    return "head" in rule.node or bool(rule.node["path"]["value"][0]["value"] == "rego")


def rule_text(side: BundleRules, rule: ComparedRule) -> str:
    """Return the source text of a rule."""
    return _text(side, _span(side, rule), rule)


def _text(side: BundleRules, span: Span, rule: ComparedRule) -> str:
    return side.bundle.modules[rule.module][slice(*span)]


def _annotated(side: BundleRules, rule: ComparedRule) -> Span:
    """Return the span of a rule with the comments above it, because a reason takes its code from them."""
    text, (start, end) = side.bundle.modules[rule.module], _span(side, rule)
    while (line := text.rfind("\n", 0, max(0, start - 1)) + 1) < start and text.startswith("#", line):
        start = line
    return start, end


def _span(side: BundleRules, rule: ComparedRule) -> Span:
    """Return the start and end of a rule in its module. For a default rule or an import, OPA omits the line's end."""
    source = Source(side.modules[rule.module].file, side.bundle.modules[rule.module])
    start, end = source.span(rule.node) or (0, 0)
    if "head" not in rule.node:
        lines = source.text.splitlines(keepends=True)
        start = len("".join(lines[: (rule.node.get("location") or rule.node["path"]["location"])["row"] - 1]))
    if "head" not in rule.node or rule.node.get("default"):
        end = source.text.find("\n", start) % (len(source.text) + 1)
    return start, end
