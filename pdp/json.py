"""One form for each JSON value: RFC 8785 bytes, and the digests made of them.

Both engines are handed these bytes, so that `25000.0` and `25000`, duplicate keys or lone surrogates cannot be read
differently by the one and the other.
"""

import hashlib
import json
import math
import re
import sys
from collections.abc import Iterable
from typing import Any, Final, NoReturn, Self

import orjson

MAX_NUMBER: Final = 2**53 - 1  # beyond it doubles are not exact, and the engines disagree
MAX_DEPTH: Final = 32  # of objects and arrays in a request
MAX_BYTES: Final = 1024 * 1024  # of a request, in its canonical form
MAX_VALUES: Final = 30_000  # in what a model writes: each costs time before it is known which tool it is for

# So many characters of text cost as much as another value.
_TEXT_OF_A_VALUE: Final = 64
_LONGEST_KEY: Final = 60

# orjson formats numbers and texts as RFC 8785 does, with three exceptions: integral floats keep their ".0", numbers of
# the order of 1e-6 get an exponent, and keys are sorted by code point where the RFC sorts by UTF-16 code unit (these
# differ only beyond U+DFFF). tests/test_json.py compares it with another implementation.
_INTEGRAL_FLOAT = re.compile(rb"\.0(?:[,}\]]|$)")
_SMALL_FLOAT = re.compile(rb"[0-9]e-6")
# A text, which stays, or a number of orjson's that the RFC writes in another way.
_ODD_NUMBER = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"|(-?)(\d+)\.0(?=[,}\]]|$)|(-?)(\d)(?:\.(\d+))?e-6(?=[,}\]]|$)', re.DOTALL
)
_BEYOND_SURROGATES = re.compile("[\ue000-\U0010ffff]")


def read_only(*_: object, **__: object) -> NoReturn:
    """Refuse to change a value; stands in the place of the methods that would."""
    raise TypeError("this is read-only: change a copy, and pass that on")


class FrozenObject(dict[str, Any]):
    """An object of JSON that none of its methods changes, made by `frozen`.

    Equal to a plain one, and written as one; copies (`copy`, `deepcopy`, `pickle`) are plain.
    """

    __slots__ = ()

    def __new__(cls, *members: Any, **named: Any) -> Self:
        """Fill the object here, since whoever holds it can call its `__init__` once more."""
        made = super().__new__(cls)
        dict.update(made, *members, **named)
        return made

    def __init__(self, *_: object, **__: object) -> None:
        """Leave the object as `__new__` has made it."""

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = read_only

    def __reduce_ex__(self, _: object) -> tuple[type, tuple[Any]]:
        return dict, (dict(self),)


class FrozenList(list[Any]):
    """A list of JSON that none of its methods changes, as `FrozenObject`."""

    __slots__ = ()

    def __new__(cls, items: Iterable[Any] = ()) -> Self:
        """Fill the list here, as above."""
        made = super().__new__(cls)
        list.extend(made, items)
        return made

    def __init__(self, _: object = ()) -> None:
        """Leave the list as `__new__` has made it."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = extend = insert = read_only
    remove = pop = clear = sort = reverse = read_only

    def __reduce_ex__(self, _: object) -> tuple[type, tuple[Any]]:
        return list, (list(self),)


_CONTAINERS: Final = frozenset((dict, list, FrozenObject, FrozenList))


def frozen(value: Any) -> Any:
    """Return a value of JSON that is read-only through and through, in copies of its objects and lists."""
    # Every answer of an engine is frozen: the copy is made as a whole, and only what is nested is replaced.
    if type(value) is dict:
        members = dict.__new__(FrozenObject)
        dict.update(members, value)
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


class JsonTooLargeError(JsonValueError):
    """A value has more parts or text than is admitted; whether it is JSON was not looked at to the end."""


def check_json(value: Any, at: str = "", depth: int = 0, most: int = sys.maxsize, named: int = MAX_DEPTH) -> None:
    """Check that `value` is finite, bounded JSON of exactly the plain types of `json`, or frozen ones.

    It stands `at` a place, for messages, in `depth` containers. With `most`, it has at most so many values, itself
    included, and 1 MiB of text; what is shared counts wherever it stands. Messages name at most `named` levels of keys,
    the deeper ones being `*`.

    Raises:
        JsonTooLargeError: too many values, or too much text.
        JsonValueError: another type, a number beyond 2^53-1 or not finite, a lone surrogate, too deep a nesting.
    """
    try:
        left = _left(value, depth, most + MAX_BYTES // _TEXT_OF_A_VALUE)
    except _Fault as fault:
        raise JsonValueError(f"{_place(at, fault.steps[::-1], named)}: {fault}") from None
    if left < 0:
        raise JsonTooLargeError(f"{at or 'value'}: more than {most} values, or more than {MAX_BYTES} bytes of text")


class _Fault(Exception):  # noqa: N818 - no error yet: its place is not known
    """What is wrong with a value; `steps` lead to it, the last one first."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.steps: list[str | int] = []


