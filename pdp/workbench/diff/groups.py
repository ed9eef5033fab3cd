"""Group calls whose decisions change in the same way, the most dangerous group first. Shorten a call of each group."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, astuple, dataclass, field, replace
from itertools import islice
from typing import Any, Final

import orjson
import yaml

from pdp.decision import Decision, Verdict
from pdp.json import canonical
from pdp.workbench.diff.comparison import ComparedCall, DecisionChange, Difference, change_of
from pdp.workbench.diff.structure import Structure
from pdp.workbench.neighbours.entries import MADE_UP
from pdp.workbench.neighbours.values import GONE, JsonPath, as_dict, at, edited

Decide = Callable[[ComparedCall], tuple[Decision, Decision]]

_SOURCES: Final = 20
_LONGEST: Final = 160
_MOST_PARTS: Final = 50
"""The maximum number of keys to try to remove from each part of a request, and of removals to try inside each key."""

_PARTS: Final = (("context", "arguments"), ("subject", "properties"), ("context",), ("resource", "properties"))
_HIDDEN: Final = frozenset(("context", name) for name in ("arguments", "call_digest", "request_id", "run_id", "time"))
# Every request has these fields, so they are shown only if they influence the decision.
_NEEDED: Final = (("subject", "id"), ("subject", "type"), ("resource", "id"), ("resource", "type"))


@dataclass(frozen=True, slots=True)
class Group:
    """Calls whose decisions differ in the same way, and the smallest of these calls.

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
class _Collected:
    smallest: Difference
    count: int = 0
    tools: set[str] = field(default_factory=set)
    sources: dict[str, None] = field(default_factory=dict)

    def add(self, difference: Difference) -> None:
        call = difference.call
        self.count += 1
        if call.known_tool:
            self.tools.add(call.tool)
        if call.source:
            self.sources[call.source] = None
        if _size(call) < _size(self.smallest.call):
            self.smallest = difference


def _size(call: ComparedCall) -> tuple[int, int, int, bytes]:
    # Calls with fewer synthetic names are preferred, because people know the names of scenarios.
    return len(call.variant), call.new.count(f'"{MADE_UP}'.encode()), len(call.new), call.new


def grouped(differences: Iterable[Difference], structure: Structure, decide: Decide) -> tuple[Group, ...]:
    """Return the differences in groups, most dangerous first. `decide` tests whether a shortened call still differs."""
    collected: dict[tuple[DecisionChange, bool], _Collected] = {}
    for difference in differences:
        # Calls of the bundle's tools and calls of generated entries form separate groups.
        key = difference.change, difference.call.known_tool
        collected.setdefault(key, _Collected(difference)).add(difference)
    groups = []
    for (change, _), calls in collected.items():
        tools = tuple(sorted(calls.tools))
        identity = structure.id_of("decisions", *astuple(change), tools)
        words = _call_words(calls.smallest, decide)
        sources = tuple(calls.sources)[:_SOURCES]
        groups.append(Group(identity, words, change, calls.count, tools, calls.smallest, sources))
    return tuple(sorted(groups, key=lambda group: (group.change.rank, not group.tools, -group.count, group.id)))


def _call_words(difference: Difference, decide: Decide) -> str:
    """Return a call and both decisions as text, without parts of the call that the difference does not need."""
    call = difference.call
    old, new = orjson.loads(call.old), orjson.loads(call.new)

    def differs(*edits: tuple[JsonPath, Any]) -> bool:
        shortened_call = replace(call, old=canonical(edited(old, *edits)), new=canonical(edited(new, *edits)))
        return change_of(*decide(shortened_call)) == difference.change

    shown: list[str] = []
    if not call.plan and isinstance(new, dict) and differs():
        for part in _PARTS:
            for key in list(as_dict(at(new, part)))[:_MOST_PARTS]:
                path = (*part, key)
                if path in _HIDDEN:
                    continue
                for removed in islice(_removals(new, path), _MOST_PARTS):
                    if differs((removed, GONE)):
                        old, new = edited(old, (removed, GONE)), edited(new, (removed, GONE))
                if (value := at(new, path)) is not GONE:
                    synthetic = isinstance(value, str) and value.startswith(MADE_UP)
                    shown.append(
                        "approved" if key == "approval" else f"{key} {'(any)' if synthetic else shown_value(value)}"
                    )
        shown += [f"{'.'.join(path)} {shown_value(at(new, path))}" for path in _NEEDED
                  if isinstance(at(new, path), str) and not differs((path, "another"))]  # fmt: skip
    before, after = (
        " ".join((side.verdict, *(side.codes if side.verdict is not Verdict.ALLOW else ())))
        for side in (difference.old, difference.new)
    )
    same = f"{before} as before, with a difference in {', '.join(difference.change.names)}"
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
