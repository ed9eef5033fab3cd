"""Sensitive arguments kept out of what is shown: by their names, and wherever else their values stand."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

MASK: Final = "***"
"""What stands for a sensitive value."""

_SHORTEST: Final = 3


def masked(arguments: Mapping[str, Any], sensitive: Collection[str]) -> dict[str, Any]:
    """Return the arguments with `***` for the value of each sensitive one."""
    return {name: MASK if name in sensitive else value for name, value in arguments.items()}


class Mask:
    """Hides the values of sensitive arguments.

    A value is hidden under its argument's name, and as a whole or as a part of a text wherever it stands, as text, in
    Python or in JSON: mappings copy arguments into resource and context, and messages quote them. Values of fewer than
    three letters are hidden by name alone: they stand everywhere, and say nothing.

    Args:
        names: the arguments that the manifest's entry calls `sensitive`.
        arguments: of the call.
    """

    def __init__(self, names: Iterable[str], arguments: Mapping[str, Any]) -> None:
        self._names = frozenset(names)
        texts: set[str] = set()
        numbers: set[str] = set()
        for leaf in _leaves([arguments[name] for name in self._names & arguments.keys()]):
            if isinstance(leaf, str):
                texts |= {leaf, repr(leaf)[1:-1], json.dumps(leaf)[1:-1], json.dumps(leaf, ensure_ascii=False)[1:-1]}
            else:
                numbers |= {_text(leaf), str(leaf), f"{leaf:,}"}
        self._texts = _longest_first(texts)
        self._numbers = frozenset(_longest_first(numbers))
        self._within = re.compile("|".join(map(_bounded, _longest_first(numbers)))) if self._numbers else None

    def value(self, value: Any) -> Any:
        """Return JSON with what is sensitive in it hidden."""
        if isinstance(value, dict):
            return {self.text(key): MASK if key in self._names else self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if isinstance(value, str):
            return self.text(value)
        return MASK if isinstance(value, int | float) and _text(value) in self._numbers else value

    def text(self, text: str) -> str:
        """Return a text with what is sensitive in it hidden."""
        for sensitive in self._texts:
            text = text.replace(sensitive, MASK)
        return self._within.sub(MASK, text) if self._within else text


def _leaves(value: Any) -> Iterator[str | float]:
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif value is not None and not isinstance(value, bool):
        yield value


def _longest_first(texts: Iterable[str]) -> list[str]:
    return sorted((text for text in texts if len(text) >= _SHORTEST), key=len, reverse=True)


def _text(value: float) -> str:
    # 47500.0 is the number 47500.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _bounded(number: str) -> str:
    # 4750 is no part of 47500.
    return rf"(?<![\d.,]){re.escape(number)}(?!\d)" if number[0].isdigit() else re.escape(number)
