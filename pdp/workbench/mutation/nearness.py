"""Which scenarios are likely to notice a change: those that speak of the same things, in words that few others use."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_WORD: Final = re.compile(r"[a-z0-9]{2,}")


def words(text: str) -> frozenset[str]:
    """Return the words of a text, in small letters and without a plural's `s`."""
    return frozenset(word.rstrip("s") for word in _WORD.findall(text.lower()))


class Nearness:
    """The words of each scenario, weighted: one that every scenario has says nothing."""

    def __init__(self, texts: Mapping[tuple[int, int], str]) -> None:
        self._words = {key: words(text) for key, text in texts.items()}
        used = Counter(word for each in self._words.values() for word in each)
        self._weight = {word: math.log(len(texts) / count) for word, count in used.items()}

    def of(self, key: tuple[int, int], asked: Iterable[str]) -> float:
        """Return how near a scenario is to some words; 0 is not at all."""
        own = self._words[key]
        return sum(self._weight[word] for word in asked if word in own)
