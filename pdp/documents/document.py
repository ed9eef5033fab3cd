"""The value of a file, and where in the file each part of it stands."""

import json
import re
from functools import cached_property
from typing import Any, Final

from pdp.errors import Fault, Place

Path = tuple[str | int, ...]
"""The way to a part of a document: keys of mappings and indices of lists, from the root."""

_CONFLICT: Final = re.compile("^(?:<{7}|>{7})(?: |$)", re.MULTILINE)
_LINE_BREAKS: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_NO_KEYS: Final[dict[str, tuple[int, int]]] = {}


class Part:
    """One value of a document with its place: `line` and `column` count from 1.

    `members` are the parts of a mapping (by key) or of a list (by position), else None; `keys` has the place of each
    key of a mapping. `size` is the number of values in it, aliased ones included; `height` how deep they nest.
    """

    __slots__ = ("column", "height", "keys", "line", "members", "size", "value")

    def __init__(self, value: Any, line: int, column: int) -> None:
        self.value = value
        self.line = line
        self.column = column
        self.members: dict[str, Part] | list[Part] | None = None
        self.keys = _NO_KEYS  # shared: most parts are scalars
        self.size = 1
        self.height = 0


class Document:
    """A file that was read: its value as plain JSON (None, bool, int, float, str, list, dict), and places in it."""

    def __init__(self, file: str, text: str, root: Part) -> None:
        self.file = file
        self._text = text
        self._root = root

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text, as YAML ends them."""
        return _LINE_BREAKS.split(self._text)

    @property
    def value(self) -> Any:
        """The value of the whole file. Aliases share what they name: do not change it in place."""
        return self._root.value

    def place(self, path: Path = (), *, key: bool = False) -> Place:
        """Return where the part at `path` stands, or with `key` the key in front of it, if it is a mapping's member.

        Of a path that does not exist, it is where its nearest outer part stands.
        """
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
        """Return a fault at the part at `path` (or at its key), with the line of the file to show."""
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
        """Return the fault of a merge conflict that is not resolved, if there is one: no format has its markers."""
        marker = _CONFLICT.search(self._text)
        if marker is None:
            return None
        line = self._text.count("\n", 0, marker.start()) + 1
        return self.fault_at(line, 1, "a merge conflict is not resolved", "keep one side, and remove the marker lines")


def shown_name(name: object) -> str:
    """Return a value of the user's as it is shown in a message: quoted, shortened, on one line."""
    text = name if isinstance(name, str) else repr(name)
    if len(text) > 60:  # noqa: PLR2004
        text = text[:57] + "..."
    return f"`{_printable(text)}`"


def written_value(value: Any, indent: int | None = None) -> str:
    r"""Return JSON that is YAML as well; its `\ud83d\ude00` is none there. What does not show is an escape."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return re.sub(r"[^\n -~]", lambda at: at[0] if at[0].isprintable() else f"\\U{ord(at[0]):08X}", text)


# Only what prints is shown: a file must not be able to steer the terminal.
def _printable(text: str) -> str:
    shown = (letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return text if text.isprintable() else "".join(shown)
