"""A bundle diff as Markdown, for a pull request: short at first sight, the requests folded away."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from pdp.workbench.diff.wording import (
    grid_lines,
    known_line,
    marked,
    rule_lines,
    structure_lines,
    uncovered,
    verdict,
    witness_line,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdp.workbench.diff.groups import Group
    from pdp.workbench.diff.result import BundleDiff

_MOST: Final = 25
_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>()#+!|~&@])")


def render(diff: BundleDiff) -> str:
    """Return the report. What comes from bundles and requests is escaped, and can form no link, tag or mention."""
    return "\n".join(_lines(diff)) + "\n"


def _lines(diff: BundleDiff) -> Iterator[str]:
    yield f"## Bundle diff: {_plain(verdict(diff))}"
    yield ""
    yield f"{_plain(diff.names[0])}, release {diff.old.release}, {_code(diff.old.revision)}  "
    yield f"{_plain(diff.names[1])}, release {diff.new.release}, {_code(diff.new.revision)}"
    yield ""
    yield "### Structure"
    yield ""
    found = list(structure_lines(diff.structure))
    if found:
        yield "| direction | what | where |"
        yield "|---|---|---|"
        yield from (f"| {line.direction} | {_plain(line.what)} | {_plain(line.where)} |" for line in found)
    else:
        yield "No difference."
    yield ""
    yield "### Known calls"
    yield ""
    yield _plain(known_line(diff))
    yield from _groups(diff.known.groups)
    yield ""
    yield "### Calls that nobody wrote down"
    yield ""
    first, *rest = grid_lines(diff)
    yield _plain(first)
    yield from _groups(diff.grid)
    yield ""
    yield from (f"- {_plain(line)}" for line in (*rest, uncovered(diff)))


def _groups(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups[:_MOST]:
        yield ""
        yield f"#### {marked(group)}: {_plain(group.title)}"
        yield ""
        yield f"{_code(group.id)}, {group.count} {'request' if group.count == 1 else 'requests'}; "
        yield _plain(witness_line(group))
        yield ""
        yield from (f"- {_plain(line)}" for line in rule_lines(group))
        yield ""
        yield "<details><summary>request</summary>"
        yield ""
        # Indented code ends only with the indentation, whatever stands in it.
        yield from (f"    {line}" for line in json.dumps(group.witness, indent=2).split("\n"))
        yield ""
        yield "</details>"
    if len(groups) > _MOST:
        yield ""
        yield f"And {len(groups) - _MOST} more; `pdp bundle diff --json` shows all of them."


def _plain(text: str) -> str:
    flat = "".join(letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in text)
    return _SPECIAL.sub(r"\\\1", flat)


def _code(text: str) -> str:
    return f"`{text.replace('`', '')}`"
