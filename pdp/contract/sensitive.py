"""Hides the values of sensitive arguments in rejections, failures, log lines and events."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import islice
from traceback import format_tb
from typing import Any, Final
from urllib.parse import quote, quote_plus

from pdp.json import canonical

MASK: Final = "***"  # The text that replaces a sensitive value.

_SHORTEST: Final = 3
_SHORTEST_LINE: Final = 4
# A truncated message may contain a part of a sensitive value, so parts of this length and more are masked too.
SHORTEST_PART: Final = 8
# The maximum number of bytes of sensitive values that are searched for, because searching for more takes too long. Each
# line of text in a value counts as 40 bytes more.
_MOST: Final = 32_000
_BYTES_PER_LINE: Final = 40
_USER_INFO: Final = re.compile(r"(?<=://)[^\s/?#\"'<>]*(?=@)")


def masked(arguments: Mapping[str, Any], sensitive: Collection[str]) -> dict[str, Any]:
    """Return the arguments with `***` in place of each sensitive value."""
    return {name: MASK if name in sensitive else value for name, value in arguments.items()}


def without_arguments(text: str, arguments: Mapping[str, Any], known: Collection[str]) -> str:
    """Return a text with the arguments' keys and values hidden, except those in `known`, such as the schema's names."""
    leaves = (leaf for leaf in _leaves(arguments) if leaf not in known)
    return Mask(("",), {"": list(islice(leaves, _MOST // _BYTES_PER_LINE + 1))}).text(text)


def place_of(error: BaseException) -> str:
    """Return an error's type and traceback for a log, without its message, which may quote any value."""
    return f"{type(error).__name__}\n{''.join(format_tb(error.__traceback__))}"


class Mask:
    """Hides sensitive values, whether plain or escaped as in Python, JSON or URLs, and the user and password of URLs.

    `names` are the sensitive arguments. All keys and values in them are hidden, also single lines of at least four
    characters and fragments of eight characters. Values under three characters are shown, because they occur
    everywhere. If the values exceed 32,000 bytes, counting 40 extra bytes per line, the whole text is hidden.
    """

    def __init__(self, names: Collection[str], *arguments: Mapping[str, Any]) -> None:
        texts: set[str] = set()
        left = _MOST
        for leaf in _leaves([call.get(name) for call in arguments for name in names]):
            value = str(leaf)
            left -= len(value.encode(errors="replace")) + _BYTES_PER_LINE * len(value.splitlines())
            if left < 0:
                break
            texts |= {text for text in _spellings(leaf) if len(text) >= _SHORTEST}
        self._hides_all = left < 0
        self._texts = sorted(texts, key=len, reverse=True)

    def text(self, text: str) -> str:
        """Return a text with its sensitive parts hidden."""
        if self._hides_all:
            return MASK
        for sensitive in self._texts:
            text = text.replace(sensitive, MASK)
        return _USER_INFO.sub(MASK, self._without_parts(text))

    def _without_parts(self, text: str) -> str:
        shown, end = "", 0
        for at, part in enumerate(_parts(text)):
            if part in self._parts:
                # Parts that touch or overlap are replaced by a single mask.
                shown += "" if 0 < at <= end else f"{text[end:at]}{MASK}"
                end = at + SHORTEST_PART
        return shown + text[end:]

    @cached_property
    def _parts(self) -> frozenset[str]:
        return frozenset(part for sensitive in self._texts for part in _parts(sensitive))

    def value(self, value: Any) -> Any:
        """Return a JSON value with its sensitive parts hidden, including keys."""
        if isinstance(value, dict):
            return {self._leaf(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return self._leaf(value)

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        return MASK if isinstance(value, int | float) and str(value) in self._texts else value


def _parts(text: str) -> Iterator[str]:
    return (text[at : at + SHORTEST_PART] for at in range(len(text) - SHORTEST_PART + 1))


def _leaves(value: Any) -> Iterator[str | float]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    # None, true and false reveal nothing and occur in every text, so they are not masked.
    elif value is not None and not isinstance(value, bool):
        yield value


def _spellings(value: str | float) -> set[str]:
    if not isinstance(value, str):
        return {str(value), canonical(value).decode()}
    lines = {line for line in map(str.strip, value.splitlines()) if len(line) >= _SHORTEST_LINE}
    spellings = {value, *lines}
    for text in (value, *lines):
        spellings |= {repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
        spellings |= {
            quote(text, errors="replace"),
            quote(text, "", errors="replace"),
            quote_plus(text, errors="replace"),
        }
    return spellings
