"""Strict JSON: one canonical form (RFC 8785) for each value, its digest, limits, and read-only copies.

Both policy engines get the canonical bytes, so they cannot differ about `25000.0`, duplicate keys or surrogates.
"""

import hashlib
import json
import math
import re
import sys
from collections.abc import Iterable
from typing import Any, Final, NoReturn, Self

import orjson

# The largest integer up to which a double represents every integer exactly. The engines disagree about larger numbers.
MAX_NUMBER: Final = 2**53 - 1
MAX_DEPTH: Final = 32  # The maximum number of nested objects and arrays in a request.
MAX_BYTES: Final = 1024 * 1024  # The maximum size of a request's canonical form in bytes.
# The maximum number of values in the arguments of a call. They are limited because they are read before the tool and
# its limits are known.
MAX_VALUES: Final = 30_000

# Processing this many characters of text takes as long as processing one more value.
_TEXT_OF_A_VALUE: Final = 64
_LONGEST_KEY: Final = 60

# orjson formats numbers and texts as RFC 8785 does, with three exceptions: integral floats keep their ".0", numbers
# around 1e-6 get an exponent, and keys are sorted by code point instead of UTF-16 code unit (these differ only beyond
# U+DFFF). tests/test_json.py compares the result with another implementation.
_INTEGRAL_FLOAT = re.compile(rb"\.0(?:[,}\]]|$)")
_SMALL_FLOAT = re.compile(rb"[0-9]e-6")
# Matches whole texts, which are not changed, and numbers that orjson writes differently from the RFC.
_ODD_NUMBER = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"|(-?)(\d+)\.0(?=[,}\]]|$)|(-?)(\d)(?:\.(\d+))?e-6(?=[,}\]]|$)', re.DOTALL
)
_BEYOND_SURROGATES = re.compile("[\ue000-\U0010ffff]")


def read_only(*_: object, **__: object) -> NoReturn:
    """Raise `TypeError`. Read-only types use this function in place of every method that changes a value."""
    raise TypeError("this value is read-only: change a copy of it")


class FrozenObject(dict[str, Any]):
    """A read-only JSON object, made by `frozen`.

    It compares and serialises like a plain dict. Copies (`copy`, `deepcopy`, `pickle`) are plain dicts.
    """

    __slots__ = ()

    def __new__(cls, *members: Any, **named: Any) -> Self:
        """Fill the object in `__new__`, because `__init__` could be called again to change it."""
        made = super().__new__(cls)
        dict.update(made, *members, **named)
        return made

    def __init__(self, *_: object, **__: object) -> None:
        """Do nothing, because `__new__` has already filled the object."""

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = read_only

    def __reduce_ex__(self, _: object) -> tuple[type, tuple[Any]]:
        return dict, (dict(self),)


class FrozenList(list[Any]):
    """A read-only JSON list, made by `frozen`; see `FrozenObject`."""

    __slots__ = ()

    def __new__(cls, items: Iterable[Any] = ()) -> Self:
        """Fill the list in `__new__`, because `__init__` could be called again to change it."""
        made = super().__new__(cls)
        list.extend(made, items)
        return made

    def __init__(self, _: object = ()) -> None:
        """Do nothing, because `__new__` has already filled the list."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = extend = insert = read_only
    remove = pop = clear = sort = reverse = read_only

    def __reduce_ex__(self, _: object) -> tuple[type, tuple[Any]]:
        return list, (list(self),)


_CONTAINERS: Final = frozenset((dict, list, FrozenObject, FrozenList))


def frozen(value: Any) -> Any:
    """Return a read-only copy of a JSON value, nested objects and lists included."""
    # Every answer of an engine is frozen, so this is fast code: it copies the container and then replaces the nested
    # ones.
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
    """Return a copy of a JSON value with plain dicts and lists."""
    if isinstance(value, dict):
        return {name: thawed(item) for name, item in value.items()}
    return [thawed(item) for item in value] if isinstance(value, list) else value


class JsonValueError(ValueError):
    """A value is not valid JSON, or exceeds a limit. The message has the path of the faulty part, such as `a.b[2]`."""


class JsonTooLargeError(JsonValueError):
    """A value has too many nested values or too much text. The check stopped there, so the rest is not checked."""


def check_json(value: Any, at: str = "", depth: int = 0, most: int = sys.maxsize, named: int = MAX_DEPTH) -> None:
    """Check that `value` is valid JSON within the limits, made of frozen types or the types of the module `json`.

    `at` is the path of `value` for messages, and `depth` the number of objects and lists around `value`. `most` limits
    the number of nested values, including `value`; with `most`, the text may have 1 MiB. A value that occurs twice
    counts twice. Messages may show the keys of the outer `named` levels; deeper keys are shown as `*`.

    Raises `JsonTooLargeError` for too many values or too much text, and `JsonValueError` for a value of another type, a
    number beyond 2^53-1 or not finite, a lone surrogate, or nesting that is too deep.
    """
    try:
        left = _values_left(value, depth, most + MAX_BYTES // _TEXT_OF_A_VALUE)
    except _JsonFaultError as fault:
        raise JsonValueError(f"{_place(at, fault.steps[::-1], named)}: {fault}") from None
    if left < 0:
        raise JsonTooLargeError(f"{at or 'value'}: more than {most} values, or more than {MAX_BYTES} bytes of text")


class _JsonFaultError(Exception):
    """A fault in a JSON value. `steps` are the keys and indexes on the path to the fault, the innermost first."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.steps: list[str | int] = []


