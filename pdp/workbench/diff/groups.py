"""Group calls whose decisions change in the same way, the most dangerous group first. Shorten a call of each group."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from itertools import islice
from typing import Any, Final

import orjson
import yaml

from pdp.decision import Decision, Verdict
from pdp.errors import EngineTimeoutError
from pdp.json import canonical
from pdp.workbench.diff.comparison import ComparedCall, DecisionChange, Difference, change_of
from pdp.workbench.diff.structure import Structure
from pdp.workbench.neighbours.entries import MADE_UP
from pdp.workbench.neighbours.values import GONE, JsonPath, as_dict, at, edited

Decide = Callable[[ComparedCall], tuple[Decision, Decision]]
Causes = tuple[frozenset[int], ...]
"""The causes of a difference, each of them a set of numbers of changes. Each cause alone moves the decision."""

Attribute = Callable[[Sequence[Difference]], Sequence[Causes]]

_SOURCES: Final = 20
_LONGEST: Final = 160
_MOST_KINDS: Final = 300
"""The number of kinds of calls of which each has its causes looked for."""

_MOST_PARTS: Final = 50
"""The maximum number of keys to try to remove from each part of a request, and of removals to try inside each key."""

_PARTS: Final = (("context", "arguments"), ("subject", "properties"), ("context",), ("resource", "properties"))
_HIDDEN: Final = frozenset(("context", name) for name in ("arguments", "call_digest", "request_id", "run_id", "time"))
# Every request has these fields, so they are shown only if they influence the decision.
NEEDED: Final = (("subject", "id"), ("subject", "type"), ("resource", "id"), ("resource", "type"))


@dataclass(frozen=True, slots=True)
class Group:
    """Calls whose decisions differ in the same way, from the same `causes`, and the smallest of these calls.

    `id` is from `Structure.id_of`. `call` shows the smallest call and both decisions as text, without the parts of the
    call that do not affect them. `tools` are tools of the manifests, `sources` the first origins of known calls.
    """

    id: str
    call: str
    change: DecisionChange
    count: int
    tools: tuple[str, ...]
    smallest: Difference
    sources: tuple[str, ...]
    causes: Causes = ()

    def as_json(self) -> dict[str, Any]:
        """Return the group as it appears in the JSON of `pdp bundle diff --json`, which is a stable interface."""
        call = self.smallest.call
        return {
            "id": self.id,
            "call": self.call,
            "direction": self.change.direction.value,
            "change": asdict(self.change),
            "requests": self.count,
            "tools": self.tools,
            "sources": self.sources,
            "variant": call.variant,
            "witness": orjson.loads(call.new),
            "witness_old": orjson.loads(call.old) if call.old != call.new else None,
            "codes": {"old": self.smallest.old.codes, "new": self.smallest.new.codes},
        }


@dataclass(slots=True)
class CollectedCalls:
    """Calls with one change of the decision, of one tool, and with the same varied attributes, which are alike."""

    smallest: Difference
    count: int = 0
    tools: set[str] = field(default_factory=set)
    sources: dict[str, None] = field(default_factory=dict)

    def add(self, smallest: Difference, count: int, tools: Iterable[str], sources: Iterable[str]) -> None:
        """Add calls, of which `smallest` is the smallest."""
        self.count += count
        self.tools.update(tools)
        self.sources |= dict.fromkeys(sources)
        if _size(smallest.call) < _size(self.smallest.call):
            self.smallest = smallest


def _size(call: ComparedCall) -> tuple[int, int, int, bytes]:
    # Calls with fewer synthetic names are preferred, because people know the names of scenarios.
    return len(call.variant), call.new.count(f'"{MADE_UP}'.encode()), len(call.new), call.new


def collected(differences: Iterable[Difference]) -> list[CollectedCalls]:
    """Return calls that are alike together. After many kinds of calls, further kinds are told apart by tool alone."""
    kinds: dict[Any, CollectedCalls] = {}
    for difference in differences:
        call = difference.call
        coarse = difference.change, call.known_tool, call.known_tool and call.tool
        kind: Any = (*coarse, call.variant)
        kind = kind if kind in kinds or len(kinds) < _MOST_KINDS else coarse
        kinds.setdefault(kind, CollectedCalls(difference)).add(
            difference, 1, [call.tool] if call.known_tool else [], [call.source] if call.source else []
        )
    return list(kinds.values())


def grouped(
    *kinds: Sequence[CollectedCalls], structure: Structure, decide: Decide, attribute: Attribute
) -> list[tuple[Group, ...]]:
    """Return each sequence of calls in groups by change and causes, most dangerous first.

    `decide` tests whether a shortened call still differs. A shortened call is shown only if it has the same causes.
    """
    every = [calls for some in kinds for calls in some]
    causes = attribute([calls.smallest for calls in every])
    merged: dict[Any, CollectedCalls] = {}
    sequence = [number for number, some in enumerate(kinds) for _ in some]
    for number, calls, each in zip(sequence, every, causes, strict=True):
        # Calls of the bundle's tools and calls of generated entries form separate groups.
        smallest = calls.smallest
        key = number, smallest.change, smallest.call.known_tool, each
        group = merged.setdefault(key, CollectedCalls(smallest))
        group.add(smallest, calls.count, calls.tools, calls.sources)
    shortened_calls = [shortened_call(calls.smallest, decide) for calls in merged.values()]
    again = attribute([shorter for shorter, _ in shortened_calls])
    groups: list[list[Group]] = [[] for _ in kinds]
    for (key, calls), (shorter, needed), new_causes in zip(merged.items(), shortened_calls, again, strict=True):
        number, change, _, each = key
        shown = (shorter, needed) if new_causes == each else (calls.smallest, NEEDED)
        tools = tuple(sorted(calls.tools))
        identity = structure.id_of("decisions", *astuple(change), tools)
        sources = tuple(calls.sources)[:_SOURCES]
        words = call_words(*shown)
        groups[number].append(Group(identity, words, change, calls.count, tools, calls.smallest, sources, each))
    return [
        tuple(sorted(some, key=lambda group: (group.change.rank, not group.tools, -group.count, group.id)))
        for some in groups
    ]


def shortened_call(difference: Difference, decide: Decide) -> tuple[Difference, tuple[JsonPath, ...]]:
    """Return the difference of a call without the parts that it does not need, and the names that it needs."""
    call = difference.call

    def with_edits(*edits: tuple[JsonPath, Any]) -> ComparedCall:
        old, new = (canonical(edited(orjson.loads(body), *edits)) for body in (call.old, call.new))
        request = None if call.request is None else edited(call.request, *edits)
        return replace(call, old=old, new=new, request=request)

    def differs(*edits: tuple[JsonPath, Any]) -> bool:
        try:
            return change_of(*decide(with_edits(*edits))) == difference.change
        except EngineTimeoutError:
            return False

    new = orjson.loads(call.new)
    if call.plan or not isinstance(new, dict) or not differs():
        return difference, ()
    for part in _PARTS:
        for key in list(as_dict(at(new, part)))[:_MOST_PARTS]:
            if (path := (*part, key)) not in _HIDDEN:
                for removed in islice(_removals(orjson.loads(call.new), path), _MOST_PARTS):
                    if differs((removed, GONE)):
                        call = with_edits((removed, GONE))
    return replace(difference, call=call), tuple(path for path in NEEDED if not differs((path, "another")))


def call_words(difference: Difference, needed: Iterable[JsonPath]) -> str:
    """Return a call and both decisions as text, with the names in the request that it needs."""
    call, new = difference.call, orjson.loads(difference.call.new)
    shown: list[str] = []
    if not call.plan and isinstance(new, dict):
        for part in _PARTS:
            for key, value in as_dict(at(new, part)).items():
                synthetic = isinstance(value, str) and value.startswith(MADE_UP)
                if (*part, key) not in _HIDDEN:
                    shown.append(
                        "approved" if key == "approval" else f"{key} {'(any)' if synthetic else shown_value(value)}"
                    )
        shown += [f"{'.'.join(map(str, path))} {shown_value(at(new, path))}" for path in needed
                  if isinstance(at(new, path), str)]  # fmt: skip
    before, after = (
        " ".join((side.verdict, *(side.codes if side.verdict is not Verdict.ALLOW else ())))
        for side in (difference.old, difference.new)
    )
    names = ", ".join(difference.change.names)
    same = f"{before} as before, with a difference in {names}" if names else f"{before} as before"
    decisions = f"{before} -> {after}" if before != after else same
    return f"{', '.join((call.tool, *shown))}: {decisions}"


def _removals(request: Any, path: JsonPath) -> Iterable[JsonPath]:
    """Yield the path of a value and the paths in it. Items of lists come last first, so that indices stay valid."""
    yield path
    value = at(request, path)
    keys = list(value) if isinstance(value, dict) else range(len(value))[::-1] if isinstance(value, list) else ()
    for key in keys:
        yield from _removals(request, (*path, key))


def shown_value(value: Any) -> str:
    """Return a value as YAML on one line, truncated if it is too long."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    return shortened(text.removesuffix("\n").removesuffix("\n...").strip())


def shortened(text: str) -> str:
    """Return a text, truncated if it is too long."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
