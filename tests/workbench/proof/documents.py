"""Rego values of documents: interned, so that equal values are one object, and ordered as OPA orders."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import cmp_to_key
from typing import Any, Final

RANK: Final = ("null", "bool", "num", "str", "arr", "obj", "set")


class Value:
    """A Rego value, or undefined: `kind` is a constructor of the translation, and `held` is what it holds."""

    __slots__ = ("entries", "held", "kind")

    def __init__(self, kind: str, held: Any) -> None:
        self.kind = kind
        self.held = held
        self.entries: dict[Value, Value] = {}
        if kind == "obj":
            self.entries = dict(held)
        elif kind == "arr":
            self.entries = {}
        elif kind == "set":
            self.entries = {item: item for item in held}

    def __repr__(self) -> str:
        return f"{self.kind}:{self.held!r}"


class Values:
    """The values of one request. Values of two requests must not be compared."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Any], Value] = {}
        self.undef = self.of("undef", None)
        self.null = self.of("null", None)
        self.true, self.false = self.of("bool", True), self.of("bool", False)

    def of(self, kind: str, held: Any) -> Value:
        """Return the value with this constructor and content."""
        key = (kind, held)
        value = self._known.get(key)
        if value is None:
            value = self._known[key] = Value(kind, held)
            if kind == "arr":
                value.entries = {self.number(index): item for index, item in enumerate(held)}
        return value

    def number(self, number: int | Fraction) -> Value:
        """Return a number."""
        return self.of("num", Fraction(number))

    def text(self, text: str) -> Value:
        """Return a string."""
        return self.of("str", text)

    def array(self, items: Iterable[Value]) -> Value:
        """Return an array."""
        return self.of("arr", tuple(items))

    def object(self, pairs: Iterable[tuple[Value, Value]]) -> Value:
        """Return an object."""
        return self.of("obj", frozenset(pairs))

    def set(self, items: Iterable[Value]) -> Value:
        """Return a set."""
        return self.of("set", frozenset(items))

    def json(self, document: Any) -> Value:
        """Return a JSON document as a value."""
        if document is None:
            return self.null
        if isinstance(document, bool):
            return self.true if document else self.false
        if isinstance(document, str):
            return self.text(document)
        if isinstance(document, list):
            return self.array(map(self.json, document))
        if isinstance(document, dict):
            return self.object((self.text(key), self.json(item)) for key, item in document.items())
        return self.number(Fraction(repr(document)) if isinstance(document, float) else document)

    def get(self, holder: Value, key: Value) -> Value:
        """Return what a collection holds at a key, or undefined."""
        return holder.entries.get(key, self.undef)


def items_of(value: Value) -> list[Value]:
    """Return the items of a collection in the order in which OPA iterates."""
    return [item for _, item in entries_of(value)]


def entries_of(value: Value) -> list[tuple[Value, Value]]:
    """Return keys and items of a collection in the order in which OPA iterates. A value without items has none."""
    entries = list(value.entries.items())
    return entries if value.kind == "arr" else sorted(entries, key=lambda entry: _KEY(entry[0]))


def compared(a: Value, b: Value) -> int:
    """Return -1, 0 or 1 in OPA's order of all values."""
    if a is b:
        return 0
    if a.kind != b.kind:
        return -1 if RANK.index(a.kind) < RANK.index(b.kind) else 1
    if a.kind not in ("arr", "obj", "set"):
        one, other = (value.held.encode() if value.kind == "str" else value.held for value in (a, b))
        return -1 if one < other else 1
    for x, y in zip(_parts(a), _parts(b), strict=False):
        if x is not y:
            return compared(x, y)
    return -1 if len(a.entries) < len(b.entries) else 1


def _parts(value: Value) -> list[Value]:
    """Return the parts of a collection by which it is ordered: keys and items of an object, items of another one."""
    if value.kind == "obj":
        return [part for key in sorted(value.entries, key=_KEY) for part in (key, value.entries[key])]
    return list(value.held) if value.kind == "arr" else sorted(value.held, key=_KEY)


_KEY: Final = cmp_to_key(compared)


def ordered(values: Iterable[Value]) -> list[Value]:
    """Return values in OPA's order."""
    return sorted(values, key=_KEY)
