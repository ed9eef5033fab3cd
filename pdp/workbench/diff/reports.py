"""A bundle diff for a terminal, as Markdown for a pull request, and as an HTML page.

All of them say the same; text and Markdown show the first differences of a layer only.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pdp.manifest.diff import Direction
from pdp.workbench.diff.structure import SHOWN
from pdp.workbench.reports.html_page import render_page

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdp.workbench.diff.groups import Group
    from pdp.workbench.diff.manifests import ManifestChange
    from pdp.workbench.diff.result import BundleDiff
    from pdp.workbench.diff.structure import Structure

MOST: Final = 25
"""How many differences of a layer are shown in full, and the rest counted. `--json` has them all."""

_TEMPLATE: Final = Path(__file__).parent / "diff.html.jinja"
_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>()#+!|~&@])")
_LONGEST: Final = 60


@dataclass(frozen=True, slots=True)
class StructureLine:
    """One change of the structure: its direction (`text`: none), what it is, and where."""

    direction: str
    what: str
    where: str = ""


def verdict(diff: BundleDiff) -> str:
    """Return the first line of a report: whether anything differs, and how bad it is."""
    loosening = len(diff.loosenings())
    loosens = f"{loosening or 'nothing'} {'loosen' if loosening > 1 else 'loosens'}"
    if not diff.decided:
        seen = f", {loosens} in structure" if loosening else ""
        return f"no call was decided, so nothing is known of decisions{seen}"
    if not diff.differs:
        return "no difference that can change a decision"
    unseen = len(diff.unseen())
    rest = f", and {_count(unseen, 'place')} where a loosening would not be seen" if unseen else ""
    return f"{_count(len(diff.groups), 'difference')} in decisions, {loosens}{rest}"


def text_lines(diff: BundleDiff) -> Iterator[str]:
    """Yield the lines for a terminal; the caller escapes what does not print in them."""
    old, new = diff.names
    yield f"{old} (release {diff.old.release}) -> {new} (release {diff.new.release}): {verdict(diff)}"
    yield ""
    yield "structure"
    structure = list(_structure_lines(diff.structure))
    yield from (f"  {one.direction:<9} {one.what}{f'  {one.where}' if one.where else ''}" for one in structure)
    if not structure:
        yield "  no difference"
    yield ""
    yield f"known calls: {_known_line(diff)}"
    yield from _text_groups(diff.known.groups)
    yield ""
    first, *rest = _generated_lines(diff)
    yield f"generated calls: {first}"
    yield from _text_groups(diff.generated)
    yield from (f"  {line}" for line in rest)


def _text_groups(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups[:MOST]:
        yield f"  {marked(group):<9} {group.id}  {group.title}"
        yield f"            {_count(group.count, 'request')}; {_witness_line(group)}"
        yield from (f"            {line}" for line in _rule_lines(group))
        yield f"            request: {json.dumps(group.witness, ensure_ascii=False, separators=(',', ':'))}"
    if len(groups) > MOST:
        yield f"  and {len(groups) - MOST} more differences; --json shows all of them"


def markdown(diff: BundleDiff) -> str:
    """Return the report as Markdown: short at first sight, the requests folded away.

    What comes from bundles and requests is escaped: it can form no link, tag or mention.
    """
    return "\n".join(_markdown_lines(diff)) + "\n"


def _markdown_lines(diff: BundleDiff) -> Iterator[str]:
    yield f"## Bundle diff: {_escaped(verdict(diff))}"
    yield ""
    yield f"{_escaped(diff.names[0])}, release {diff.old.release}, {_code(diff.old.revision)}  "
    yield f"{_escaped(diff.names[1])}, release {diff.new.release}, {_code(diff.new.revision)}"
    yield ""
    yield "### Structure"
    yield ""
    structure = list(_structure_lines(diff.structure))
    if structure:
        yield "| direction | what | where |"
        yield "|---|---|---|"
        yield from (f"| {one.direction} | {_escaped(one.what)} | {_escaped(one.where)} |" for one in structure)
    else:
        yield "No difference."
    yield ""
    yield "### Known calls"
    yield ""
    yield _escaped(_known_line(diff))
    yield from _markdown_groups(diff.known.groups)
    yield ""
    yield "### Generated calls"
    yield ""
    first, *rest = _generated_lines(diff)
    yield _escaped(first)
    yield from _markdown_groups(diff.generated)
    yield ""
    yield from (f"- {_escaped(line)}" for line in rest)


def _markdown_groups(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups[:MOST]:
        yield ""
        yield f"#### {marked(group)}: {_escaped(group.title)}"
        yield ""
        yield f"{_code(group.id)}, {_count(group.count, 'request')}; "
        yield _escaped(_witness_line(group))
        yield ""
        yield from (f"- {_escaped(line)}" for line in _rule_lines(group))
        yield ""
        yield "<details><summary>request</summary>"
        yield ""
        # Indented code ends only with the indentation, whatever it contains.
        yield from (f"    {line}" for line in json.dumps(group.witness, indent=2).split("\n"))
        yield ""
        yield "</details>"
    if len(groups) > MOST:
        yield ""
        yield f"And {len(groups) - MOST} more; `pdp bundle diff --json` shows all of them."


def _escaped(text: str) -> str:
    flat = "".join(letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in text)
    return _SPECIAL.sub(r"\\\1", flat)


def _code(text: str) -> str:
    return f"`{text.replace('`', '')}`"


def html(diff: BundleDiff) -> str:
    """Return the report as one HTML page that needs nothing else and runs no script; it has every difference."""
    return render_page(
        _TEMPLATE,
        verdict=verdict(diff),
        bundles=[
            {"side": side, "file": name, "release": bundle.release, "revision": bundle.revision}
            for side, name, bundle in zip(("old", "new"), diff.names, (diff.old, diff.new), strict=True)
        ],
        structure=list(_structure_lines(diff.structure)),
        known=_known_line(diff),
        known_groups=[_html_group(group) for group in diff.known.groups],
        generated=_generated_lines(diff),
        generated_groups=[_html_group(group) for group in diff.generated],
    )


def _html_group(group: Group) -> dict[str, Any]:
    return {
        "id": group.id,
        "title": group.title,
        "open": group.may_loosen,
        "marked": marked(group),
        "count": _count(group.count, "request"),
        "witness": _witness_line(group),
        "rules": _rule_lines(group),
        "sources": group.sources,
        "request": json.dumps(group.witness, indent=2, ensure_ascii=False),
        "decisions": [
            {"side": side, "verdict": decision.verdict.value, "codes": ", ".join(decision.codes)}
            for side, decision in (("old", group.smallest.old), ("new", group.smallest.new))
        ],
    }


def marked(group: Group) -> str:
    """Return the direction of a difference; where it is unclear, whether it counts as loosening."""
    if group.may_loosen and group.direction is not Direction.LOOSENS:
        return f"{group.direction.value} (counts as loosening)"
    return group.direction.value


def _structure_lines(structure: Structure) -> Iterator[StructureLine]:
    for rule in structure.rules:
        places = dict.fromkeys(place for place in (rule.old, rule.new) if place)
        direction = rule.direction.value if rule.direction else "text"
        yield StructureLine(direction, f"{rule.name}: {rule.what}", " -> ".join(places))
    for manifest in structure.manifests:
        yield from _manifest_lines(manifest)
    for datum in structure.data[:SHOWN]:
        values = f"{_short(datum.old)} -> {_short(datum.new)}" if datum.kind == "changed" else datum.kind
        yield StructureLine(datum.direction.value, f"{datum.path}: {values}")
    if len(structure.data) > SHOWN:
        yield StructureLine("unclear", f"{len(structure.data) - SHOWN} more changes of data")


def _manifest_lines(manifest: ManifestChange) -> Iterator[StructureLine]:
    if manifest.kind == "same":
        return
    old, new = manifest.old_version or "none", manifest.new_version or "none"
    if manifest.diff is None:
        direction = manifest.direction.value if manifest.direction else "unclear"
        yield StructureLine(direction, f"manifest {old} -> {new}: {manifest.kind}")
        return
    yield StructureLine("text", f"manifest {old} -> {new}, {len(manifest.diff.tools)} tools differ")
    for tool in manifest.diff.tools:
        for signature in tool.signature:
            parts = " ".join(part for part in (signature.part, signature.path, signature.what) if part)
            yield StructureLine("text", f"{tool.tool}: {parts} ({signature.bump.name.lower()} change)")
        if tool.fault:
            yield StructureLine("unclear", f"{tool.tool}: {tool.fault}")
    for name, change in manifest.changes:
        values = f"{_short(change.old)} -> {_short(change.new)}" if change.what == "changed" else change.what
        yield StructureLine(change.direction.value, f"{name}: {change.field}: {values}")


def _known_line(diff: BundleDiff) -> str:
    known = diff.known
    if not known.scenarios and not known.logged:
        return "nothing was named: --scenarios PATH, --log FILE"
    skipped = f", {known.skipped} log lines skipped" if known.skipped else ""
    return (
        f"{known.scenarios} scenarios and {known.logged} recorded requests, {known.calls} different calls{skipped}: "
        f"{_count(len(known.groups), 'difference')}"
    )


def _generated_lines(diff: BundleDiff) -> tuple[str, ...]:
    """What the generated calls cover, and what they do not."""
    extent = diff.extent
    uncovered = "not covered: " + "; ".join(diff.not_covered())
    if not extent.requests:
        return "none was asked for", uncovered
    unseen = diff.unseen()
    lines = [f"{extent.requests} requests: {_count(len(diff.generated), 'difference')}", *extent.lines()]
    lines += [f"unseen {name}: {what}" for name, what in unseen.items()]
    if extent.never_allowed and not unseen:
        names = ", ".join(extent.never_allowed)
        lines.append(f"no call was found that is ALLOW or STEP_UP, so little is known of: {names}")
    return (*lines, uncovered)


def _rule_lines(group: Group) -> list[str]:
    """The rules that are responsible on either side."""
    return [
        f"{side}: {rule.code} {'fires' if rule.fired else 'does not fire'}{f' ({rule.where})' if rule.where else ''}"
        for side, rules in (("old", group.rules_old), ("new", group.rules_new))
        for rule in rules
    ]


def _witness_line(group: Group) -> str:
    """In what the smallest call differs from one that has all it needs, or where it comes from."""
    if group.sources:
        more = len(group.sources) - 1
        return f"seen in {group.sources[0]}" + (f" and {more} more" if more else "")
    call = group.smallest.call
    words = ", ".join(words for _, words in call.variant)
    return f"the call of {call.tool} that has all it needs" + (f", {words}" if words else "")


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def _short(value: Any) -> str:
    if value is None:
        return "not stated"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
