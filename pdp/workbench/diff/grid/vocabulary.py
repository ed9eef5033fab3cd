"""The values that policies, data and manifests compare with: what a search for a difference tries."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_COMMENT: Final = re.compile(r"^\s*#.*$", re.MULTILINE)
_STRING: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_NUMBER: Final = re.compile(r"(?<![\w.~\"])-?\d+(?:\.\d+)?(?![\w\"])")
_INPUT: Final = re.compile(r"\binput((?:\.[A-Za-z_]\w*)+)")
_LARGEST: Final = 2**53 - 1
_HALF: Final = 0.5

Way = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Attributes of a request that a policy reads, and the values that it may compare them with; the nearest first."""

    attributes: tuple[Way, ...]
    strings: tuple[str, ...]
    numbers: tuple[float, ...]

    def boundaries(self) -> Iterator[float]:
        """Yield values just below, at and above each number, and zero."""
        seen: set[float] = set()
        for number in (0, *self.numbers):
            for value in (number, number + 1, number - 1, number + _HALF, number - _HALF):
                if value not in seen and abs(value) <= _LARGEST:
                    seen.add(value)
                    yield value


def vocabulary(modules: Iterable[str], values: Iterable[Any] = ()) -> Vocabulary:
    """Return what stands in the texts of modules and in JSON values, in the order in which it is found."""
    attributes: dict[Way, None] = {}
    strings: dict[str, None] = {}
    numbers: dict[float, None] = {}
    for text in modules:
        bare = _COMMENT.sub("", text)
        attributes |= dict.fromkeys(tuple(found.split(".")[1:]) for found in _INPUT.findall(bare))
        strings |= dict.fromkeys(json.loads(found) for found in _STRING.findall(bare) if _is_json(found))
        numbers |= dict.fromkeys(float(found) if "." in found else int(found) for found in _NUMBER.findall(bare))
    for value in values:
        for leaf in _leaves(value):
            if isinstance(leaf, str):
                strings[leaf] = None
            elif not isinstance(leaf, bool) and isinstance(leaf, int | float):
                numbers[leaf] = None
    return Vocabulary(tuple(attributes), tuple(strings), tuple(numbers))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value
