"""A parsed file: its value, with the line and column of each part."""

import json
import re
from functools import cached_property
from typing import Any, Final

from pdp.errors import Fault, Place

Path = tuple[str | int, ...]
"""A path to a part of a document: keys of mappings and indices of lists, from the root."""

_CONFLICT: Final = re.compile("^(?:<{7}|>{7})(?: |$)", re.MULTILINE)
_LINE_BREAKS: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_NO_KEYS: Final[dict[str, tuple[int, int]]] = {}


class Part:
    """A value in a parsed file, at `line` and `column` from 1. `size` counts it and all values in it, aliases expanded.

    `members` is None for scalars. `keys` maps each key of a mapping to its line and column.
    """

    __slots__ = ("column", "height", "keys", "line", "members", "size", "value")

    def __init__(self, value: Any, line: int, column: int) -> None:
        self.value = value
        self.line = line
        self.column = column
        self.members: dict[str, Part] | list[Part] | None = None
        self.keys = _NO_KEYS  # Most nodes are scalars without keys, so they share one empty default.
        self.size = 1
        self.height = 0


class Document:
    """A parsed file: its value in plain JSON types (None, bool, int, float, str, list, dict), and all locations."""

    def __init__(self, file: str, text: str, root: Part) -> None:
        self.file = file
        self._text = text
        self._root = root

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text, split at the line breaks of YAML."""
        return _LINE_BREAKS.split(self._text)

    @property
    def value(self) -> Any:
        """The value of the whole file. Do not change it, because aliases in YAML share values."""
        return self._root.value

    def place(self, path: Path = (), *, key: bool = False) -> Place:
        """Return where the innermost existing value on `path` is; with `key`, where the key at the end of `path` is."""
        part = self._root
        line, column = part.line, part.column
        for depth, step in enumerate(path):
            members = part.members
            if isinstance(members, dict) and isinstance(step, str) and step in members:
                if key and depth == len(path) - 1:
                    line, column = part.keys[step]
                    break
                part = members[step]
            elif isinstance(members, list) and isinstance(step, int) and 0 <= step < len(members):
                part = members[step]
            else:
                break
            line, column = part.line, part.column
        return Place(self.file, line, column)

    def fault(
        self, path: Path, message: str, hint: str | None = None, *, key: bool = False, warning: bool = False
    ) -> Fault:
        """Return a fault at the value at `path` (with `key`, at the value's key), with the line of the file to show."""
        place = self.place(path, key=key)
        return self.fault_at(place.line, place.column, message, hint, warning=warning)

    def fault_at(
        self, line: int, column: int, message: str, hint: str | None = None, *, warning: bool = False
    ) -> Fault:
        """Return a fault at a line and column of the file."""
        shown_hint = None if hint is None else _printable(hint)
        source = self.lines[line - 1] if line <= len(self.lines) else ""
        return Fault(Place(self.file, line, column), _printable(message), shown_hint, warning=warning, source=source)

    def conflict(self) -> Fault | None:
        """Return a fault at the first marker of an unresolved merge conflict, or None if the file has no marker."""
        marker = _CONFLICT.search(self._text)
        if marker is None:
            return None
        line = self._text.count("\n", 0, marker.start()) + 1
        return self.fault_at(line, 1, "a merge conflict is not resolved", "keep one version, and remove the markers")


def shown_name(name: object) -> str:
    """Return a user's text or value for use in a message: in backquotes, on one line, at most 60 characters long."""
    text = name if isinstance(name, str) else repr(name)
    if len(text) > 60:  # noqa: PLR2004
        text = text[:57] + "..."
    return f"`{_printable(text)}`"


def written_value(value: Any, indent: int | None = None) -> str:
    r"""Return JSON text that is also valid YAML. Characters that do not print become `\UXXXXXXXX` escapes."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return re.sub(r"[^\n -~]", lambda at: at[0] if at[0].isprintable() else f"\\U{ord(at[0]):08X}", text)


# Replace characters that do not print, so that a file cannot send control sequences to the terminal.
def _printable(text: str) -> str:
    shown = (letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return text if text.isprintable() else "".join(shown)
