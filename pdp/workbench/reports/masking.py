"""Sensitive arguments kept out of what is shown: by their names, and wherever else their values stand."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MASK: Final = "***"
"""What stands for a sensitive value."""

_SHORTEST: Final = 3


class Mask:
    """Hides the values of sensitive arguments.

    A value is hidden under its argument's name, and as a whole or as a part of a text wherever it stands: mappings copy
    arguments into resource and context, and messages quote them. Values of fewer than three letters are hidden by name
    alone: they stand everywhere, and tell nothing.

    Args:
        names: the arguments that the manifest's entry calls `sensitive`.
        arguments: of the call.
    """

    def __init__(self, names: Iterable[str], arguments: Mapping[str, Any]) -> None:
        self._names = frozenset(names)
        leaves = {leaf for name in self._names if name in arguments for leaf in _leaves(arguments[name])}
        texts = sorted((text for text in leaves if len(text) >= _SHORTEST), key=len, reverse=True)
        self._values = frozenset(texts)
        self._within = re.compile("|".join(map(_bounded, texts))) if texts else None

    def value(self, value: Any) -> Any:
        """Return JSON with what is sensitive in it hidden."""
        if isinstance(value, dict):
            # How reasons of limits name an argument and its value.
            if isinstance(value.get("argument"), str) and value["argument"] in self._names and "value" in value:
                value = {**value, "value": MASK}
            return {self.text(key): MASK if key in self._names else self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if isinstance(value, str):
            return self.text(value)
        return MASK if _text(value) in self._values else value

    def text(self, text: str) -> str:
        """Return a text with what is sensitive in it hidden."""
        return self._within.sub(MASK, text) if self._within else text

    def named(self, name: str, value: Any) -> Any:
        """Return the value of a reference such as `input.context.arguments.iban`, hidden if that is sensitive."""
        _, found, argument = name.partition(".arguments.")
        if found and re.split(r"[.\[]", argument)[0] in self._names:
            return MASK
        return self.value(value)


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif value is not None and not isinstance(value, bool):
        yield _text(value)
        if not isinstance(value, str):
            yield f"{value:,}"


def _text(value: Any) -> str:
    # 47500.0 is the number 47500.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _bounded(text: str) -> str:
    # 4750 is no part of 47500, but part of "acct-4750".
    return rf"(?<![\d.,]){re.escape(text)}(?![\d])" if text[0].isdigit() else re.escape(text)
