"""What commands print or write: text that cannot steer a terminal, JSON that any encoding can carry, reports."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from pdp.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def tell(text: str) -> None:
    """Print to standard output. Nothing happens when that is closed."""
    print(text)  # noqa: T201 - the one place where a command's answer is printed


def complain(text: str) -> None:
    """Print lines to standard error, with what does not print in them as escapes."""
    print("\n".join(map(printable, text.split("\n"))), file=sys.stderr)  # noqa: T201 - likewise, for complaints


def print_json(value: Any) -> None:
    """Print JSON in plain ASCII, indented by two, keys in the order of `value`.

    ASCII, because names come from models: as escapes they can neither steer a terminal nor fail to be encoded.
    """
    tell(json.dumps(value, indent=2))


def write_report(file: Path, text: str) -> None:
    """Write a report into a file of the user's.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{file}: cannot be written: {error.strerror}", hint="name a file in a folder of yours"
        ) from error


def printable(text: str) -> str:
    r"""Return `text` on one line, with all that does not print as escapes such as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode()
