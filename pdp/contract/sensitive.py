"""Values of sensitive arguments, hidden in whatever is read by others: rejections, failures, log lines, events."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import islice
from traceback import format_tb
from typing import Any, Final
from urllib.parse import quote, quote_plus

from pdp.json import canonical

MASK: Final = "***"  # what stands for the value of a sensitive argument

_SHORTEST: Final = 3
_SHORTEST_LINE: Final = 4
SHORTEST_PART: Final = 8  # a message that was cut quotes a part of a value: of so many characters it is hidden as well
# Bytes of sensitive values, forty for each line beside its own: searching a text for more of them takes too long.
_MOST: Final = 32_000
_OF_A_LINE: Final = 40
_USER_INFO: Final = re.compile(r"(?<=://)[^\s/?#\"'<>]*(?=@)")


def masked(arguments: Mapping[str, Any], sensitive: Collection[str]) -> dict[str, Any]:
    """Return the arguments with `***` for the value of each sensitive one."""
    return {name: MASK if name in sensitive else value for name, value in arguments.items()}


def without_arguments(text: str, arguments: Mapping[str, Any], known: Collection[str]) -> str:
    """Return a text with all keys and values of the arguments hidden but those in `known`, such as a schema's names."""
    leaves = (leaf for leaf in _leaves(arguments) if leaf not in known)
    return Mask(("",), {"": list(islice(leaves, _MOST // _OF_A_LINE + 1))}).text(text)


def place_of(error: BaseException) -> str:
    """Return the type of an error and where it was raised, for a log; not its text, which may quote anything."""
    return f"{type(error).__name__}\n{''.join(format_tb(error.__traceback__))}"


class Mask:
    """Hides the values of sensitive arguments, as text, in Python, in JSON or in a URL, and user and password in a URL.

    A message may quote one line of a value alone: lines of four characters or more are hidden as the value is, and any
    part of eight. Values of fewer than three characters stay: they stand everywhere, and say nothing. Where the values
    have more than 32,000 bytes, each line counting as forty more, every text is hidden whole. `names` are of sensitive
    arguments; what is nested in their values counts as well, key and value.
    """

    def __init__(self, names: Collection[str], *arguments: Mapping[str, Any]) -> None:
        texts: set[str] = set()
        left = _MOST
        for leaf in _leaves([call.get(name) for call in arguments for name in names]):
            value = str(leaf)
            left -= len(value.encode(errors="replace")) + _OF_A_LINE * len(value.splitlines())
            if left < 0:
                break
            texts |= {text for text in _spellings(leaf) if len(text) >= _SHORTEST}
        self._hides_all = left < 0
        self._texts = sorted(texts, key=len, reverse=True)

    def text(self, text: str) -> str:
        """Return a text with what is sensitive in it hidden."""
        if self._hides_all:
            return MASK
        for sensitive in self._texts:
            text = text.replace(sensitive, MASK)
        return _USER_INFO.sub(MASK, self._without_parts(text))

    def _without_parts(self, text: str) -> str:
        shown, end = "", 0
        for at, part in enumerate(_parts(text)):
            if part in self._parts:
                # Parts that overlap, or follow each other, are one.
                shown += "" if 0 < at <= end else f"{text[end:at]}{MASK}"
                end = at + SHORTEST_PART
        return shown + text[end:]

    @cached_property
    def _parts(self) -> frozenset[str]:
        return frozenset(part for sensitive in self._texts for part in _parts(sensitive))

    def value(self, value: Any) -> Any:
        """Return JSON with what is sensitive in it hidden, keys included."""
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
    # None, true and false are no secrets, and every text has them.
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
