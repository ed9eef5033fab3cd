"""Describe each change of a bundle diff for a reviewer: one sentence, the calls that it moves, and the changed lines.

A change is a changed field, rule or value of the data. Differences whose cause is unknown are listed separately.
"""

from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from difflib import unified_diff
from itertools import chain
from typing import Any, Final, NamedTuple

from pdp.documents import read_document
from pdp.manifest.diff import ContentChange, Direction
from pdp.workbench.diff.causes.changes import BundleChange, has_effect, rule_text
from pdp.workbench.diff.groups import Group, shortened, shown_value
from pdp.workbench.diff.policies import BundlePair
from pdp.workbench.diff.result import BundleDiff, CausedCall, ReviewItem
from pdp.workbench.diff.structure import Proof
from pdp.workbench.scenarios.files.suite import Suite, place_of_datum, place_of_field
from pdp.workbench.shown_file import shown_file

UNSEEN: Final = "unseen"
_ORDER: Final = (Direction.LOOSENS, UNSEEN, Direction.UNCLEAR, Direction.TIGHTENS)
_MOST_LINES: Final = 12
_OTHER: Final = Proof("not proved", "another change of the same finding admits more")
_PROVED: Final = {"wider": Direction.LOOSENS, "narrower": Direction.TIGHTENS}


class _Words(NamedTuple):
    """How to describe a change of a field: a sentence, and the words for a missing value."""

    sentence: str
    nothing: str = "not stated"


_IS: Final = "{field} of {tool} is {new}; before, it was {old}"
_FIELDS: Final = {
    "scopes": _Words("Calling {tool} requires {new}; before, {old}", "no scope"),
    "limits": _Words("Limits of {tool}: {new}; before, {old}", "none"),
    "markings": _Words("Markings that {tool} may touch: {new}; before, {old}", "none"),
    "purposes": _Words("{tool} may be called for {new}; before, for {old}", "any purpose"),
    "risk_tier": _Words("The risk tier of {tool} is {new}; before, {old}"),
    "effect_class": _Words(_IS),
    "pattern": _Words(_IS),
    "approval.approvers": _Words("Approvers of {tool}: {new}; before, {old}", "none"),
    "approval": _Words(_IS),
    "idempotency": _Words(_IS),
    "provenance.required": _Words("{tool} must name sources in {new}; before, {old}", "none"),
    "contract": _Words("{tool}: {what}"),
    "tools": _Words("{tool} {what}"),
    "manifest": _Words("Manifest {what}"),
    "agents": _Words("{field} is pinned to {new}; before, to {old}", "nothing"),
}
"""How to describe a change of a field, by the field's dotted name or by the first part of the name."""

_VERBS: Final = {"deny": "denies", "step_up": "needs approval", "allow": "allows", "obligations": "sets obligations"}


class Description(NamedTuple):
    """The texts that describe a change: a sentence, its location, and the changed lines."""

    sentence: str
    where: str
    text: tuple[str, ...]


