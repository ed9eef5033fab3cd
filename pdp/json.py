"""One form for each JSON value: RFC 8785 bytes, and the digests made of them.

Both engines are handed these bytes, so that `25000.0` and `25000`, duplicate keys or lone surrogates cannot be read
differently by the one and the other.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from typing import Any, Final, NoReturn

import orjson
import rfc8785

MAX_NUMBER: Final = 2**53 - 1
"""Largest magnitude of a number: beyond it doubles are not exact and the engines disagree."""

MAX_DEPTH: Final = 32
"""Deepest nesting of objects and arrays in a request."""

MAX_BYTES: Final = 1024 * 1024
"""Largest request, in bytes of its canonical form."""

MAX_VALUES: Final = 50_000
"""Most values in what a model writes: each costs time before it is known which tool it is for."""

# orjson formats numbers and strings as RFC 8785 does, with three exceptions, and is fifty times faster than rfc8785:
# integral floats keep their ".0", numbers of the order of 1e-6 get an exponent, and keys are sorted by code point where
# the RFC sorts by UTF-16 code unit (these differ only beyond U+DFFF). tests/test_json.py compares the two.
_INTEGRAL_FLOAT = re.compile(rb"\.0(?:[,}\]]|$)")
# A text, which stays, or a number of orjson's that the RFC writes in another way.
_ODD_NUMBER = re.compile(rb'"(?:[^"\\]|\\.)*"|(-?)(\d+)\.0(?=[,}\]]|$)|(-?)(\d)(?:\.(\d+))?e-6(?=[,}\]]|$)', re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_BEYOND_SURROGATES = re.compile("[\ue000-\U0010ffff]")


def _read_only(*_: object, **__: object) -> NoReturn:
    raise TypeError("this is read-only: change a copy, and pass that on")


class FrozenObject(dict[str, Any]):
    """An object of JSON that nobody changes by mistake or on purpose, made by `frozen`.

    Equal to a plain one, and written as one; copies (`copy`, `deepcopy`, `pickle`) are plain.
    """

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _read_only

    def __reduce_ex__(self, _: object) -> tuple[type, tuple[Any]]:
        return dict, (dict(self),)


class FrozenList(list[Any]):
    """A list of JSON that nobody changes, as `FrozenObject`."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = extend = insert = _read_only
    remove = pop = clear = sort = reverse = _read_only

    def __reduce_ex__(self, _: object) -> tuple[type, tuple[Any]]:
        return list, (list(self),)


def frozen(value: Any) -> Any:
    """Return a value of JSON that is read-only through and through, in copies of its objects and lists."""
    # Every answer of an engine is frozen: the copy is made as a whole, and only what is nested is replaced.
    if type(value) is dict:
        members = FrozenObject(value)
        for name, item in value.items():
            if type(item) is dict or type(item) is list:
                dict.__setitem__(members, name, frozen(item))
        return members
    if type(value) is list:
        items = FrozenList(value)
        for index, item in enumerate(value):
            if type(item) is dict or type(item) is list:
                list.__setitem__(items, index, frozen(item))
        return items
    return value


def thawed(value: Any) -> Any:
    """Return a value of JSON with plain objects and lists of its own, frozen or not before."""
    if isinstance(value, dict):
        return {name: thawed(item) for name, item in value.items()}
    return [thawed(item) for item in value] if isinstance(value, list) else value


class JsonValueError(ValueError):
    """A value is not JSON as this system admits it. The message says what is wrong and where, as `a.b[2]`."""


def check_json(value: Any, at: str = "", depth: int = 0, most: int = sys.maxsize) -> None:
    """Check that `value` is made of finite, bounded, plain JSON.

    Args:
        value: what to check: None, bool, int, float, str, list, and dict with str keys, of exactly these types, or
            frozen ones.
        at: where the value stands, for messages.
        depth: how many containers are around it.
        most: how many values it may have, itself included.

    Raises:
        JsonValueError: another type, a number beyond 2^53-1 or not finite, a lone surrogate, too deep a nesting, too
            many values.
    """
    # Twice as fast as with the places, which are needed only when something is wrong.
    left = _plain(value, depth, most)
    if left == _NOT_PLAIN:
        _explain(value, at, depth)
    if left < 0:
        raise JsonValueError(f"{at or 'value'}: more than {most} values")


_NOT_PLAIN: Final = -sys.maxsize


