"""Which attributes of a request the modules of two bundles read, with the constants that they may be compared with.

Read from the text of the modules. First come those of modules that differ, since that is where decisions change.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.workbench.diff.grid.vocabulary import Vocabulary, vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pdp.workbench.diff.grid.vocabulary import Way

_COMMON: Final = (
    ("subject", "id"), ("subject", "type"), ("subject", "properties", "scopes"),
    ("subject", "properties", "clearances"),
    ("subject", "properties", "limits"), ("subject", "properties", "entitlements"), ("subject", "properties", "act"),
    ("subject", "properties", "iss"), ("action",), ("resource",), ("context", "approval"), ("context", "purpose"),
    ("context", "call_digest"), ("context", "idempotency_key"), ("context", "agent"), ("steps",),
)  # fmt: skip
_ELSEWHERE: Final = (("action",), ("steps",), ("context", "approval"), ("context", "call_digest"))
"""What is tried elsewhere, or has no constants: tools by themselves, approvals on an axis of their own."""

_WHOLE: Final = (
    ("subject",), ("subject", "properties"), ("context",), ("context", "arguments"),
    ("resource",), ("resource", "properties"), ("subject", "properties", "act"),
)  # fmt: skip
_COMMENT: Final = re.compile(r"^\s*#.*$", re.MULTILINE)
_PACKAGE: Final = re.compile(r"^package\s+([A-Za-z_][\w.]*)", re.MULTILINE)
_NAMED: Final = re.compile(
    r'(?:object\.get\(\s*input((?:\.[A-Za-z_]\w*)*)\s*,\s*|\binput((?:\.[A-Za-z_]\w*)+)\[)"([^"\\]+)"'
)
_PATH: Final = re.compile(r"object\.get\(\s*input((?:\.[A-Za-z_]\w*)*)\s*,\s*(\[[^\]\[]*\])")
_LISTED: Final = re.compile(r"\bin\s+input((?:\.[A-Za-z_]\w*)+)\b|\binput((?:\.[A-Za-z_]\w*)+)\[(?!\")")
_BARE: Final = re.compile(r"(?<![\w.\"])input\b(?!\.)")
_SETTINGS: Final = "data.settings"
_NOTHING: Final = Vocabulary((), (), ())
MOST: Final = 64
"""How many attributes are looked at."""


@dataclass(frozen=True, slots=True)
class Reading:
    """An attribute that policies read.

    Attributes:
        way: where it stands in a request.
        words: what it may be compared with, those first that only one of the bundles has.
        news: of these, what only one of the bundles has.
        changed: whether a module that differs reads it.
        common: whether every concern has it in common, so that it has an axis of its own besides.
        listed: whether policies take it for a list.
    """

    way: Way
    words: Vocabulary
    news: frozenset[str | float]
    changed: bool
    common: bool
    listed: bool


class Readings:
    """What the modules of two bundles read.

    Args:
        old, new: texts of the modules by path.
        old_settings, new_settings: the data under `settings`.

    Attributes:
        taken: the attributes that are looked at; dropped: those that there is no room for, in words of the policy.
        dropped_changed: those dropped that modules read which differ.
        changed: the paths of modules that differ, or read what differs.
    """

    def __init__(self, old: Mapping[str, str], new: Mapping[str, str], old_settings: Any, new_settings: Any) -> None:
        sides = tuple({path: _COMMENT.sub("", text) for path, text in each.items()} for each in (old, new))
        linked = _links(sides)
        settings_differ = json.dumps(old_settings, sort_keys=True) != json.dumps(new_settings, sort_keys=True)
        own = {path for path in {**old, **new} if _differs(old.get(path), new.get(path))}
        if settings_differ:
            own |= {path for each in sides for path, text in each.items() if _SETTINGS in text}
        self.changed = frozenset(own | {other for path in own for other in linked.get(path, ())})
        self._linked = linked
        self._ways: dict[str, frozenset[Way]] = {}
        self._vague = {path for each in sides for path, text in each.items() if _is_vague(text)}
        before, after = (
            self._side(side, linked, settings)
            for side, settings in zip(sides, (old_settings, new_settings), strict=True)
        )
        one, other = (vocabulary(side.values(), [settings]) for side, settings in
                      zip(sides, (old_settings, new_settings), strict=True))  # fmt: skip
        self._fresh = {*one.strings, *one.numbers} ^ {*other.strings, *other.numbers}
        listed = {_way(name) for side in sides for text in side.values() for pair in _LISTED.findall(text)
                  for name in pair if name}  # fmt: skip
        changed = {way for path in self.changed for way in self._ways.get(path, ())}
        found = [
            self._reading(way, before.get(way, _NOTHING), after.get(way, _NOTHING), changed=way in changed,
                     listed=way in listed)
            for way in dict.fromkeys((*before, *after))
        ]  # fmt: skip
        found.sort(key=lambda one: (not one.changed, one.common, str(one.way)))
        self._found = {one.way: one for one in found}
        self.taken = tuple(found[:MOST])
        self.dropped = tuple(_dotted(one.way) for one in found[MOST:])
        self.dropped_changed = tuple(_dotted(one.way) for one in found[MOST:] if one.changed)

    def behind(self, paths: Iterable[str]) -> tuple[tuple[Reading, ...], bool]:
        """Return what those of these modules that differ read, in either bundle, sorted by place.

        With them go the modules that they build on; where none of them differs, it is what all that differ read.

        Returns:
            the attributes, and whether these modules read anything by a name that cannot be told from their text.
        """
        near = self.changed & {each for path in paths for each in (path, *self._linked.get(path, ()))}
        chosen = near or self.changed
        ways = {way for path in chosen for way in self._ways.get(path, ())}
        return tuple(self._found[way] for way in sorted(ways, key=str)), bool(chosen & self._vague)

    def _side(
        self, texts: Mapping[str, str], linked: Mapping[str, frozenset[str]], settings: Any
    ) -> dict[Way, Vocabulary]:
        """Each attribute, with the constants of the modules that read it and of those that they build on."""
        words = {path: vocabulary([text]) for path, text in texts.items()}
        own_settings = vocabulary((), [settings])
        found: dict[Way, Vocabulary] = {}
        for path, text in texts.items():
            # The baseline, where it is as it was, reads common attributes, and compares with words of its own.
            plain = path.startswith("authz/") and path not in self.changed
            ways = words[path].attributes if plain else (*words[path].attributes, *_named(text))
            near = [words[path], *(words[each] for each in sorted(linked.get(path, ())) if each in words)]
            if any(_SETTINGS in texts[each] for each in (path, *linked.get(path, ())) if each in texts):
                near.append(own_settings)
            for way in dict.fromkeys(ways):
                if way in _WHOLE or _below(way, _ELSEWHERE) or (plain and _below(way, _COMMON)):
                    continue
                self._ways[path] = self._ways.get(path, frozenset()) | {way}
                found[way] = _joined((found.get(way, _NOTHING), *near))
        return found

    def _reading(self, way: Way, old: Vocabulary, new: Vocabulary, *, changed: bool, listed: bool) -> Reading:
        joined = _joined((new, old))
        before: set[str | float] = {*old.strings, *old.numbers}
        after: set[str | float] = {*new.strings, *new.numbers}
        news = frozenset(before ^ after)

        def rank(each: str | float) -> int:
            """First what only one bundle has at all, then what only one of them has near this attribute."""
            return 2 - (each in news) - (each in self._fresh)

        words = Vocabulary((), tuple(sorted(joined.strings, key=rank)), tuple(sorted(joined.numbers, key=rank)))
        return Reading(way, words, news, changed=changed, common=_below(way, _COMMON), listed=listed)


def _differs(old: str | None, new: str | None) -> bool:
    if old is None or new is None or old == new:
        return old != new
    return True


def _links(sides: Iterable[Mapping[str, str]]) -> dict[str, frozenset[str]]:
    """The user's modules that name each other's package, either way: a constant may stand in the one for the other."""
    found: dict[str, frozenset[str]] = {}
    for texts in sides:
        packages = {path: match[1] for path, text in texts.items() if (match := _PACKAGE.search(text))}
        for path, text in texts.items():
            if path.startswith("authz/"):
                continue
            for other, package in packages.items():
                if other != path and re.search(rf"\bdata\.{re.escape(package)}\b", text):
                    found[other] = found.get(other, frozenset()) | {path}
                    if not other.startswith("authz/"):
                        found[path] = found.get(path, frozenset()) | {other}
    return found


def _named(text: str) -> Iterator[Way]:
    """Attributes that are named as texts: `object.get(input.context, "purpose", null)`, `input.context["purpose"]`."""
    for one, other, name in _NAMED.findall(text):
        yield (*_way(one or other), name)
    for holder, listed in _PATH.findall(text):
        try:
            names = json.loads(listed)
        except ValueError:
            continue
        if names and all(isinstance(name, str) for name in names):
            yield (*_way(holder), *names)


def _is_vague(text: str) -> bool:
    """Whether a module hands on, or looks through, a whole part of the request."""
    if any(way in _WHOLE for way in _named(text)):
        return True
    rest = _PATH.sub("", _NAMED.sub("", text))
    return bool(_BARE.search(rest)) or any(way in _WHOLE for way in vocabulary([rest]).attributes)


def _way(text: str) -> Way:
    return tuple(text.split(".")[1:])


def _dotted(way: Way) -> str:
    return ".".join(map(str, way))


def _below(way: Way, known: Iterable[Way]) -> bool:
    return any(way[: len(each)] == each for each in known)


def _joined(several: Iterable[Vocabulary]) -> Vocabulary:
    every = tuple(several)
    return Vocabulary(
        (),
        tuple(dict.fromkeys(word for one in every for word in one.strings)),
        tuple(dict.fromkeys(number for one in every for number in one.numbers)),
    )