def review(
    pair: BundlePair, diff: BundleDiff, changes: Sequence[BundleChange], suites: Sequence[Suite]
) -> tuple[ReviewItem, ...]:
    """Return the items to review, the most dangerous first. The files of `suites` are used to locate changed fields."""
    moved: dict[int, dict[str, tuple[Group, tuple[int, ...]]]] = defaultdict(dict)
    unexplained: dict[str, Group] = {}
    for group in diff.groups:
        if not group.causes:
            unexplained.setdefault(group.id, group)
        for cause in group.causes:
            for number in cause:
                moved[number].setdefault(group.id, (group, tuple(sorted(cause - {number}))))
    unseen = diff.unseen()
    loosened = {
        proof.request
        for number, change in enumerate(changes)
        if (proof := _proof(change, diff)) and any(map(_loosens, (group for group, _ in moved[number].values())))
    }
    descriptions = [description_of(pair, change, suites) for change in changes]
    items = []
    for number, change in enumerate(changes):
        # The first call is shown: the most dangerous effect, and among equals a call that this change moves alone.
        groups = sorted(moved[number].values(), key=_danger)
        # Other changed imports have no effect.
        if groups or any(map(has_effect, chain(*change.rules))) or not any(change.rules):
            calls = tuple(
                CausedCall(group.id, group.call, tuple(descriptions[other].sentence for other in others))
                for group, others in groups
            )
            parts = _item(change, [group for group, _ in groups], unseen, diff, loosened)
            items.append(replace(parts, **descriptions[number]._asdict(), calls=calls))
    for group in unexplained.values():
        whose = ", ".join(group.tools) or "tools that no manifest has"
        why = "its cause was not found in time" if diff.unfinished else "no listed change explains it"
        sentence = f"Calls of {whose} are decided differently; {why}."
        items.append(ReviewItem(group.change.direction, sentence, group.call, ids=_ids([group])))
    items += [ReviewItem(UNSEEN, f"{words}.", ids=(name,)) for name, words in unseen.items()]
    return tuple(sorted(items, key=lambda item: _ORDER.index(item.direction)))


def _danger(moved: tuple[Group, tuple[int, ...]]) -> tuple[Any, ...]:
    group, others = moved
    return *group.change.rank, len(others), not group.tools


def _item(
    change: BundleChange,
    groups: Sequence[Group],
    unseen: dict[str, str],
    diff: BundleDiff,
    loosened: AbstractSet[bytes | None],
) -> ReviewItem:
    """Return the item of a change without its description. Entries of `unseen` about the change are removed."""
    proof = _proof(change, diff)
    shows = any(map(_loosens, groups))
    if proof is not None and proof.word == "wider" and not shows and not proof.call and proof.request in loosened:
        proof = _OTHER
    begins = tuple(begin for content in change.contents for begin in (content.line, f"{content.name}: `"))
    hidden = [name for name, words in unseen.items() if words.startswith(begins)]
    for name in hidden:
        del unseen[name]
    loosening = {content.line for content in change.contents if content.direction is Direction.LOOSENS}
    ids = [name for name, line in diff.structure.loosenings().items() if line in loosening]
    ids += [diff.structure.id_of("proof", change.name)] if proof is not None and proof.call else []
    ids += [*_ids(groups), *hidden]
    call = groups[0].call if groups else ""
    if hidden:
        call = f"{call}; no call shows the whole change" if call else "no call shows its effect"
    text = "" if proof is None else f"wider: {call if shows else proof.call}" if proof.word == "wider" else proof.text
    direction = _direction(change, groups, hidden, proof)
    if proof is _OTHER and direction == Direction.TIGHTENS:
        text = ""  # a new denial, which needs no proof
    return ReviewItem(direction, "", call, ids=tuple(dict.fromkeys(ids)), proof=text)


def _direction(change: BundleChange, groups: Sequence[Group], hidden: Sequence[str], proof: Proof | None) -> str:
    """Return the most dangerous effect of a change and of the calls that it moves."""
    own = {content.direction for content in change.contents}
    if proof is not None and proof.word in _PROVED:
        own = {_PROVED[proof.word]}
    decided = {group.change.direction for group in groups}
    # A new denial tightens, even if some calls that were denied already get other reasons. A new helper does what the
    # decisions show.
    if Direction.UNCLEAR not in own:
        decided.discard(Direction.UNCLEAR)
    elif groups and change.rules and not all(change.rules):
        own.discard(Direction.UNCLEAR)
    return min({*own, *decided, *([UNSEEN] if hidden else [])}, key=_ORDER.index)


def _ids(groups: Sequence[Group]) -> tuple[str, ...]:
    return tuple(group.id for group in groups if _loosens(group))


def _loosens(group: Group) -> bool:
    return group.change.direction is Direction.LOOSENS


def _proof(change: BundleChange, diff: BundleDiff) -> Proof | None:
    return diff.structure.proofs.get(change.name) if any(change.rules) else None


