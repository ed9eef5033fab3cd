"""What a reviewer reads of a bundle diff: each cause of it in one sentence, the call that shows it, and the text.

A cause is a field of an entry, a rule or a datum that changed. The differences in decisions are put below the cause
whose concern they name; those of no cause stand for themselves.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from difflib import unified_diff
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
import yaml

from pdp.decision import Verdict
from pdp.documents import read_document
from pdp.json import canonical
from pdp.manifest.diff import Direction
from pdp.workbench.diff.comparison import change_of
from pdp.workbench.diff.exercise import rule_text
from pdp.workbench.diff.policies import differing_rules
from pdp.workbench.neighbours.entries import MADE_UP
from pdp.workbench.neighbours.values import GONE, JsonPath, as_dict, at, edited
from pdp.workbench.reports.shown_file import shown_file
from pdp.workbench.scenarios.files.places import place_of_datum, place_of_field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pdp.decision import Decision
    from pdp.manifest.diff import ContentChange
    from pdp.workbench.diff.comparison import ComparedCall, Difference
    from pdp.workbench.diff.groups import Group
    from pdp.workbench.diff.policies import BundleRules
    from pdp.workbench.diff.result import BundleDiff
    from pdp.workbench.diff.structure import Structure
    from pdp.workbench.scenarios.files.suite import Suite

    Decide = Callable[[ComparedCall], tuple[Decision, Decision]]

UNSEEN: Final = "unseen"
_ORDER: Final = (Direction.LOOSENS, UNSEEN, Direction.UNCLEAR, Direction.TIGHTENS)
_MOST_LINES: Final = 12
_LONGEST: Final = 160
_MOST_PARTS: Final = 50
"""How many parts of a value, and how many values of a part of the request, are tried to be left out."""


@dataclass(frozen=True, slots=True)
class ReviewItem:
    """One cause with what it does.

    Attributes:
        direction: `loosens`, `unseen`, `unclear` or `tightens`: the most dangerous of all that it does.
        sentence: what it does, in words.
        call: the smallest call that shows it, with nothing but what decides, and both decisions; or empty.
        where: `FILE:LINE`; or empty.
        text: the lines that differ, those before with `- ` and those after with `+ `.
        ids: the ids that an explanation names.
    """

    direction: str
    sentence: str
    call: str = ""
    where: str = ""
    text: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()


class _Words(NamedTuple):
    """What a field means: a sentence of both values, words for no value, and the concerns that read it."""

    sentence: str
    nothing: str = "not stated"
    concerns: str = ""


_IS: Final = "{field} of {tool} is {new}; before, it was {old}"
_FIELDS: Final = {
    "scopes": _Words(
        "Whoever holds {new} may call {tool}; before, it took {old}", "no scope", "scopes delegation effects"
    ),
    "limits": _Words("Limits of {tool}: {new}; before, {old}", "none", "limits approvals delegation"),
    "markings": _Words("{tool} may touch data marked {new}; before, {old}", "with nothing", "markings delegation"),
    "purposes": _Words("{tool} may be called for {new}; before, for {old}", "any purpose", "purposes delegation"),
    "risk_tier": _Words("{tool} is of tier {new}; before, of tier {old}", concerns="risk approvals"),
    "effect_class": _Words(_IS, concerns="effects approvals purposes scopes markings"),
    "pattern": _Words(_IS, concerns="effects provenance markings"),
    "approval.approvers": _Words("{new} may approve {tool}; before, {old}", "nobody", "approvals"),
    "approval": _Words(_IS, concerns="approvals limits"),
    "idempotency": _Words(_IS, concerns="idempotency"),
    "provenance.required": _Words("{tool} has to name {new}; before, {old}", "no source", "provenance"),
    "contract": _Words("{tool}: {what}", concerns="none"),
    "tools": _Words("{tool} {what}"),
    "manifest": _Words("Manifest {what}"),
    "agents": _Words("{field} is pinned to {new}; before, to {old}", "nothing", "manifest"),
}
"""By the name of the field, dotted, or by its first step."""

_VERBS: Final = {"deny": "denies", "step_up": "asks a person", "allow": "grants", "obligations": "obliges"}
_PARTS: Final = (("context", "arguments"), ("subject", "properties"), ("context",), ("resource", "properties"))
_HIDDEN: Final = frozenset(("context", name) for name in ("arguments", "call_digest", "request_id", "run_id", "time"))
# What a request has to have, whatever it is: shown only where it decides.
_NEEDED: Final = (("subject", "id"), ("subject", "type"), ("resource", "id"), ("resource", "type"))


@dataclass(slots=True)
class _Cause:
    """A cause: its changes, the codes and concerns by which its differences are known, and what is said of it."""

    changes: list[ContentChange]
    tool: str
    known_by: frozenset[str]
    sentence: str
    where: str
    text: tuple[str, ...]

    def weight(self, group: Group) -> int:
        """How likely a difference in decisions has this cause; 0: it has not."""
        names = group.change.names
        if self.tool and self.tool not in (*group.tools, group.smallest.call.tool):
            return 0
        concerns = [name.partition(".")[0] for name in names]
        return 3 if self.known_by & {*names} else 2 if self.known_by & {*concerns} else int(not self.known_by)


def review(
    rules: tuple[BundleRules, BundleRules], diff: BundleDiff, suites: Sequence[Suite], decide: Decide
) -> tuple[ReviewItem, ...]:
    """Return what a reviewer has to read, the most dangerous first.

    Args:
        rules: of both bundles.
        diff: what differs between them.
        suites: whose files say where a field or a datum stands.
        decide: decides a call by both bundles.
    """
    structure = diff.structure
    causes = [*_entries(structure, suites), *_rules(*rules, structure), *_data(structure, suites)]
    below: dict[int, list[Group]] = defaultdict(list)
    alone: dict[str, Group] = {}
    for group in diff.groups:
        weights = [cause.weight(group) for cause in causes]
        if any(weights):
            below[weights.index(max(weights))].append(group)
        else:
            alone.setdefault(group.id, group)
    unseen = diff.unseen()
    items = [
        _item(cause, sorted(below[number], key=_rank), unseen, structure, decide) for number, cause in enumerate(causes)
    ]
    items += [
        ReviewItem(
            _direction(group), f"{group.title}.", call_words(group.smallest, decide), ids=(group.id,) * group.may_loosen
        )
        for group in alone.values()
    ]
    items += [ReviewItem(UNSEEN, f"{words}.", ids=(name,)) for name, words in unseen.items()]
    return tuple(sorted(items, key=lambda item: _ORDER.index(item.direction)))


def _item(
    cause: _Cause, groups: Sequence[Group], unseen: dict[str, str], structure: Structure, decide: Decide
) -> ReviewItem:
    """A cause with its differences; where it would not be seen is taken out of `unseen`."""
    begins = tuple(begin for change in cause.changes for begin in (change.line, f"{change.name}: `"))
    hidden = [name for name, words in unseen.items() if words.startswith(begins)]
    for name in hidden:
        del unseen[name]
    loosening = {change.line for change in cause.changes if change.direction is Direction.LOOSENS}
    ids = [name for name, line in structure.loosenings().items() if line in loosening]
    ids += [*(group.id for group in groups if group.may_loosen), *hidden]
    directions = {*(change.direction for change in cause.changes), *map(_direction, groups), *[UNSEEN] * bool(hidden)}
    call = "no call shows what it does" if hidden else ""
    if groups:
        call = call_words(groups[0].smallest, decide)
    direction = min(directions & set(_ORDER), key=_ORDER.index)
    return ReviewItem(direction, cause.sentence, call, cause.where, cause.text, tuple(dict.fromkeys(ids)))


def _rank(group: Group) -> tuple[bool, bool, int]:
    """What a reviewer wants to see first: what loosens, then another verdict, then what is dangerous."""
    change = group.change
    return not group.may_loosen, change.old is change.new, change.rank


def _direction(group: Group) -> str:
    return Direction.LOOSENS if group.may_loosen else group.direction


def _entries(structure: Structure, suites: Sequence[Suite]) -> Iterator[_Cause]:
    fields: dict[tuple[str, str], list[ContentChange]] = defaultdict(list)
    for change in structure.manifests:
        tool, _, field = change.name.rpartition(": ")
        # That a manifest became another one is said by what changed in it.
        if field != "manifest" or None in (change.old, change.new):
            fields[tool, field].append(change)
    for (tool, field), changes in fields.items():
        words = _FIELDS.get(field) or _FIELDS.get(field.partition(".")[0], _Words(_IS))
        old, new = changes[0].old, changes[0].new
        # None stands for any purpose, and an empty list for none.
        before, after = (
            "no purpose" if field == "purposes" and value == [] else _value(value) or words.nothing
            for value in (old, new)
        )
        said = words.sentence.format(tool=tool, field=field, old=before, new=after, what=changes[0].what)
        text = () if "{what}" in words.sentence else _stated(field, old, new)
        where = next((_place_of(suite, tool, field) for suite in suites if tool in suite.manifest.tools), "")
        yield _Cause(changes, tool, frozenset(words.concerns.split()), f"{said}.", where, text)


def _place_of(suite: Suite, tool: str, field: str) -> str:
    stated, *governance = (read_document(file) for name in ("manifest", "governance") for file in suite.files[name])
    place = place_of_field(suite.manifest.tools[tool], tuple(field.split(".")), stated, governance)
    return f"{shown_file(place.file)}:{place.line}"


def _value(value: Any) -> str:
    """A value in words, of a list every element; nothing where there is none."""
    if value in (None, [], {}):
        return ""
    return _cut(
        " and ".join(
            " of ".join(str(item[key]) for key in sorted(item, reverse=True)) if isinstance(item, dict) else _flow(item)
            for item in (value if isinstance(value, list) else [value])
        )
    )


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _stated(name: str, old: Any, new: Any) -> tuple[str, ...]:
    sides = ((sign, value) for sign, value in (("-", old), ("+", new)) if value is not None)
    return tuple(f"{sign} {name}: {_flow(value)}" for sign, value in sides)


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    return _cut(str(text.removesuffix("\n").removesuffix("\n...")).strip())


def _rules(old: BundleRules, new: BundleRules, structure: Structure) -> Iterator[_Cause]:
    changed = {change.name: change for change in structure.rules if change.direction is not Direction.TEXT}
    for name, (before, after) in differing_rules(old, new).items():
        rule = (after or before)[0]
        if "head" not in rule.node:
            continue  # An import does nothing by itself.
        kind = "added" if not before else "removed" if not after else "changed"
        package, _, helper = name.partition(" ")
        concern = package.rpartition("concerns.")[2] if helper else name.partition(".")[0]
        if rule.site is None:
            sentence = f"{helper}, which rules of {concern} ask for, was {kind}."
        else:
            sentence = f"A rule of {concern} was {kind}: {name}, which {_VERBS[rule.site.part]}. "
            sentence += rule.site.description or rule.site.title
        sides = ((rule_text(old, rule) for rule in before), (rule_text(new, rule) for rule in after))
        first, second = ("\n\n".join(side).splitlines() for side in sides)
        lines = [f"{line[0]} {line[1:].expandtabs(4)}" for line in unified_diff(first, second, n=0)
                 if not line.startswith(("---", "+++", "@@")) and line[1:].strip()]  # fmt: skip
        more = [f"  … {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
        # What a library says, any concern may ask.
        known_by = frozenset(() if "lib." in package else (name, concern))
        where, text = rule.place.rpartition("!")[2], (*lines[:_MOST_LINES], *more)
        yield _Cause([changed[name]], "", known_by, sentence, where, text)


def _data(structure: Structure, suites: Sequence[Suite]) -> Iterator[_Cause]:
    files = next(filter(None, (suite.files["data"] for suite in suites)), ())
    documents = [read_document(file) for file in files]
    for change in structure.data:
        old, new = ("not stated" if value is None else _flow(value) for value in (change.old, change.new))
        path = tuple(change.name.split("."))
        place = place_of_datum(documents, path) if documents else None
        where = "" if place is None else f"{shown_file(place.file)}:{place.line}"
        known_by = path[1:2] if path[0] == "settings" else ("markings", "documents", "effects", "planning")
        # Of what is long, the words of the change show where it begins to differ.
        long = len(old) > _LONGEST or len(new) > _LONGEST
        sentence = f"{change.line}." if long else f"{change.name} is {new}; before, {old}."
        text = _stated(change.name, change.old, change.new)
        yield _Cause([change], "", frozenset(known_by), sentence, where, text)


def call_words(difference: Difference, decide: Decide) -> str:
    """Return the call of a difference with nothing but what decides, and both decisions.

    What the call can do without is left out: without it, the two bundles would still decide differently in this way.
    """
    call = difference.call
    old, new = orjson.loads(call.old), orjson.loads(call.new)

    def differs(*edits: tuple[JsonPath, Any]) -> bool:
        asked = replace(call, old=canonical(edited(old, *edits)), new=canonical(edited(new, *edits)))
        return change_of(*decide(asked)) == difference.change

    shown: list[str] = []
    if not call.plan and isinstance(new, dict) and differs():
        for part in _PARTS:
            for key in list(as_dict(at(new, part)))[:_MOST_PARTS]:
                path = (*part, key)
                if path in _HIDDEN:
                    continue
                for gone in islice(_removals(new, path), _MOST_PARTS):
                    if differs((gone, GONE)):
                        old, new = edited(old, (gone, GONE)), edited(new, (gone, GONE))
                if (value := at(new, path)) is not GONE:
                    made_up = isinstance(value, str) and value.startswith(MADE_UP)
                    shown.append("approved" if key == "approval" else f"{key} {'(any)' if made_up else _flow(value)}")
        shown += [f"{'.'.join(path)} {_flow(at(new, path))}" for path in _NEEDED
                  if isinstance(at(new, path), str) and not differs((path, "another"))]  # fmt: skip
    before, after = (
        " ".join((side.verdict, *(side.codes if side.verdict is not Verdict.ALLOW else ())))
        for side in (difference.old, difference.new)
    )
    decisions = f"{before} -> {after}" if before != after else f"{before} as before, and says otherwise why"
    return f"{', '.join((call.tool, *shown))}: {decisions}"


def _removals(request: Any, path: JsonPath) -> Iterable[JsonPath]:
    """What may be left out of a value, the whole first, then its parts; of lists the last first."""
    yield path
    value = at(request, path)
    keys = list(value) if isinstance(value, dict) else range(len(value))[::-1] if isinstance(value, list) else ()
    for key in keys:
        yield from _removals(request, (*path, key))
