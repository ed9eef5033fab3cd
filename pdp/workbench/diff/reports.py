"""A bundle diff for a terminal, and as Markdown for a pull request.

Both say the same, and show the first differences of a layer only; `--json` has all of them.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from pdp.manifest.diff import Direction

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdp.workbench.diff.groups import Group
    from pdp.workbench.diff.result import BundleDiff
    from pdp.workbench.diff.structure import Structure

MOST: Final = 25
"""How many differences in decisions of a layer are shown, and the rest counted."""

_MOST_CHANGES: Final = 1000
_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>()#+!|~&@])")


def verdict(diff: BundleDiff) -> str:
    """Return the first line of a report: whether anything differs, and how bad it is."""
    loosening = len(diff.loosenings())
    loosens = f"{loosening or 'nothing'} {'loosen' if loosening > 1 else 'loosens'}"
    if not diff.decided:
        seen = f", {loosens} in structure" if loosening else ""
        return f"no call was decided, so nothing is known of decisions{seen}"
    if not diff.differs:
        return "no difference that can change a decision"
    differences, unseen = f"{_count(len(diff.groups), 'difference')} in decisions", len(diff.unseen())
    hidden = f"{_count(unseen, 'place')} where a loosening would not be seen"
    if unseen and not loosening:
        return f"{hidden}; {differences}"
    return f"{differences}, {loosens}, and {hidden}" if unseen else f"{differences}, {loosens}"


def text_lines(diff: BundleDiff) -> Iterator[str]:
    """Yield the lines for a terminal; the caller escapes what does not print in them."""
    old, new = diff.names
    yield f"{old} (release {diff.old.release}) -> {new} (release {diff.new.release}): {verdict(diff)}"
    yield ""
    yield "structure"
    changes = _changes(diff.structure) or [("", "no difference", "")]
    yield from (f"  {direction:<9} {line}{where and f'  {where}'}".rstrip() for direction, line, where in changes)
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
        yield from (f"            {rule}" for rule in group.rules)
        yield f"            request: {json.dumps(group.witness, ensure_ascii=False, separators=(',', ':'))}"
    yield from (f"  {line}" for line in _more(groups))


def markdown(diff: BundleDiff) -> str:
    """Return the report as Markdown: short at first sight, the requests folded away.

    What comes from bundles and requests is escaped: it can form no link, tag or mention.
    """
    return "\n".join(_markdown_lines(diff)) + "\n"


def _markdown_lines(diff: BundleDiff) -> Iterator[str]:
    yield f"## Bundle diff: {_escaped(verdict(diff))}"
    yield ""
    for name, bundle in zip(diff.names, (diff.old, diff.new), strict=True):
        yield f"- {_escaped(name)}, release {bundle.release}, {_code(bundle.revision)}"
    yield from _markdown_summary(diff)
    yield from ("", "### Structure", "", "| direction | what | where |", "|---|---|---|")
    for direction, line, where in _changes(diff.structure) or [("", "no difference", "")]:
        yield f"| {direction} | {_escaped(line)} | {_escaped(where)} |"
    yield from ("", "### Known calls", "", _escaped(_known_line(diff)))
    yield from _markdown_groups(diff.known.groups)
    first, *rest = _generated_lines(diff)
    yield from ("", "### Generated calls", "", _escaped(first))
    yield from _markdown_groups(diff.generated)
    yield ""
    yield from (f"- {_escaped(line)}" for line in rest)


def _markdown_summary(diff: BundleDiff) -> Iterator[str]:
    """What a reviewer has to look at, before everything else."""
    places = {rule.line: f" ({rule.where})" for rule in diff.not_shown}
    lines = [
        *(("loosens", name, words) for name, words in diff.loosenings().items()),
        *(("not shown", name, f"{words}{places.get(words, '')}") for name, words in diff.unseen().items()),
    ]
    if lines:
        yield from ("", "### To be looked at", "")
        yield from (f"- **{kind}** {_code(name)}: {_escaped(words)}" for kind, name, words in lines[:MOST])
        yield from (f"- and {len(lines) - MOST} more; --json shows all of them" for _ in lines[MOST : MOST + 1])
        yield from ("", "Take back what is not wanted. Explain the rest by its id for `pdp release check`. What is not")
        yield "shown may admit more than it seems to: read the rule, or add a scenario that shows it."


def _markdown_groups(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups[:MOST]:
        yield from ("", f"#### {marked(group)}: {_escaped(group.title)}", "")
        yield f"{_code(group.id)}, {_count(group.count, 'request')}; {_escaped(_witness_line(group))}"
        yield ""
        yield from (f"- {_escaped(rule)}" for rule in group.rules)
        yield from ("", "<details><summary>request</summary>", "")
        # Indented code ends only with the indentation, whatever it contains.
        yield from (f"    {line}" for line in json.dumps(group.witness, indent=2).split("\n"))
        yield from ("", "</details>")
    yield from (part for line in _more(groups) for part in ("", line))


def _more(groups: Sequence[Group]) -> Iterator[str]:
    if len(groups) > MOST:
        yield f"and {len(groups) - MOST} more differences; --json shows all of them"


def _escaped(text: str) -> str:
    flat = "".join(letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in text)
    return _SPECIAL.sub(r"\\\1", flat)


def _code(text: str) -> str:
    return f"`{text.replace('`', '')}`"


def marked(group: Group) -> str:
    """Return the direction of a difference; where it is unclear, whether it counts as loosening."""
    if group.may_loosen and group.direction is not Direction.LOOSENS:
        return f"{group.direction.value} (counts as loosening)"
    return group.direction.value


def _changes(structure: Structure) -> list[tuple[str, str, str]]:
    """Direction, line and place of the first changes, and how many more there are."""
    changes = structure.changes
    lines = [(change.direction.value, change.line, change.where) for change in changes[:_MOST_CHANGES]]
    if len(changes) > _MOST_CHANGES:
        lines.append((Direction.UNCLEAR.value, f"{len(changes) - _MOST_CHANGES} more changes", ""))
    return lines


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
    unseen = diff.unseen()
    lines = [f"{extent.requests} requests: {_count(len(diff.generated), 'difference')}", extent.line]
    lines = lines if extent.requests else ["none was asked for"]
    lines += [f"unseen {name}: {what}" for name, what in unseen.items()]
    if extent.never_allowed and not unseen:
        names = ", ".join(extent.never_allowed)
        lines.append(f"no call was found that is ALLOW or STEP_UP, so little is known of: {names}")
    return (*lines, uncovered)


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
