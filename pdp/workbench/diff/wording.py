"""What every report of a bundle diff says, in words, whatever it is written in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.manifest.governance_diff import Direction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdp.workbench.diff.groups import Group, Responsible
    from pdp.workbench.diff.manifest_structure import ManifestChange
    from pdp.workbench.diff.result import BundleDiff
    from pdp.workbench.diff.structure import Structure

_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Line:
    """One change of the structure: which way it goes (`text`: neither), what it is, and where."""

    direction: str
    what: str
    where: str = ""


def verdict(diff: BundleDiff) -> str:
    """Return the first line: whether anything differs, and how bad it is."""
    loosening = len(diff.loosenings())
    loosens = f"{loosening or 'nothing'} {'loosens' if loosening < 2 else 'loosen'}"  # noqa: PLR2004 - one
    if not diff.decided:
        # Nothing that loosens was found, since nothing was looked at.
        seen = f", {loosens} in structure" if loosening else ""
        return f"no call was decided, so nothing is known of decisions{seen}"
    if not diff.differs:
        return "no difference that can change a decision"
    groups = len(diff.groups)
    known = f"{groups} {'difference' if groups == 1 else 'differences'} in decisions"
    unseen = len(diff.unseen())
    rest = (
        f", and {unseen} {'place' if unseen == 1 else 'places'} where a loosening would not be seen" if unseen else ""
    )
    return f"{known}, {loosens}{rest}"


def structure_lines(structure: Structure) -> Iterator[Line]:
    """Yield every change of the structure."""
    for rule in structure.rules:
        places = dict.fromkeys(place for place in (rule.old, rule.new) if place)
        yield Line(rule.direction.value if rule.direction else "text", f"{rule.name}: {rule.what}", " -> ".join(places))
    for manifest in structure.manifests:
        yield from _manifest_lines(manifest)
    for datum in structure.data.shown:
        values = f"{_short(datum.old)} -> {_short(datum.new)}" if datum.kind == "changed" else datum.kind
        yield Line(datum.direction.value, f"{datum.path}: {values}")
    more = structure.data.total - len(structure.data.shown)
    if more > 0:
        yield Line("unclear", f"{more} more changes of data")


def _manifest_lines(manifest: ManifestChange) -> Iterator[Line]:
    if manifest.kind == "same":
        return
    old, new = manifest.old_version or "none", manifest.new_version or "none"
    direction = manifest.direction.value if manifest.direction else "unclear"
    if manifest.diff is None:
        yield Line(direction, f"manifest {old} -> {new}: {manifest.kind}")
        return
    yield Line("text", f"manifest {old} -> {new}, {len(manifest.diff.tools)} tools differ")
    for tool in manifest.diff.tools:
        for signature in tool.signature:
            parts = (signature.part, signature.path, signature.what)
            bump = signature.bump.name.lower()
            yield Line("text", f"{tool.tool}: {' '.join(part for part in parts if part)} ({bump} change)")
        if tool.fault:
            yield Line("unclear", f"{tool.tool}: {tool.fault}")
    for name, change in manifest.changes:
        values = f"{_short(change.old)} -> {_short(change.new)}" if change.what == "changed" else change.what
        yield Line(change.direction.value, f"{name}: {change.field}: {values}")


def known_line(diff: BundleDiff) -> str:
    """Return what the second layer looked at."""
    known = diff.known
    if not known.scenarios and not known.logged:
        return "nothing was named: --scenarios PATH, --log FILE"
    skipped = f", {known.skipped} log lines passed over" if known.skipped else ""
    return (
        f"{known.scenarios} scenarios and {known.logged} recorded requests, {known.calls} different calls{skipped}: "
        f"{len(known.groups) or 'no'} {'difference' if len(known.groups) == 1 else 'differences'}"
    )


def grid_lines(diff: BundleDiff) -> tuple[str, ...]:
    """Return what the grid covers, a line each."""
    extent = diff.extent
    if not extent.requests:
        return ("no grid was asked for",)
    whole = f"{extent.pairs} of" if extent.cut else "all"
    axes = ", ".join(f"{name} ({count})" for name, count in extent.axes.items())
    differences = f"{len(diff.grid) or 'no'} {'difference' if len(diff.grid) == 1 else 'differences'}"
    asked = (
        f"{extent.requests} requests for {extent.tools} tools of the bundles and {extent.probes} made-up entries of "
        f"every tier, effect class and pattern: {differences}"
    )
    covered = (
        f"covered: {extent.single} with at most one departure from a call that has all it needs; {whole} "
        f"{extent.pairs_possible} pairs of departures ({extent.pairs} different requests); {extent.hostile} with "
        "something mistyped, missing or exchanged"
    )
    lines = [asked, covered, f"departures, with the number of values: {axes}"]
    unseen = diff.unseen()
    lines += [f"unseen {name}: {what}" for name, what in unseen.items()]
    if extent.unsettled and not unseen:
        lines.append(
            f"no call was found that is ALLOW or STEP_UP, so little is known of: {', '.join(extent.unsettled)}"
        )
    return tuple(lines)


def uncovered(diff: BundleDiff) -> str:
    """Return what the grid does not cover."""
    return "not covered: " + "; ".join(diff.not_covered())


def marked(group: Group) -> str:
    """Return which way a difference goes, and that one which cannot be told counts as loosening."""
    if group.may_loosen and group.direction is not Direction.LOOSENS:
        return f"{group.direction.value} (counts as loosening)"
    return group.direction.value


def rule_line(side: str, rule: Responsible) -> str:
    """Return one side of a rule that is responsible."""
    what = "fires" if rule.fired else "does not fire"
    return f"{side}: {rule.code} {what}{f' ({rule.where})' if rule.where else ''}"


def rule_lines(group: Group) -> list[str]:
    """Return the rules that are responsible on either side."""
    return [
        *(rule_line("old", rule) for rule in group.rules_old),
        *(rule_line("new", rule) for rule in group.rules_new),
    ]


def witness_line(group: Group) -> str:
    """Return in what the smallest call departs from one that has all it needs, or where it comes from."""
    if group.sources:
        more = len(group.sources) - 1
        return f"seen in {group.sources[0]}" + (f" and {more} more" if more else "")
    words = ", ".join(words for _, words in group.case.departures)
    return f"the call of {group.case.tool} that has all it needs" + (f", {words}" if words else "")


def _short(value: Any) -> str:
    if value is None:
        return "not stated"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
