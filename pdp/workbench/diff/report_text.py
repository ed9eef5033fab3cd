"""A bundle diff for a terminal: lines, each with which way it goes first."""

from __future__ import annotations

import json
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

MOST: Final = 25
"""How many differences of a layer are shown in full; the rest is counted. `--json` has them all."""


def lines(diff: BundleDiff) -> Iterator[str]:
    """Yield the report's lines; what does not print in them is for the caller to escape."""
    old, new = diff.names
    yield f"{old} (release {diff.old.release}) -> {new} (release {diff.new.release}): {verdict(diff)}"
    yield ""
    yield "structure"
    found = list(structure_lines(diff.structure))
    for line in found:
        yield f"  {line.direction:<9} {line.what}{f'  {line.where}' if line.where else ''}"
    if not found:
        yield "  no difference"
    yield ""
    yield f"known calls: {known_line(diff)}"
    yield from _groups(diff.known.groups)
    yield ""
    first, *rest = grid_lines(diff)
    yield f"grid: {first}"
    yield from _groups(diff.grid)
    yield from (f"  {line}" for line in rest)
    yield f"  {uncovered(diff)}"


def _groups(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups[:MOST]:
        yield f"  {marked(group):<9} {group.id}  {group.title}"
        yield f"            {group.count} {'request' if group.count == 1 else 'requests'}; {witness_line(group)}"
        yield from (f"            {line}" for line in rule_lines(group))
        yield f"            request: {json.dumps(group.witness, ensure_ascii=False, separators=(',', ':'))}"
    if len(groups) > MOST:
        yield f"  and {len(groups) - MOST} more differences; --json shows all of them"
