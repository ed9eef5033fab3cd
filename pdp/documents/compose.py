"""Compose parts out of what a parser reports, one event at a time; no recursion, so that depth is ours to bound."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pdp.documents.document import Document, Part, shown_name
from pdp.json import MAX_NUMBER

if TYPE_CHECKING:
    from pdp.errors import Fault

MAX_NESTING: Final = 64
"""Deepest nesting of mappings and lists in a file."""

MAX_VALUES: Final = 1_000_000
"""Most values in one file: ten thousand richly described tools have about two thirds of that."""

MAX_ALIASED: Final = 50_000
"""Most values that YAML aliases may add: more is a file that explodes, not one that saves typing."""

MAX_FAULTS: Final = 500
"""So many faults are collected, then reading stops."""

# What YAML 1.2 and JSON agree on, or nearly: `no`, `on`, dates, `1:30`, `1_000`, `0x1F` and `010` stay strings.
_CONSTANTS: Final[dict[str, Any]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_JSON_SCALAR: Final = re.compile(r"null|true|false|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_FIRST_OF_TYPED: Final = frozenset("~nNtTfF+-.0123456789")
_EXACT_DIGITS: Final = 20


class UnreadableError(Exception):
    """Reading cannot go on; the fault that says why is already among the faults."""


class _Open:
    """A mapping or list that is still being read. `key` is the key whose value comes next, with its place."""

    __slots__ = ("anchor", "kept", "key", "part")

    def __init__(self, part: Part, anchor: str | None, *, kept: bool) -> None:
        self.part = part
        self.anchor = anchor
        self.kept = kept
        self.key: tuple[str | None, int, int] | None = None


class Composer:
    """Builds the parts of one file and collects its faults.

    A parser calls `start`, `end`, `scalar` and `alias` in the order of the text. What is faulty is left out (a second
    key of the same name) or None (a number that is none), and reading goes on; `UnreadableError` ends it.

    Args:
        file: the name to show.
        text: the whole text.
        json: scalars must be JSON's, not YAML's.
    """

    def __init__(self, file: str, text: str, *, json: bool) -> None:
        self.faults: list[Fault] = []
        self._document = Document(file, text, Part(None, 1, 1))
        self._file = file
        self._text = text
        self._json = json
        self._root: Part | None = None
        self._open: list[_Open] = []
        self._anchors: dict[str, Part | None] = {}
        self._values = 0
        self._aliased = 0

    def document(self) -> Document:
        """Return the document composed so far; of a file without any value, one whose value is None."""
        return Document(self._file, self._text, self._root or Part(None, 1, 1))

    @property
    def empty(self) -> bool:
        """Whether nothing was read yet."""
        return self._root is None

    def fault(self, line: int, column: int, message: str, hint: str | None = None) -> None:
        """Collect a fault.

        Raises:
            UnreadableError: these are too many.
        """
        self.faults.append(self._document.fault_at(line, column, message, hint))
        if len(self.faults) >= MAX_FAULTS:
            self.faults.append(self._document.fault_at(line, column, f"reading stops here after {MAX_FAULTS} faults"))
            raise UnreadableError

    def stop(self, line: int, column: int, message: str, hint: str | None = None) -> UnreadableError:
        """Collect a fault after which reading cannot go on; raise what is returned."""
        self.faults.append(self._document.fault_at(line, column, message, hint))
        return UnreadableError()

    def start(self, line: int, column: int, *, mapping: bool, anchor: str | None = None) -> None:
        """Begin a mapping or a list."""
        if len(self._open) >= MAX_NESTING:
            raise self.stop(line, column, f"nested deeper than {MAX_NESTING} levels", "make the structure flatter")
        part = Part({} if mapping else [], line, column)
        part.members = {} if mapping else []
        part.keys = {}
        kept = True
        if self._expects_key():
            if all(one.kept for one in self._open):
                self.fault(line, column, "a mapping's key must be a string", "write the key as plain text or in quotes")
            self._open[-1].key = (None, line, column)
            kept = False
        if anchor is not None:
            self._anchors[anchor] = None
        self._open.append(_Open(part, anchor, kept=kept))

    def end(self, line: int = 1, column: int = 1) -> None:
        """End the innermost mapping or list."""
        if not self._open:
            raise self.stop(line, column, "a bracket closes that none has opened")
        ended = self._open.pop()
        if ended.anchor is not None:
            self._anchors[ended.anchor] = ended.part
        if ended.kept:
            self._add(ended.part)

    def scalar(self, text: str, line: int, column: int, *, plain: bool, anchor: str | None = None) -> None:
        """Take a scalar; a plain one (not quoted) may be null, a boolean or a number."""
        value = self._resolve(text, line, column) if plain else self._checked_text(text, line, column)
        part = Part(value, line, column)
        if anchor is not None:
            self._anchors[anchor] = part
        if self._expects_key():
            self._take_key(part, text)
        else:
            self._add(part)

    def alias(self, anchor: str, line: int, column: int) -> None:
        """Take an alias: the same part again."""
        part = self._anchors.get(anchor)
        if part is None:
            known = anchor in self._anchors
            raise self.stop(
                line,
                column,
                f"alias {shown_name('*' + anchor)} stands inside of what it names"
                if known
                else f"alias {shown_name('*' + anchor)} names no anchor above it",
            )
        if self._expects_key():
            self._take_key(Part(part.value, line, column), str(part.value))
            return
        self._aliased += part.size
        if self._aliased > MAX_ALIASED:
            raise self.stop(
                line, column, f"aliases add more than {MAX_ALIASED} values", "write the values out, or split the file"
            )
        if len(self._open) + part.height > MAX_NESTING:
            raise self.stop(line, column, f"nested deeper than {MAX_NESTING} levels", "make the structure flatter")
        copy = Part(part.value, line, column)
        copy.members, copy.keys, copy.size, copy.height = part.members, part.keys, part.size, part.height
        self._add(copy)

    def _expects_key(self) -> bool:
        if not self._open:
            return False
        top = self._open[-1]
        return type(top.part.value) is dict and top.key is None

    def _take_key(self, part: Part, text: str) -> None:
        name: str | None = text
        if not isinstance(part.value, str):
            self.fault(
                part.line,
                part.column,
                f"key {shown_name(text)} is not a string",
                f'write it in quotes: "{text:.40}"' if text else "write the key before the colon",
            )
            name = None
        elif part.value == "<<" and not self._json:
            self.fault(part.line, part.column, "merge keys (`<<`) are not supported", "write the fields out")
            name = None
        else:
            name = part.value
            members = self._open[-1].part
            if name in members.keys:
                first = members.keys[name][0]
                self.fault(
                    part.line, part.column, f"key {shown_name(name)} stands twice, first on line {first}", "remove one"
                )
                name = None
        self._open[-1].key = (name, part.line, part.column)

    def _add(self, part: Part) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            raise self.stop(part.line, part.column, f"more than {MAX_VALUES} values in one file", "split the file")
        if not self._open:
            self._root = part
            return
        top = self._open[-1]
        outer = top.part
        if isinstance(outer.members, dict):
            key = top.key
            top.key = None
            if key is None or key[0] is None:
                return
            outer.members[key[0]] = part
            outer.keys[key[0]] = key[1:]
            outer.value[key[0]] = part.value
        elif outer.members is not None:
            outer.members.append(part)
            outer.value.append(part.value)
        outer.size += part.size
        outer.height = max(outer.height, part.height + 1)

    def _checked_text(self, text: str, line: int, column: int) -> str:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                self.fault(line, column, "half of a surrogate pair is not a character", "write both halves, or neither")
                return ""
        return text

    def _resolve(self, text: str, line: int, column: int) -> Any:
        if self._json:
            if not _JSON_SCALAR.fullmatch(text):
                self.fault(line, column, f"{shown_name(text)} is not a value of JSON", "null, true, false, or a number")
                return None
        elif text and text[0] not in _FIRST_OF_TYPED:
            return self._checked_text(text, line, column)
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if _NOT_FINITE.fullmatch(text):
            self.fault(line, column, f"{shown_name(text)} is not a finite number", "write a number, or quote a text")
            return None
        if _INTEGER.fullmatch(text) or _FLOAT.fullmatch(text):
            return self._number(text, line, column)
        return self._checked_text(text, line, column)

    def _number(self, text: str, line: int, column: int) -> float | None:
        whole = _INTEGER.fullmatch(text) and len(text) <= _EXACT_DIGITS
        number = int(text) if whole else float(text)
        if abs(number) <= MAX_NUMBER:
            return number
        hint = "write it in quotes if it is an identifier"
        self.fault(line, column, f"number {shown_name(text)} is beyond 2^53-1", hint)
        return None