def _left(value: Any, depth: int, left: int) -> int:  # noqa: C901, PLR0912 - types, in the order of their frequency
    """Return how many values are left of those that are admitted; below 0 there are too many, and not all were seen."""
    kind = type(value)
    if kind is str:
        left -= 1 + len(value) // _TEXT_OF_A_VALUE
        if left >= 0 and not value.isascii():
            _check_text(value)
        return left
    if kind is int or kind is float:
        if -MAX_NUMBER <= value <= MAX_NUMBER:
            return left - 1
        # Of an integer, which is finite whatever its size, `isfinite` would be an overflow.
        finite = kind is int or math.isfinite(value)
        raise _Fault("number beyond 2^53-1" if finite else f"{value} is not a number of JSON")
    if value is None or kind is bool:
        return left - 1
    if kind not in _CONTAINERS:
        raise _Fault(f"{kind.__name__} is not a type of JSON")
    if depth >= MAX_DEPTH:
        raise _Fault(f"nested deeper than {MAX_DEPTH} levels")
    left -= 1
    item: Any = None
    if kind is list or kind is FrozenList:
        try:
            for item in value:
                left = _left(item, depth + 1, left)
                if left < 0:
                    break
        except _Fault as fault:
            fault.steps.append(next(at for at, one in enumerate(value) if one is item))
            raise
        return left
    for key, item in value.items():
        if type(key) is not str:
            raise _Fault("a key is not a string")
        if not key.isascii():
            _check_text(key)
        left -= len(key) // _TEXT_OF_A_VALUE
        # Most members are plain texts: for them another call is saved.
        if type(item) is str and item.isascii():
            left -= 1 + len(item) // _TEXT_OF_A_VALUE
        else:
            try:
                left = _left(item, depth + 1, left)
            except _Fault as fault:
                fault.steps.append(key)
                raise
        if left < 0:
            break
    return left


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _Fault("lone surrogate in a string") from None


def _place(at: str, steps: Iterable[str | int], named: int) -> str:
    for step in steps:
        if isinstance(step, int):
            at += f"[{step}]"
        else:
            name = step[:_LONGEST_KEY] if named > 0 else "*"
            at, named = f"{at}.{name}" if at else name, named - 1
    return at or "value"


def parse_json(text: str | bytes, depth: int = 0, most: int | None = None, named: int = MAX_DEPTH) -> Any:
    """Parse JSON strictly: no duplicate keys, no NaN or Infinity, bounded as by `check_json`; bytes are UTF-8.

    `depth`, `most` and `named` are as there, but that an empty object or list counts as two values. JsonValueError:
    not JSON, or not JSON as this system admits it.
    """
    if most is not None:
        _check_size(text)
    value = _round_trip(text, depth, most, named) if isinstance(text, bytes) else None
    if value is not None:
        return value
    try:
        # Decoded here, since json would guess UTF-16 from the first bytes.
        text = text.decode() if isinstance(text, bytes) else text
        if most is not None:
            _check_separators(text, most)
        value = _STRICT.decode(text)
    except JsonValueError:
        raise
    except RecursionError:
        raise JsonValueError(f"value: nested deeper than {MAX_DEPTH} levels") from None
    except UnicodeDecodeError:
        raise JsonValueError("value: not UTF-8 text") from None
    except ValueError as error:
        raise JsonValueError(f"value: not JSON: {error}" if text.strip() else "value: it is empty") from None
    # Of most texts it shows without a walk through the value that nothing in them is out of bounds.
    levels = text.count("{") + text.count("[")
    if levels > MAX_DEPTH - depth or not text.isascii() or _UNUSUAL.search(text):
        check_json(value, depth=depth, named=named)
    return value


def _check_size(text: str | bytes) -> None:
    size = len(text)
    if isinstance(text, str) and size <= MAX_BYTES and not text.isascii():  # a longer one need not be copied
        size = len(text.encode(errors="surrogatepass"))
    if size > MAX_BYTES:
        raise JsonTooLargeError(f"value: it has {size} bytes, at most {MAX_BYTES} are admitted")


