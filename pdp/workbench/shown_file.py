"""Format file names, line numbers and text for reports, so that terminals and Markdown show them safely."""

import re
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Final

from pdp.installed import packaged

_POLICIES: Final = "policies"
_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>()#+!|~&@])")


def shown_file(file: str | PathLike[str]) -> str:
    """Return a path below the working directory as a relative path, and a policy of the baseline as `policies/...`."""
    path = Path(file)
    for root, before in ((Path.cwd(), Path()), (packaged(_POLICIES), Path(_POLICIES))):
        if path.is_relative_to(root):
            return str(before / path.relative_to(root))
    return str(file)


def line_ranges(lines: Iterable[int]) -> str:
    """Return line numbers as text; consecutive numbers become ranges, such as `3, 7-9`."""
    ranges: list[list[int]] = []
    for line in sorted(lines):
        if ranges and ranges[-1][-1] == line - 1:
            ranges[-1][1:] = [line]
        else:
            ranges.append([line])
    return ", ".join("-".join(map(str, ends)) for ends in ranges)


def printable(text: str) -> str:
    r"""Return `text` with every unprintable character as an escape such as `\x1b`."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode() for letter in text
    )


def markdown_text(text: str) -> str:
    """Return `text` escaped for Markdown, so that it cannot form a link, a tag or a mention."""
    return _SPECIAL.sub(r"\\\1", printable(text))


def markdown_code(text: str) -> str:
    """Return `text` as inline code in Markdown."""
    return f"`{printable(text).replace('`', '')}`"
