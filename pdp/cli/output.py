"""What commands print: text that cannot steer a terminal, and JSON that any encoding can carry."""

from __future__ import annotations

import json
from typing import Any


def print_json(value: Any) -> None:
    """Print JSON in plain ASCII, indented by two, keys in the order of `value`.

    ASCII, because names come from models: as escapes they can neither steer a terminal nor fail to be encoded.
    """
    print(json.dumps(value, indent=2))


def printable(text: str) -> str:
    r"""Return `text` with all that does not print, line breaks apart, as escapes such as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode()