def _round_trip(text: bytes, depth: int, most: int | None, named: int) -> Any:
    """Return the value of a text that is to the byte what orjson writes of it; None where that is not known.

    Such a text has no key twice, no lone surrogate and no integer out of bounds; all else is checked.
    """
    levels = text.count(b"{") + text.count(b"[")
    if most is not None and levels + text.count(b",") > most:
        return None
    try:
        value = orjson.loads(text)
        if orjson.dumps(value, option=orjson.OPT_STRICT_INTEGER) != text:
            return None
    except (TypeError, ValueError):
        return None
    is_deep = levels > MAX_DEPTH - depth and _is_deeper(value, MAX_DEPTH - depth)
    if is_deep or _LARGE_FLOAT.search(text) or _INTEGRAL_FLOAT.search(text):
        check_json(value, depth=depth, named=named)
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    level = [value] if type(value) is dict or type(value) is list else []
    for _ in range(levels):
        items = (item for each in level for item in (each.values() if type(each) is dict else each))
        level = [item for item in items if type(item) is dict or type(item) is list]
    return bool(level)


def _check_separators(text: str, most: int) -> None:
    """Refuse a text with too many values before they are made."""
    if _separators(text) <= most:
        return
    # What stands between quotes is text. So many values have two texts each at most, and four quotes.
    parts = text.replace("\\\\", "").replace('\\"', "").split('"', 4 * most + 1)
    if len(parts) > 4 * most + 1 or _separators("".join(parts[::2])) > most:
        raise JsonTooLargeError(f"value: more than {most} values")


def _separators(text: str) -> int:
    return text.count(",") + text.count("[") + text.count("{")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    # Not which: nobody knows yet whether it is sensitive.
    if len(members) < len(pairs):
        raise JsonValueError("value: a key stands twice in one object")
    return members


_STRICT: Final = json.JSONDecoder(object_pairs_hook=_unique)
# A lone surrogate may be written as an escape; numbers may be out of bounds. Texts that only look so cost time.
_UNUSUAL: Final = re.compile(r"\\u|[0-9](?:[eE]|[0-9]{15})|NaN|Infinity")
# orjson writes a float out of bounds like this, or with ".0" at its end. A digest in hexadecimal does not match.
_LARGE_FLOAT: Final = re.compile(rb"[0-9]e\+?[0-9]+(?:[,\]}]|\Z)")


def has_unique_keys(text: bytes) -> bool:
    """Return whether no object of a JSON text has a key twice; the bounds of `check_json` do not matter here."""
    try:
        json.loads(text, object_pairs_hook=_unique)
    except (JsonValueError, RecursionError):
        return False
    return True


def _is_plain(text: bytes) -> bool:
    # A text such as "1.0," or "1e-6" counts as a number as well: that costs time and changes nothing. Few texts have
    # ".0" or "e-6", and to look for these is faster than for the expressions.
    if (b"e-6" in text and _SMALL_FLOAT.search(text)) or (b".0" in text and _INTEGRAL_FLOAT.search(text)):
        return False
    return text.isascii() or not _BEYOND_SURROGATES.search(text.decode())


def canonical(value: Any) -> bytes:
    """Return the RFC 8785 form of a value that `check_json` accepts; JsonValueError where it cannot be serialised."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        if _is_plain(text):
            return text
        # By an expression, since a model may write thirty thousand such numbers.
        return _ODD_NUMBER.sub(_rewritten, text if text.isascii() else orjson.dumps(_sorted(value)))
    except (TypeError, ValueError, RecursionError) as error:
        raise JsonValueError(f"value: {error}") from error


def _sorted(value: Any) -> Any:
    """Return a value with the keys of its objects sorted by UTF-16 code unit."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value, key=lambda key: key.encode("utf-16-be"))}
    return [_sorted(item) for item in value] if isinstance(value, list | tuple) else value


def _rewritten(match: re.Match[bytes]) -> bytes:
    sign, integer, small_sign, first, others = match.groups()
    if integer is not None:
        return integer if integer == b"0" else sign + integer
    return match[0] if first is None else small_sign + b"0.00000" + first + (others or b"")


def pointer(key: str) -> str:
    """Return the JSON Pointer (RFC 6901) of a member."""
    return f"/{key.replace('~', '~0').replace('/', '~1')}"


def pointer_steps(text: str) -> tuple[str, ...]:
    """Return the steps of a JSON Pointer; none for the empty one, which is the whole."""
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:])


def digest(data: bytes) -> str:
    """Return `sha256:` and the hexadecimal SHA-256 of `data`."""
    return "sha256:" + hashlib.sha256(data).hexdigest()
