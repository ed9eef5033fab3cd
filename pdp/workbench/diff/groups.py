"""Differences put together by what they have in common, the most dangerous first, each with the smallest call found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.workbench.diff.identity import Witnesses
from pdp.workbench.opa.rules import sites_by_code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pdp.decision import Decision
    from pdp.manifest.governance_diff import Direction
    from pdp.workbench.diff.deciding import Case, Difference
    from pdp.workbench.diff.identity import Identity
    from pdp.workbench.diff.judging import Change
    from pdp.workbench.opa.rules import RuleSite

_NAMED: Final = 3
_VALUES: Final = 4
_SOURCES: Final = 20


@dataclass(frozen=True, slots=True)
class Responsible:
    """A rule behind a reason code, in the bundle where it stands.

    Attributes:
        code: the reason code, or the id of an obligation.
        where: `FILE:LINE`, or several with a comma between; None: no rule of that bundle has it.
        fired: whether it is among the decision's reasons.
    """

    code: str
    where: str | None
    fired: bool


@dataclass(frozen=True, slots=True)
class Group:
    """Calls that are decided differently in the same way.

    Attributes:
        id: stable as long as the change, the tools, the effect classes and what was seen to lead to it are the same
            (see `Identity`); explanations name it.
        title: what it is, in words: `DENY -> ALLOW for read-external tools without purpose`.
        change: what differs.
        count: how many calls.
        tools: those of the bundles' manifests, sorted; kinds: the effect classes of all the calls, sorted.
        case: the smallest call found; old, new: how it is decided.
        rules_old, rules_new: the rules behind what differs, on either side.
        sources: where known calls come from, the first of them.
    """

    id: str
    title: str
    change: Change
    count: int
    tools: tuple[str, ...]
    kinds: tuple[str, ...]
    case: Case
    old: Decision
    new: Decision
    rules_old: tuple[Responsible, ...]
    rules_new: tuple[Responsible, ...]
    sources: tuple[str, ...] = ()

    @property
    def direction(self) -> Direction:
        """Which way it goes."""
        return self.change.direction

    @property
    def may_loosen(self) -> bool:
        """Whether it has to be explained: see `Change.may_loosen`."""
        return self.change.may_loosen

    @property
    def witness(self) -> Any:
        """The smallest call found, as the new bundle is asked it."""
        return orjson.loads(self.case.new)

    def as_json(self) -> dict[str, Any]:
        """Return the object that `pdp bundle diff --json` prints for it; its form is stable."""
        return {
            "id": self.id,
            "title": self.title,
            "direction": self.direction.value,
            "may_loosen": self.may_loosen,
            "old_verdict": self.change.old.value,
            "new_verdict": self.change.new.value,
            "codes_gone": list(self.change.gone),
            "codes_come": list(self.change.come),
            "obligations_gone": list(self.change.duties_gone),
            "obligations_come": list(self.change.duties_come),
            "details_differ": list(self.change.details),
            "requests": self.count,
            "tools": list(self.tools),
            "effect_classes": list(self.kinds),
            "sources": list(self.sources),
            "departures": [words for _, words in self.case.departures],
            "witness": self.witness,
            "witness_old": orjson.loads(self.case.old) if self.case.old != self.case.new else None,
            "old": {"codes": list(self.old.codes), "rules": [_rule_json(one) for one in self.rules_old]},
            "new": {"codes": list(self.new.codes), "rules": [_rule_json(one) for one in self.rules_new]},
        }


@dataclass(slots=True)
class _Collected:
    first: Difference
    count: int = 0
    tools: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    words: dict[str, dict[str, None]] | None = None
    sources: dict[str, None] = field(default_factory=dict)
    witnesses: Witnesses = field(default_factory=Witnesses)

    def add(self, found: Difference) -> None:
        case = found.case
        self.count += 1
        self.witnesses.add(case)
        self.kinds.add(case.kind or "unknown")
        if case.known_tool:
            self.tools.add(case.tool)
        if case.source:
            self.sources[case.source] = None
        own = dict(case.departures)
        if self.words is None:
            self.words = {axis: {words: None} for axis, words in own.items()}
        else:
            self.words = {axis: {**known, own[axis]: None} for axis, known in self.words.items() if axis in own}
        if _size(case) < _size(self.first.case):
            self.first = found


def grouped(
    differences: Iterable[Difference],
    old: Mapping[str, tuple[RuleSite, ...]],
    new: Mapping[str, tuple[RuleSite, ...]],
    identity: Identity,
) -> tuple[Group, ...]:
    """Return the groups, the most dangerous first.

    Args:
        differences: what is decided differently.
        old: the rules of the one bundle by code; see `sites`.
        new: those of the other.
        identity: names the groups.
    """
    found: dict[tuple[Change, bool], _Collected] = {}
    for each in differences:
        # Tools of today and those that the grid made up are told apart: the ones are called, the others might be.
        key = (each.change, each.case.known_tool)
        collected = found.setdefault(key, _Collected(each))
        collected.add(each)
    groups = [_group(change, one, old, new, identity) for (change, _), one in found.items()]
    return tuple(sorted(groups, key=lambda one: (one.change.danger, not one.tools, -one.count, one.id)))


def sites(found: tuple[RuleSite, ...]) -> dict[str, tuple[RuleSite, ...]]:
    """Return rules by code, and rules of obligations also by the obligation's id."""
    by_code = sites_by_code(found)
    duties: dict[str, list[RuleSite]] = {}
    for site in found:
        if site.obligation is not None:
            duties.setdefault(site.obligation, []).append(site)
    return {**{name: tuple(each) for name, each in duties.items()}, **by_code}