def _plain(value: Any, depth: int, left: int) -> int:  # noqa: PLR0911 - types, in the order of their frequency
    """Return how many values are left of those that are admitted, below 0 without them all; or else `_NOT_PLAIN`."""
    kind = type(value)
    if kind is str:
        return left - 1 if value.isascii() or _encodes(value) else _NOT_PLAIN
    if kind is int or kind is float:
        return left - 1 if -MAX_NUMBER <= value <= MAX_NUMBER else _NOT_PLAIN
    if kind is dict or kind is FrozenObject:
        left = left - 1 if depth < MAX_DEPTH else _NOT_PLAIN
        for key, item in value.items():
            if type(key) is not str or not (key.isascii() or _encodes(key)):
                return _NOT_PLAIN
            # Most members are plain texts: for them another call is saved.
            left = left - 1 if type(item) is str and item.isascii() else _plain(item, depth + 1, left)
            if left < 0:
                return left
        return left
    if kind is list or kind is FrozenList:
        left = left - 1 if depth < MAX_DEPTH else _NOT_PLAIN
        for item in value:
            if left < 0:
                return left
            left = _plain(item, depth + 1, left)
        return left
    return left - 1 if value is None or kind is bool else _NOT_PLAIN


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _explain(value: Any, at: str, depth: int) -> None:
    kind = type(value)
    if kind is str:
        _check_text(value, at)
    elif kind is int or kind is float:
        _check_number(value, at)
    elif kind in (dict, list, FrozenObject, FrozenList):
        if depth >= MAX_DEPTH:
            raise JsonValueError(f"{at or 'value'}: nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, list):
            for index, item in enumerate(value):
                _explain(item, f"{at}[{index}]", depth + 1)
        else:
            for key, item in value.items():
                _check_key(key, at)
                _explain(item, f"{at}.{key}" if at else key, depth + 1)
    elif value is not None and kind is not bool:
        raise JsonValueError(f"{at or 'value'}: {kind.__name__} is not a type of JSON")


def _check_number(value: float, at: str) -> None:
    # Of an integer, which is finite whatever its size, this would be an overflow.
    if isinstance(value, float) and not math.isfinite(value):
        raise JsonValueError(f"{at or 'value'}: {value} is not a number of JSON")
    if not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise JsonValueError(f"{at or 'value'}: number beyond 2^53-1")


def _check_key(key: Any, at: str) -> None:
    if type(key) is not str:
        raise JsonValueError(f"{at or 'value'}: key {key!r:.40} is not a string")
    _check_text(key, at)


def _check_text(text: str, at: str) -> None:
    if not _encodes(text):
        raise JsonValueError(f"{at or 'value'}: lone surrogate in a string")


def parse_json(text: str | bytes, depth: int = 0, most: int = sys.maxsize) -> Any:
    """Parse JSON strictly: no duplicate keys, no NaN or Infinity, bounded as by `check_json`.

    Args:
        text: the JSON text; bytes are UTF-8.
        depth: how many containers the value will stand in.
        most: how many values it may have.

    Raises:
        JsonValueError: not JSON, or not JSON as this system admits it.
    """
    try:
        # Decoded here, since json would guess UTF-16 from the first bytes.
        text = text.decode() if isinstance(text, bytes) else text
        _check_separators(text, most)
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except JsonValueError:
        raise
    except RecursionError:
        raise JsonValueError(f"value: nested deeper than {MAX_DEPTH} levels") from None
    except UnicodeDecodeError:
        raise JsonValueError("value: not UTF-8 text") from None
    except ValueError as error:
        raise JsonValueError(f"value: not JSON: {error}" if text.strip() else "value: it is empty") from None
    check_json(value, depth=depth, most=most)
    return value


def _check_separators(text: str, most: int) -> None:
    """Refuse a text with too many values before they are made."""
    if _separators(text) > most and _separators(_STRING.sub("", text)) > most:
        raise JsonValueError(f"value: more than {most} values")


def _separators(text: str) -> int:
    return text.count(",") + text.count("[") + text.count("{")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise JsonValueError(f"value: key {key!r:.40} stands twice in one object")
            seen.add(key)
    return members


def has_unique_keys(text: bytes) -> bool:
    """Return whether no object of a JSON text has a key twice; the bounds of `check_json` do not matter here."""
    try:
        json.loads(text, object_pairs_hook=_unique)
    except (JsonValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> Any:
    raise JsonValueError(f"value: {name} is not a number of JSON")


def has_plain_form(value: Any) -> bool:
    """Return whether the text that orjson writes of a value, its keys sorted, is sure to be the RFC 8785 form."""
    try:
        return _is_canonical(orjson.dumps(value))
    except TypeError:
        return False


# A text such as "1.0," or "e-6" is not sure either: that costs time and changes nothing.
def _is_canonical(text: bytes) -> bool:
    # Nearly no text has ".0", and to look for that is faster than for the expression.
    if b"e-6" in text or (b".0" in text and _INTEGRAL_FLOAT.search(text)):
        return False
    return text.isascii() or not _BEYOND_SURROGATES.search(text.decode())


def canonical(value: Any) -> bytes:
    """Return the RFC 8785 form of a value that `check_json` accepts.

    Raises:
        JsonValueError: the value cannot be serialised.
    """
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        if _is_canonical(text):
            return text
        # rfc8785 takes microseconds for each value, and only the order of keys needs it.
        plain = text.isascii() or not _BEYOND_SURROGATES.search(text.decode())
        return _ODD_NUMBER.sub(_rewritten, text) if plain else rfc8785.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise JsonValueError(f"value: {error}") from error


def _rewritten(match: re.Match[bytes]) -> bytes:
    sign, integer, small_sign, first, others = match.groups()
    if integer is not None:
        return integer if integer == b"0" else sign + integer
    return match[0] if first is None else small_sign + b"0.00000" + first + (others or b"")


def digest(data: bytes) -> str:
    """Return `sha256:` and the hexadecimal SHA-256 of `data`."""
    return "sha256:" + hashlib.sha256(data).hexdigest()
