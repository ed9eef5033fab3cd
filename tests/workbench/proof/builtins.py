"""The meaning of OPA's builtins that policies use and that the translation leaves uninterpreted."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import fmod, prod
from typing import Final

from tests.workbench.proof.documents import Value, Values, entries_of, items_of, ordered


class UnknownBuiltinError(Exception):
    """A builtin has no meaning here."""


def minus(numbers: Sequence[Fraction]) -> Fraction:
    """Return the difference of numbers, or the negative of one."""
    return -numbers[0] if len(numbers) == 1 else numbers[0] - sum(numbers[1:])


def call(name: str, values: Values, arguments: tuple[Value, ...]) -> Value:
    """Return what a builtin answers; undefined for types that it does not take."""
    if name == "template":
        return values.text("".join(map(shown, arguments)))
    if name not in _BUILTINS:
        raise UnknownBuiltinError(name)
    kinds, work = _BUILTINS[name]
    for argument, kind in zip(arguments, kinds, strict=True):
        if argument.kind not in kind.split("|"):
            return values.undef
    return work(values, *arguments)


def shown(value: Value) -> str:
    """Return a value as a template string shows it."""
    return "<undefined>" if value.kind == "undef" else value.held if value.kind == "str" else written(value)


def written(value: Value) -> str:
    """Return a value as OPA prints it."""
    parts = ", ".join(map(written, items_of(value)))
    match value.kind:
        case "num":
            text = str(value.held) if value.held.denominator == 1 else repr(float(value.held))
        case "arr":
            text = f"[{parts}]"
        case "set":
            text = f"{{{parts}}}" if value.held else "set()"
        case "obj":
            text = f"{{{', '.join(f'{written(key)}: {written(item)}' for key, item in entries_of(value))}}}"
        case _:
            text = json.dumps(value.held, ensure_ascii=False)
    return text


def _union(values: Values, a: Value, b: Value) -> Value:
    merged = {**a.entries}
    for key, item in b.entries.items():
        both = key in merged and merged[key].kind == item.kind == "obj"
        merged[key] = _union(values, merged[key], item) if both else item
    return values.object(merged.items())


def _removed(values: Values, holder: Value, keys: Value) -> Value:
    gone = set(keys.entries if keys.kind == "obj" else items_of(keys))
    return values.object((key, item) for key, item in holder.entries.items() if key not in gone)


def _least(values: Values, holder: Value) -> Value:
    return next(iter(ordered(items_of(holder))), values.undef)


def _most(values: Values, holder: Value) -> Value:
    found = ordered(items_of(holder))
    return found[-1] if found else values.undef


def _total(values: Values, holder: Value) -> Value:
    items = items_of(holder)
    return (
        values.number(sum(item.held for item in items)) if all(item.kind == "num" for item in items) else values.undef
    )


def _difference(values: Values, a: Value, b: Value) -> Value:
    if a.kind != b.kind:
        return values.undef
    return values.number(a.held - b.held) if a.kind == "num" else values.set(a.held - b.held)


def _got(values: Values, holder: Value, key: Value, default: Value) -> Value:
    if key.kind != "arr":
        found = values.get(holder, key)
        return default if found.kind == "undef" else found
    for step in items_of(key):
        holder = values.get(holder, step)
    return default if holder.kind == "undef" else holder


def _split(values: Values, text: Value, by: Value) -> Value:
    return values.array(map(values.text, text.held.split(by.held) if by.held else text.held))


def _product(values: Values, holder: Value) -> Value:
    items = items_of(holder)
    known = all(item.kind == "num" for item in items)
    return values.number(prod(item.held for item in items)) if known else values.undef


def _remainder(values: Values, a: Value, b: Value) -> Value:
    if not b.held or a.held.denominator != 1 or b.held.denominator != 1:
        return values.undef
    return values.number(int(fmod(a.held, b.held)) if abs(a.held) < _EXACT else a.held - b.held * int(a.held / b.held))


def _part(values: Values, text: Value, start: Value, length: Value) -> Value:
    if start.held < 0:
        return values.undef
    end = len(text.held) if length.held < 0 else int(start.held + length.held)
    return values.text(text.held[int(start.held) : end])


def _parsed(values: Values, value: Value) -> Value:
    match value.kind:
        case "num":
            return value
        case "null":
            return values.number(0)
        case "bool":
            return values.number(int(value.held))
    try:
        return values.number(Fraction(value.held)) if "/" not in value.held else values.undef
    except ValueError:
        return values.undef


_EXACT: Final = 2**53
_SPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
)
_ANY: Final = "null|bool|num|str|arr|obj|set"
_BUILTINS: Final[dict[str, tuple[tuple[str, ...], Callable[..., Value]]]] = {
    "array.concat": (("arr", "arr"), lambda values, a, b: values.array([*a.held, *b.held])),
    "array.slice": (
        ("arr", "num", "num"),
        lambda values, a, low, high: values.array(a.held[max(0, int(low.held)) : max(0, int(high.held))]),
    ),
    "object.union": (("obj", "obj"), _union),
    "object.remove": (("obj", "arr|set|obj"), _removed),
    "object.get": (("obj", _ANY, _ANY), _got),
    "object.keys": (("obj",), lambda values, holder: values.set(holder.entries)),
    "min": (("arr|set",), _least),
    "max": (("arr|set",), _most),
    "sum": (("arr|set",), _total),
    "sort": (("arr|set",), lambda values, holder: values.array(ordered(items_of(holder)))),
    "minus": (("num|set", "num|set"), _difference),
    "plus": (("num", "num"), lambda values, a, b: values.number(a.held + b.held)),
    "mul": (("num", "num"), lambda values, a, b: values.number(a.held * b.held)),
    "div": (("num", "num"), lambda values, a, b: values.number(a.held / b.held) if b.held else values.undef),
    "and": (("set", "set"), lambda values, a, b: values.set(a.held & b.held)),
    "or": (("set", "set"), lambda values, a, b: values.set(a.held | b.held)),
    "startswith": (("str", "str"), lambda values, text, start: values.json(text.held.startswith(start.held))),
    "endswith": (("str", "str"), lambda values, text, end: values.json(text.held.endswith(end.held))),
    "contains": (("str", "str"), lambda values, text, part: values.json(part.held in text.held)),
    "trim_space": (("str",), lambda values, text: values.text(text.held.strip(_SPACE))),
    "split": (("str", "str"), _split),
    "trim_left": (("str", "str"), lambda values, text, cut: values.text(text.held.lstrip(cut.held))),
    "trim_right": (("str", "str"), lambda values, text, cut: values.text(text.held.rstrip(cut.held))),
    "trim": (("str", "str"), lambda values, text, cut: values.text(text.held.strip(cut.held))),
    "trim_prefix": (("str", "str"), lambda values, text, cut: values.text(text.held.removeprefix(cut.held))),
    "trim_suffix": (("str", "str"), lambda values, text, cut: values.text(text.held.removesuffix(cut.held))),
    "substring": (("str", "num", "num"), _part),
    "to_number": (("null|bool|num|str",), _parsed),
    "product": (("arr|set",), _product),
    "rem": (("num", "num"), _remainder),
    "lower": (("str",), lambda values, text: values.text(text.held.lower())),
    "upper": (("str",), lambda values, text: values.text(text.held.upper())),
    "concat": (
        ("str", "arr|set"),
        lambda values, by, parts: (
            values.text(by.held.join(part.held for part in items_of(parts)))
            if all(part.kind == "str" for part in items_of(parts))
            else values.undef
        ),
    ),
    "count": (
        ("str|arr|obj|set",),
        lambda values, holder: values.number(len(holder.held if holder.kind == "str" else holder.entries)),
    ),
    "abs": (("num",), lambda values, number: values.number(abs(number.held))),
    "floor": (("num",), lambda values, number: values.number(number.held.__floor__())),
    "ceil": (("num",), lambda values, number: values.number(number.held.__ceil__())),
}