def _values_left(value: Any, depth: int, left: int) -> int:  # noqa: C901, PLR0912 - types, in the order of their frequency
    """Check `value`, and return how many more values the limit allows. Stop as soon as this number is negative."""
    kind = type(value)
    if kind is str:
        left -= 1 + len(value) // _TEXT_OF_A_VALUE
        if left >= 0 and not value.isascii():
            _check_text(value)
        return left
    if kind is int or kind is float:
        if -MAX_NUMBER <= value <= MAX_NUMBER:
            return left - 1
        # `isfinite` raises OverflowError for an integer that is too large for a float, but an integer is always finite.
        finite = kind is int or math.isfinite(value)
        raise _JsonFaultError("number beyond 2^53-1" if finite else f"{value} is not a number of JSON")
    if value is None or kind is bool:
        return left - 1
    if kind not in _CONTAINERS:
        raise _JsonFaultError(f"{kind.__name__} is not a type of JSON")
    if depth >= MAX_DEPTH:
        raise _JsonFaultError(f"nested deeper than {MAX_DEPTH} levels")
    left -= 1
    item: Any = None
    if kind is list or kind is FrozenList:
        try:
            for item in value:
                left = _values_left(item, depth + 1, left)
                if left < 0:
                    break
        except _JsonFaultError as fault:
            fault.steps.append(next(at for at, member in enumerate(value) if member is item))
            raise
        return left
    for key, item in value.items():
        if type(key) is not str:
            raise _JsonFaultError("a key is not a string")
        if not key.isascii():
            _check_text(key)
        left -= len(key) // _TEXT_OF_A_VALUE
        # Most members are plain texts, so they are checked here without a further function call.
        if type(item) is str and item.isascii():
            left -= 1 + len(item) // _TEXT_OF_A_VALUE
        else:
            try:
                left = _values_left(item, depth + 1, left)
            except _JsonFaultError as fault:
                fault.steps.append(key)
                raise
        if left < 0:
            break
    return left


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _JsonFaultError("lone surrogate in a string") from None


def _place(at: str, steps: Iterable[str | int], named: int) -> str:
    for step in steps:
        if isinstance(step, int):
            at += f"[{step}]"
        else:
            name = step[:_LONGEST_KEY] if named > 0 else "*"
            at, named = f"{at}.{name}" if at else name, named - 1
    return at or "value"


def parse_json(text: str | bytes, depth: int = 0, most: int | None = None, named: int = MAX_DEPTH) -> Any:
    """Parse JSON within the limits of `check_json`. Duplicate keys, NaN, Infinity, and bytes not in UTF-8 are errors.

    Arguments and errors are those of `check_json`. But here, an empty object or list counts as two values, and `text`
    may have at most 1 MiB if `most` is given.
    """
    if most is not None:
        _check_size(text)
    value = _round_trip(text, depth, most, named) if isinstance(text, bytes) else None
    if value is not None:
        return value
    try:
        # The text is decoded here, because `json` would guess from the first bytes whether it is UTF-16.
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
        raise JsonValueError(f"value: not JSON: {error}" if text.strip() else "value: the text is empty") from None
    # Most values need no check of each member, because the text alone shows that no limit is exceeded.
    levels = text.count("{") + text.count("[")
    if levels > MAX_DEPTH - depth or not text.isascii() or _UNUSUAL.search(text):
        check_json(value, depth=depth, named=named)
    return value


