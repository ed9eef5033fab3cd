"""Differences grouped by what they have in common, the most dangerous first, each with the smallest call found."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.workbench.neighbours.entries import MADE_UP

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdp.manifest.diff import Direction
    from pdp.workbench.diff.comparison import ComparedCall, DecisionChange, Difference
    from pdp.workbench.diff.structure import Structure

_NAMED: Final = 3
_VALUES: Final = 4
_SOURCES: Final = 20


@dataclass(frozen=True, slots=True)
class Group:
    """Calls that are decided differently in the same way.

    Attributes:
        id: names this difference of these two bundles, for explanations (`Structure.id_of`).
        title: in words: `DENY -> ALLOW for read-external tools without purpose`.
        change: what differs.
        count: how many calls.
        tools: those of the bundles' manifests, sorted; kinds: the effect classes of all the calls, sorted.
        smallest: the smallest call found, with both decisions.
        sources: where known calls come from, the first of them.
    """

    id: str
    title: str
    change: DecisionChange
    count: int
    tools: tuple[str, ...]
    kinds: tuple[str, ...]
    smallest: Difference
    sources: tuple[str, ...] = ()

    @property
    def direction(self) -> Direction:
        """Which way it goes."""
        return self.change.direction

    @property
    def may_loosen(self) -> bool:
        """Whether it has to be explained: see `DecisionChange.may_loosen`."""
        return self.change.may_loosen

    @property
    def witness(self) -> Any:
        """The smallest call found, as the new bundle is asked it."""
        return orjson.loads(self.smallest.call.new)

    def as_json(self) -> dict[str, Any]:
        """Return the object that `pdp bundle diff --json` prints for it; its form is stable."""
        call = self.smallest.call
        return {
            "id": self.id,
            "title": self.title,
            "direction": self.direction.value,
            "may_loosen": self.may_loosen,
            "change": asdict(self.change),
            "requests": self.count,
            "tools": list(self.tools),
            "effect_classes": list(self.kinds),
            "sources": list(self.sources),
            "variant": [words for _, words in call.variant],
            "witness": self.witness,
            "witness_old": orjson.loads(call.old) if call.old != call.new else None,
            "codes": {"old": self.smallest.old.codes, "new": self.smallest.new.codes},
        }


@dataclass(slots=True)
class _Collected:
    smallest: Difference
    count: int = 0
    tools: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    words: dict[str, dict[str, None]] | None = None
    sources: dict[str, None] = field(default_factory=dict)

    def add(self, difference: Difference) -> None:
        call = difference.call
        self.count += 1
        self.kinds.add(call.kind or "unknown")
        if call.known_tool:
            self.tools.add(call.tool)
        if call.source:
            self.sources[call.source] = None
        own = dict(call.variant)
        if self.words is None:
            self.words = {dimension: {words: None} for dimension, words in own.items()}
        else:
            common = self.words.items()
            self.words = {name: {**words, own[name]: None} for name, words in common if name in own}
        if _size(call) < _size(self.smallest.call):
            self.smallest = difference


def grouped(differences: Iterable[Difference], structure: Structure) -> tuple[Group, ...]:
    """Return what is decided differently in groups, the most dangerous first; `structure` gives them their ids."""
    collected: dict[tuple[DecisionChange, bool], _Collected] = {}
    for difference in differences:
        # Tools of today are called already, generated entries might be: they are told apart.
        key = difference.change, difference.call.known_tool
        collected.setdefault(key, _Collected(difference)).add(difference)
    groups = []
    for (change, _), calls in collected.items():
        tools, kinds = tuple(sorted(calls.tools)), tuple(sorted(calls.kinds))
        groups.append(
            Group(
                id=structure.id_of("decisions", *astuple(change), tools, kinds),
                title=_title(change, calls),
                change=change,
                count=calls.count,
                tools=tools,
                kinds=kinds,
                smallest=calls.smallest,
                sources=tuple(calls.sources)[:_SOURCES],
            )
        )
    return tuple(sorted(groups, key=lambda group: (group.change.rank, not group.tools, -group.count, group.id)))


def _title(change: DecisionChange, collected: _Collected) -> str:
    if change.old is not change.new:
        decided = f"{change.old.value} -> {change.new.value}"
    else:
        removed, added = change.obligations_removed, change.obligations_added
        parts = [
            *(f"no longer {code}" for code in change.codes_removed),
            *(f"now {code}" for code in change.codes_added),
            *(f"no longer with the obligation {name}" for name in removed if name not in added),
            *(f"now with the obligation {name}" for name in added if name not in removed),
            *(f"another obligation {name}" for name in removed if name in added),
            *(f"other details of {code}" for code in change.details),
        ]
        decided = f"{change.old.value} as before, {', '.join(parts)},"
    return " ".join([decided, "for", _whom(collected), *_common(collected)])


def _whom(collected: _Collected) -> str:
    kinds, tools = sorted(collected.kinds), sorted(collected.tools)
    kind = f"{kinds[0]} " if len(kinds) == 1 and kinds[0] != "unknown" else ""
    if tools and len(tools) <= _NAMED:
        return f"{kind}{'tool' if len(tools) == 1 else 'tools'} {', '.join(tools)}"
    if not tools and not collected.smallest.call.source:
        return f"{kind}tools (none of today's)"
    return f"{kind}tools" if not tools else f"{len(tools)} {kind}tools"


def _common(collected: _Collected) -> list[str]:
    """In what all the calls differ from one that has all it needs, in words."""
    return [
        " or ".join(list(words)[:_VALUES]) + (f" or {len(words) - _VALUES} more" if len(words) > _VALUES else "")
        for words in (collected.words or {}).values()
    ]


def _size(call: ComparedCall) -> tuple[int, int, int, bytes]:
    # Names that somebody knows, those of scenarios, before such as nobody has.
    return len(call.variant), call.new.count(f'"{MADE_UP}'.encode()), len(call.new), call.new
