"""What changed in the Rego of two bundles: codes and the rules behind them, helpers, and texts."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pdp.manifest.governance_diff import Direction
from pdp.workbench.diff.rego_text import Written, normal
from pdp.workbench.opa.modules import Module
from pdp.workbench.opa.rules import rule_sites, statements

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdp.engine.bundle.file import Bundle
    from pdp.workbench.opa.rules import RuleSite

_ADDED: Final = {"deny": Direction.TIGHTENS, "step_up": Direction.TIGHTENS, "allow": Direction.LOOSENS,
                 "obligations": Direction.TIGHTENS}  # fmt: skip
_OPPOSITE: Final = {Direction.TIGHTENS: Direction.LOOSENS, Direction.LOOSENS: Direction.TIGHTENS}
_NAME: Final = re.compile(r"(?:default\s+)?([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class RuleChange:
    """One rule, or one code, that is not as it was.

    Attributes:
        kind: `added`, `removed`, `changed`, or `text`: what it says to people alone.
        direction: which way it goes; None for text.
        name: the reason code, or `MODULE NAME` of a rule without one.
        old, new: where it stands, `FILE:LINE`.
        what: in words.
    """

    kind: str
    direction: Direction | None
    name: str
    old: str | None
    new: str | None
    what: str

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        direction = None if self.direction is None else self.direction.value
        return {
            "kind": self.kind, "direction": direction, "name": self.name, "old": self.old, "new": self.new,
            "what": self.what,
        }  # fmt: skip


@dataclass(frozen=True)
class NamedBundle:
    """A bundle and the name of its file."""

    bundle: Bundle
    name: str

    @cached_property
    def sites(self) -> tuple[RuleSite, ...]:
        """Its rules; their files are `NAME!PATH`. Reading METADATA takes a second of YAML, and that once."""
        modules = {
            path: Module(Path(f"{self.name}!{path}"), text, path.startswith("custom/"))
            for path, text in self.bundle.modules.items()
        }
        return rule_sites(modules)


def rule_changes(one: NamedBundle, other: NamedBundle) -> tuple[RuleChange, ...]:
    """Return what changed in the policies from the one to the other, sorted by what it is.

    How a module is written and in which order is no change, and neither is the file that a rule stands in, as long as
    it stays in its package.
    """
    old, new = one.bundle, other.bundle
    written = Written(old.modules, new.modules)
    before, after = (_Rules(side, written, at) for at, side in enumerate((one, other)))
    found = [*_code_changes(before, after), *_helper_changes(before, after)]
    return tuple(sorted((*found, *_messages(one, other)), key=lambda each: (each.kind == "text", each.name, each.kind)))


class _Rules:
    """The rules of one bundle, those of modules that did not change left out."""

    def __init__(self, side: NamedBundle, written: Written, at: int) -> None:
        skipped = written.same
        self.by_code: dict[str, list[RuleSite]] = defaultdict(list)
        self.bodies: dict[str, Counter[str]] = defaultdict(Counter)
        lines: set[tuple[str, int]] = set()
        for site in side.sites:
            if site.module in skipped:
                continue
            key = site.code or f"{site.concern} {site.part} without a code"
            self.by_code[key].append(site)
            self.bodies[key][written.form(at, site.module, site)] += 1
            lines.add((site.module, site.line))
        self.helpers: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for path, text in side.bundle.modules.items():
            if path in skipped:
                continue
            package = ""
            for each in statements(text):
                head = _NAME.match(each.text)
                if each.text.startswith("package "):
                    package = normal(each.text).removeprefix("package ").replace(" . ", ".")
                if head is None or (path, each.line) in lines:
                    continue
                what = "imports" if head[1] == "import" else head[1]
                if head[1] != "package":
                    self.helpers[f"{package} {what}"].append(
                        (written.form(at, path, each), f"{side.name}!{path}:{each.line}")
                    )


def _code_changes(before: _Rules, after: _Rules) -> Iterator[RuleChange]:
    for code in sorted(before.by_code.keys() | after.by_code.keys()):
        one, other = before.by_code.get(code, []), after.by_code.get(code, [])
        if not one or not other:
            there = one or other
            part = there[0].part
            direction = _ADDED[part] if other else _OPPOSITE[_ADDED[part]]
            kind = "added" if other else "removed"
            yield RuleChange(kind, direction, code, _place(one), _place(other), f"{kind} {part}: {there[0].title}")
        elif before.bodies[code] != after.bodies[code]:
            what = f"the {other[0].part} rule reads otherwise"
            if one[0].part != other[0].part:
                what = f"{one[0].part} became {other[0].part}"
            yield RuleChange("changed", Direction.UNCLEAR, code, _place(one), _place(other), what)


def _helper_changes(before: _Rules, after: _Rules) -> Iterator[RuleChange]:
    for name in sorted(before.helpers.keys() | after.helpers.keys()):
        one, other = before.helpers.get(name, []), after.helpers.get(name, [])
        if Counter(text for text, _ in one) != Counter(text for text, _ in other):
            kind = "added" if not one else "removed" if not other else "changed"
            old, new = (each[0][1] if each else None for each in (one, other))
            yield RuleChange(kind, Direction.UNCLEAR, name, old, new, f"{kind}: what decisions it changes stands below")


def _messages(old: NamedBundle, new: NamedBundle) -> Iterator[RuleChange]:
    before = {site.code: site for site in old.sites if site.code}
    for site in new.sites:
        known = before.get(site.code or "")
        if site.code and known and (known.title, known.description) != (site.title, site.description):
            yield RuleChange("text", None, site.code, _place([known]), _place([site]), "says something else to people")


def _place(sites: Sequence[RuleSite]) -> str | None:
    return ", ".join(f"{site.file}:{site.line}" for site in sites) or None