def _check_size(text: str | bytes) -> None:
    size = len(text)
    # A text beyond the limit is rejected anyway, so it is not copied.
    if isinstance(text, str) and size <= MAX_BYTES and not text.isascii():
        size = len(text.encode(errors="surrogatepass"))
    if size > MAX_BYTES:
        raise JsonTooLargeError(f"value: it has {size} bytes, but at most {MAX_BYTES} are allowed")


def _round_trip(text: bytes, depth: int, most: int | None, named: int) -> Any:
    """Return a text's value if orjson serialises it to exactly this text; otherwise, or for too many values, None.

    Such a text has no duplicate keys, lone surrogates or integers out of range, so only the other limits are checked.
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
    """Raise `JsonTooLargeError` for a text with too many values, before the text is parsed."""
    if _separators(text) <= most:
        return
    # Separators within quotes are part of a text. Each value has at most two texts, its key and itself, so more than
    # four quotes per allowed value exceed the limit.
    parts = text.replace("\\\\", "").replace('\\"', "").split('"', 4 * most + 1)
    if len(parts) > 4 * most + 1 or _separators("".join(parts[::2])) > most:
        raise JsonTooLargeError(f"value: more than {most} values")


def _separators(text: str) -> int:
    return text.count(",") + text.count("[") + text.count("{")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    # The message does not contain the key, because the key may be sensitive.
    if len(members) < len(pairs):
        raise JsonValueError("value: duplicate key in an object")
    return members


_STRICT: Final = json.JSONDecoder(object_pairs_hook=_unique)
# The text may contain an escaped lone surrogate, or numbers that are out of range. A wrong match only costs time.
_UNUSUAL: Final = re.compile(r"\\u|[0-9](?:[eE]|[0-9]{15})|NaN|Infinity")
# orjson writes a large float in one of these forms, or with ".0" at its end. A hexadecimal digest does not match.
# The letter comes first, because a search for a letter is fast.
_LARGE_FLOAT: Final = re.compile(rb"e(?<=[0-9]e)\+?[0-9]+(?:[,\]}]|\Z)")


def has_unique_keys(text: bytes) -> bool:
    """Return whether the keys in each object of a JSON text are unique. Nothing else is checked."""
    try:
        json.loads(text, object_pairs_hook=_unique)
    except (JsonValueError, RecursionError):
        return False
    return True


def _is_plain(text: bytes) -> bool:
    # A string such as "1.0," also matches the regular expressions, which costs time but changes nothing. The bytes ".0"
    # and "e-6" are searched first, because that is faster than a regular expression and they are rare.
    if (b"e-6" in text and _SMALL_FLOAT.search(text)) or (b".0" in text and _INTEGRAL_FLOAT.search(text)):
        return False
    return text.isascii() or not _BEYOND_SURROGATES.search(text.decode())


def canonical(value: Any) -> bytes:
    """Return the RFC 8785 bytes of a value that passed `check_json`. Raises `JsonValueError` for any other value."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        if _is_plain(text):
            return text
        # All numbers are rewritten by one regular expression, because a model may write thirty thousand of them.
        return _ODD_NUMBER.sub(_rewritten, text if text.isascii() else orjson.dumps(_sorted(value)))
    except (TypeError, ValueError, RecursionError) as error:
        raise JsonValueError(f"value: {error}") from error


def _sorted(value: Any) -> Any:
    """Return the value with the keys of its objects sorted by UTF-16 code unit."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value, key=lambda key: key.encode("utf-16-be"))}
    return [_sorted(item) for item in value] if isinstance(value, list | tuple) else value


def _rewritten(match: re.Match[bytes]) -> bytes:
    sign, integer, small_sign, first, others = match.groups()
    if integer is not None:
        return integer if integer == b"0" else sign + integer
    return match[0] if first is None else small_sign + b"0.00000" + first + (others or b"")


def pointer(key: str) -> str:
    """Return the JSON Pointer (RFC 6901) of the member `key` of an object."""
    return f"/{key.replace('~', '~0').replace('/', '~1')}"


def pointer_steps(text: str) -> tuple[str, ...]:
    """Return the keys in a JSON Pointer, unescaped. The empty pointer, which means the whole document, has no keys."""
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:])


def digest(data: bytes) -> str:
    """Return `sha256:` and the hexadecimal SHA-256 of `data`."""
    return "sha256:" + hashlib.sha256(data).hexdigest()