def description_of(pair: BundlePair, change: BundleChange, suites: Sequence[Suite]) -> Description:
    """Return the texts that describe a change. The files of `suites` are used to locate changed fields."""
    if any(change.rules):
        return _of_rules(pair, change)
    first = change.contents[0]
    return _of_field(change, suites) if change.paths[0][0][0] == "manifests" else _of_datum(first, change, suites)


def _of_field(change: BundleChange, suites: Sequence[Suite]) -> Description:
    tool, field, first = change.tool, change.name, change.contents[0]
    words = _FIELDS.get(field) or _FIELDS.get(field.partition(".")[0], _Words(_IS))
    # For purposes, None means that any purpose is allowed, and an empty list means that no purpose is allowed.
    before, after = (
        "no purpose" if field == "purposes" and value == [] else _value(value) or words.nothing
        for value in (first.old, first.new)
    )
    sentence = words.sentence.format(tool=tool, field=field, old=before, new=after, what=first.what)
    text = () if "{what}" in words.sentence else _changed_lines(field, first.old, first.new)
    where = next((_place_of(suite, tool, field) for suite in suites if tool in suite.manifest.tools), "")
    return Description(f"{sentence}.", where, text)


def _place_of(suite: Suite, tool: str, field: str) -> str:
    stated, *governance = (read_document(file) for name in ("manifest", "governance") for file in suite.files[name])
    place = place_of_field(suite.manifest.tools[tool], tuple(field.split(".")), stated, governance)
    return f"{shown_file(place.file)}:{place.line}"


def _value(value: Any) -> str:
    if value in (None, [], {}):
        return ""
    return shortened(
        " and ".join(
            " of ".join(str(item[key]) for key in sorted(item, reverse=True))
            if isinstance(item, dict)
            else shown_value(item)
            for item in (value if isinstance(value, list) else [value])
        )
    )


def _changed_lines(name: str, old: Any, new: Any) -> tuple[str, ...]:
    sides = ((sign, value) for sign, value in (("-", old), ("+", new)) if value is not None)
    return tuple(f"{sign} {name}: {shown_value(value)}" for sign, value in sides)


def _of_rules(pair: BundlePair, change: BundleChange) -> Description:
    name, (before, after) = change.name, change.rules
    rule = (after or before)[0]
    kind = "added" if not before else "removed" if not after else "changed"
    package, _, helper = name.partition(" ")
    concern = package.rpartition("concerns.")[2]
    if "head" not in rule.node:
        sentence = f"Imports of {concern} were {kind}."
    elif rule.site is None:
        sentence = f"The helper {helper} of {concern} was {kind}."
    else:
        sentence = f"A rule of {rule.site.concern} was {kind}: {name}, which {_VERBS[rule.site.part]}. "
        sentence += rule.site.description or rule.site.title
    sides = ((rule_text(pair.old, rule) for rule in before), (rule_text(pair.new, rule) for rule in after))
    first, second = ("\n\n".join(side).splitlines() for side in sides)
    lines = [f"{line[0]} {line[1:].expandtabs(4)}" for line in unified_diff(first, second, n=0)
             if not line.startswith(("---", "+++", "@@")) and line[1:].strip()]  # fmt: skip
    more = [f"  … {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
    return Description(sentence, rule.place.rpartition("!")[2], (*lines[:_MOST_LINES], *more))


def _of_datum(content: ContentChange, change: BundleChange, suites: Sequence[Suite]) -> Description:
    files = next(filter(None, (suite.files["data"] for suite in suites)), ())
    old, new = ("not stated" if value is None else shown_value(value) for value in (content.old, content.new))
    place = place_of_datum([read_document(file) for file in files], change.paths[0][0]) if files else None
    where = "" if place is None else f"{shown_file(place.file)}:{place.line}"
    # The text of the change shows where a long value begins to differ.
    long = old.endswith("…") or new.endswith("…")
    sentence = f"{content.line}." if long else f"{content.name} is {new}; before, {old}."
    return Description(sentence, where, _changed_lines(content.name, content.old, content.new))
