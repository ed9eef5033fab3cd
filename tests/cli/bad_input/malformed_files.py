"""Generators of faulty input files. A generator adds one or two faults to the text or the value of a good file."""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any, Final

import yaml

Choose = Callable[[int], int]
"""Returns a number below its argument. Hypothesis draws the number in tests; other callers use a random generator."""

_INSERTED: Final = (
    b"<<<<<<< HEAD\n", b"\n=======\n", b">>>>>>> other\n", b"\xef\xbb\xbf", b"\t", b"\r\n", b"\r", b"\0", b"\xff\xfe",
    b"{", b"[", b"(", b"}", b"]", b'"', b"'", b"`", b"#", b": ", b"- ", b"|", b"&a ", b"*a ",
    b"!!python/object:os ", b"%",
    b"---\n", b"\x1b[2J", b"\xed\xa0\x80", "\u2028".encode(), "\u202e".encode(), b"\\ud800", b"NaN",
    b"1e999", b"9" * 400, b"\\",
)  # fmt: skip
_PUT: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1.5, 2**53, 10**30, -(10**400), float("nan"), float("inf"), "", " ", "x", "\ud800", "\0",
    "a\nb", "\x1b[2J", "\u202e", "<x>", "[key]", "[red]", "{}", "%s", "../..", "/", "/dev/null", ".", "a" * 70_000,
    [], [None], [[]], [1, 1], {}, {"": None}, {"x": {}}, {"\ud800": 1}, {"a\n": 1}, {"<x>": 1},
    {"$ref": "#"}, "2026-02-30T00:00:00Z", "${", "1h",
)  # fmt: skip
_DEPTHS: Final = (30, 63, 150)


def broken_text(text: bytes, choose: Choose) -> bytes:  # noqa: PLR0911 - one return for each kind of fault
    """Return a text with one fault: some characters are removed, inserted or doubled, or one bit is flipped."""
    at, end = sorted((choose(len(text) + 1), choose(len(text) + 1)))
    lines = text.splitlines(keepends=True)
    match choose(8):
        case 0:
            return text[:at]
        case 1:
            return text[:at] + text[end:]
        case 2:
            return text[:at] + bytes([text[at] ^ 1 << choose(8)]) + text[at + 1 :] if at < len(text) else b""
        case 3 if lines:
            line = choose(len(lines))
            return b"".join([*lines[: line + 1], *lines[line:]])
        case 4 if lines:
            line = choose(len(lines))
            return b"".join([*lines[:line], _INSERTED[choose(len(_INSERTED))], *lines[line:]])
        case 5:
            return text.replace(b"\n", b"\r\n") if choose(2) else _INSERTED[choose(len(_INSERTED))] + text
        case _:
            return text[:at] + _INSERTED[choose(len(_INSERTED))] + text[at:]


def broken_value(value: Any, choose: Choose) -> Any:
    """Return a JSON value with one fault: a nested value is removed, doubled, renamed, retyped, nested or swapped."""
    value = deepcopy(value)
    places = _places(value)
    if not places:
        return _PUT[choose(len(_PUT))]
    holder, key = places[choose(len(places))]
    match choose(8):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.insert(key, deepcopy(holder[key]))
        case 1 | 2 if isinstance(holder, dict):
            renamed = _renamed(str(key), choose)
            pairs = [(renamed if name == key else name, member) for name, member in holder.items()]
            holder.clear()
            holder.update(pairs)
        case 3:
            other, at = places[choose(len(places))]
            holder[key], other[at] = deepcopy(other[at]), deepcopy(holder[key])
        case 4:
            holder[key] = [holder[key]] if choose(2) else {"x": holder[key]}
        case 5:
            for _ in range(_DEPTHS[choose(len(_DEPTHS))]):
                holder[key] = [holder[key]]
        case 6 if isinstance(holder[key], str):
            holder[key] = _renamed(holder[key], choose)
        case _:
            holder[key] = _PUT[choose(len(_PUT))]
    return value


def broken_lines(text: bytes, choose: Choose) -> bytes:
    """Return a JSON Lines file in which one line is faulty."""
    lines = text.splitlines(keepends=True)
    at = choose(len(lines))
    if choose(3) == 0:
        return broken_text(text, choose)
    lines[at] = json_text(broken_value(json.loads(lines[at]), choose)) + b"\n"
    return b"".join(lines)


def broken_document(text: bytes, choose: Choose) -> bytes:
    """Return a faulty YAML or JSON document. A JSON document stays in JSON syntax and is not converted to YAML."""
    if choose(3) == 0:
        return broken_text(text, choose)
    value = yaml.safe_load(text)
    for _ in range(1 + choose(2)):
        value = broken_value(value, choose)
    if text.startswith(b"{") or choose(4) == 0:
        return json_text(value)
    try:
        # A round trip through JSON copies shared values. Otherwise PyYAML would write anchors, which people rarely
        # write.
        return yaml.dump(json.loads(json_text(value)), allow_unicode=True, sort_keys=False).encode(
            "utf-8", "surrogatepass"
        )
    except (RecursionError, ValueError):
        return json_text(value)


def json_text(value: Any) -> bytes:
    """Return JSON text, even for values that are nested too deeply for the `json` module."""
    opened = 0
    try:
        return json.dumps(value).encode()
    except (RecursionError, ValueError):
        while isinstance(value, list) and value:
            value, opened = value[0], opened + 1
        return b"[" * (opened or 5000) + b"]" * (opened or 5000)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Yield every nested value as a pair of its container and its key or index."""
    places: list[tuple[Any, Any]] = []
    waiting = [value]
    for holder in waiting:
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in keys:
            places.append((holder, key))
            waiting.append(holder[key])
    return places


def _renamed(name: str, choose: Choose) -> str:
    at = choose(len(name) + 1)
    letter = "xé_ .\x1b\n\ud800"[choose(8)]
    match choose(4):
        case 0:
            return name[:at] + name[at + 1 :]
        case 1:
            return name[:at] + letter + name[at + 1 :]
        case 2:
            return name.swapcase()
        case _:
            return name[:at] + letter + name[at:]