def _group(
    change: Change,
    one: _Collected,
    old: Mapping[str, tuple[RuleSite, ...]],
    new: Mapping[str, tuple[RuleSite, ...]],
    identity: Identity,
) -> Group:
    tools, kinds = tuple(sorted(one.tools)), tuple(sorted(one.kinds))
    names = (*change.gone, *change.come, *change.duties_gone, *change.duties_come, *change.details)
    return Group(
        id=identity.of(change, tools, kinds, one.witnesses),
        title=_title(change, one),
        change=change,
        count=one.count,
        tools=tools,
        kinds=kinds,
        case=one.first.case,
        old=one.first.old,
        new=one.first.new,
        rules_old=_rules(names, old, one.first.old),
        rules_new=_rules(names, new, one.first.new),
        sources=tuple(one.sources)[:_SOURCES],
    )


def _rules(
    names: Iterable[str], sites_: Mapping[str, tuple[RuleSite, ...]], decision: Decision
) -> tuple[Responsible, ...]:
    fired = {*decision.codes, *(duty.id for duty in decision.obligations)}
    found = []
    for name in names:
        places = sites_.get(name, ())
        where = ", ".join(f"{site.file}:{site.line}" for site in places) or None
        if where is not None or name in fired:
            found.append(Responsible(name, where, name in fired))
    return tuple(found)


def _title(change: Change, one: _Collected) -> str:
    if change.old is not change.new:
        what = f"{change.old.value} -> {change.new.value}"
    else:
        parts = [
            *(f"no longer {code}" for code in change.gone),
            *(f"now {code}" for code in change.come),
            *(f"no longer with the obligation {name}" for name in change.duties_gone
              if name not in change.duties_come),
            *(f"now with the obligation {name}" for name in change.duties_come if name not in change.duties_gone),
            *(f"another obligation {name}" for name in change.duties_gone if name in change.duties_come),
            *(f"other details of {code}" for code in change.details),
        ]  # fmt: skip
        what = f"{change.old.value} as before, {', '.join(parts)},"
    return " ".join([what, "for", _whom(one), *_common(one)])


def _whom(one: _Collected) -> str:
    kinds = sorted(one.kinds)
    kind = f"{kinds[0]} " if len(kinds) == 1 and kinds[0] != "unknown" else ""
    tools = sorted(one.tools)
    if tools and len(tools) <= _NAMED:
        return f"{kind}{'tool' if len(tools) == 1 else 'tools'} {', '.join(tools)}"
    if not tools and not one.first.case.source:
        # Only entries that the grid made up: no tool of today.
        return f"{kind}tools (none of today's)"
    return f"{kind}tools" if not tools else f"{len(tools)} {kind}tools"


def _common(one: _Collected) -> list[str]:
    """What all the calls depart in, in words."""
    return [
        " or ".join(list(words)[:_VALUES]) + (f" or {len(words) - _VALUES} more" if len(words) > _VALUES else "")
        for words in (one.words or {}).values()
    ]


def _size(case: Case) -> tuple[int, int, bytes]:
    return len(case.departures), len(case.new), case.new


def _rule_json(rule: Responsible) -> dict[str, Any]:
    return {"code": rule.code, "where": rule.where, "fired": rule.fired}
