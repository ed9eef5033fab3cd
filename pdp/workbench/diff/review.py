"""Describe each cause of a bundle diff for a reviewer: one sentence, the call that shows it, and the changed lines.

A cause is a changed field, rule or value of the data. A difference in decisions belongs to the cause whose concern the
decisions name. Differences without a cause are listed separately.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any, Final, NamedTuple

from pdp.documents import read_document
from pdp.manifest.diff import ContentChange, Direction
from pdp.workbench.diff.exercise import rule_text
from pdp.workbench.diff.groups import Group, shortened, shown_value
from pdp.workbench.diff.policies import BundlePair
from pdp.workbench.diff.result import BundleDiff, ReviewItem
from pdp.workbench.diff.structure import Structure
from pdp.workbench.scenarios.files.suite import Suite, place_of_datum, place_of_field
from pdp.workbench.shown_file import shown_file

UNSEEN: Final = "unseen"
_ORDER: Final = (Direction.LOOSENS, UNSEEN, Direction.UNCLEAR, Direction.TIGHTENS)
_MOST_LINES: Final = 12


class _Words(NamedTuple):
    """How to describe a change of a field: a sentence, the words for a missing value, and the concerns that read it."""

    sentence: str
    nothing: str = "not stated"
    concerns: str = ""


_IS: Final = "{field} of {tool} is {new}; before, it was {old}"
_FIELDS: Final = {
    "scopes": _Words("Calling {tool} requires {new}; before, {old}", "no scope", "scopes delegation effects"),
    "limits": _Words("Limits of {tool}: {new}; before, {old}", "none", "limits approvals delegation"),
    "markings": _Words("Markings that {tool} may touch: {new}; before, {old}", "none", "markings delegation"),
    "purposes": _Words("{tool} may be called for {new}; before, for {old}", "any purpose", "purposes delegation"),
    "risk_tier": _Words("The risk tier of {tool} is {new}; before, {old}", concerns="risk approvals"),
    "effect_class": _Words(_IS, concerns="effects approvals purposes scopes markings"),
    "pattern": _Words(_IS, concerns="effects provenance markings"),
    "approval.approvers": _Words("Approvers of {tool}: {new}; before, {old}", "none", "approvals"),
    "approval": _Words(_IS, concerns="approvals limits"),
    "idempotency": _Words(_IS, concerns="idempotency"),
    "provenance.required": _Words("{tool} must name sources in {new}; before, {old}", "none", "provenance"),
    "contract": _Words("{tool}: {what}", concerns="none"),
    "tools": _Words("{tool} {what}"),
    "manifest": _Words("Manifest {what}"),
    "agents": _Words("{field} is pinned to {new}; before, to {old}", "nothing", "manifest"),
}
"""How to describe a change of a field, by the field's dotted name or by the first part of the name."""

_VERBS: Final = {"deny": "denies", "step_up": "needs approval", "allow": "allows", "obligations": "sets obligations"}


@dataclass(slots=True)
class _Cause:
    """A cause: its changes, the codes and concerns (`known_by`) by which decisions show it, and its report texts."""

    changes: list[ContentChange]
    tool: str
    known_by: frozenset[str]
    sentence: str
    where: str
    text: tuple[str, ...]

    def weight(self, group: Group) -> int:
        """Return how likely this cause explains a group of differences; 0 means that the cause does not explain it."""
        if self.tool and self.tool not in (*group.tools, group.smallest.call.tool):
            return 0
        for weight, names in ((4, group.change.deciding), (2, group.change.names)):
            if self.known_by & {*names}:
                return weight + 1
            if self.known_by & {name.partition(".")[0] for name in names}:
                return weight
        return int(not self.known_by)


def review(pair: BundlePair, diff: BundleDiff, suites: Sequence[Suite]) -> tuple[ReviewItem, ...]:
    """Return the items to review, the most dangerous first. The files of `suites` are used to locate changed fields."""
    structure = diff.structure
    causes = [*_entries(structure, suites), *_rules(pair, structure), *_data(structure, suites)]
    below: dict[int, list[Group]] = defaultdict(list)
    unexplained: dict[str, Group] = {}
    for group in diff.groups:
        weights = [cause.weight(group) for cause in causes]
        if any(weights):
            below[weights.index(max(weights))].append(group)
        else:
            unexplained.setdefault(group.id, group)
    unseen = diff.unseen()
    items = [_item(cause, below[number], unseen, structure) for number, cause in enumerate(causes)]
    for group in unexplained.values():
        whose = ", ".join(group.tools) or "tools that no manifest has"
        sentence = f"Calls of {whose} are decided differently; no listed change explains it."
        items.append(ReviewItem(group.change.direction, sentence, group.call, ids=_ids([group])))
    items += [ReviewItem(UNSEEN, f"{words}.", ids=(name,)) for name, words in unseen.items()]
    return tuple(sorted(items, key=lambda item: _ORDER.index(item.direction)))


def _item(cause: _Cause, groups: Sequence[Group], unseen: dict[str, str], structure: Structure) -> ReviewItem:
    """Return the review item of a cause with its differences. Entries of `unseen` about the cause are removed."""
    begins = tuple(begin for change in cause.changes for begin in (change.line, f"{change.name}: `"))
    hidden = [name for name, words in unseen.items() if words.startswith(begins)]
    for name in hidden:
        del unseen[name]
    loosening = {change.line for change in cause.changes if change.direction is Direction.LOOSENS}
    ids = [name for name, line in structure.loosenings().items() if line in loosening]
    ids += [*_ids(groups), *hidden]
    directions: set[str] = {
        *(change.direction for change in cause.changes),
        *(group.change.direction for group in groups),
    }
    directions |= {UNSEEN} if hidden else set()
    call = min(groups, key=lambda group: group.change.rank).call if groups else ""
    if hidden:
        call = f"{call}; no call shows the whole change" if call else "no call shows its effect"
    direction = min(directions, key=_ORDER.index)
    return ReviewItem(direction, cause.sentence, call, cause.where, cause.text, tuple(dict.fromkeys(ids)))


def _ids(groups: Sequence[Group]) -> tuple[str, ...]:
    return tuple(group.id for group in groups if group.change.direction is Direction.LOOSENS)


def _entries(structure: Structure, suites: Sequence[Suite]) -> Iterator[_Cause]:
    fields: dict[tuple[str, str], list[ContentChange]] = defaultdict(list)
    for change in structure.manifests:
        tool, _, field = change.name.rpartition(": ")
        # A replaced manifest is not listed itself, because the changes of its fields are listed.
        if field != "manifest" or None in (change.old, change.new):
            fields[tool, field].append(change)
    for (tool, field), changes in fields.items():
        words = _FIELDS.get(field) or _FIELDS.get(field.partition(".")[0], _Words(_IS))
        old, new = changes[0].old, changes[0].new
        # For purposes, None means that any purpose is allowed, and an empty list means that no purpose is allowed.
        before, after = (
            "no purpose" if field == "purposes" and value == [] else _value(value) or words.nothing
            for value in (old, new)
        )
        sentence = words.sentence.format(tool=tool, field=field, old=before, new=after, what=changes[0].what)
        text = () if "{what}" in words.sentence else _changed_lines(field, old, new)
        where = next((_place_of(suite, tool, field) for suite in suites if tool in suite.manifest.tools), "")
        yield _Cause(changes, tool, frozenset(words.concerns.split()), f"{sentence}.", where, text)


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


def _rules(pair: BundlePair, structure: Structure) -> Iterator[_Cause]:
    changed = {change.name: change for change in structure.rules}
    for name, (before, after) in pair.differing.items():
        rule = (after or before)[0]
        if "head" not in rule.node:
            continue  # A changed import alone has no effect, so it is not listed.
        kind = "added" if not before else "removed" if not after else "changed"
        package, _, helper = name.partition(" ")
        concern = package.rpartition("concerns.")[2] if helper else name.partition(".")[0]
        if rule.site is None:
            sentence = f"The helper {helper} of {concern} was {kind}."
        else:
            sentence = f"A rule of {concern} was {kind}: {name}, which {_VERBS[rule.site.part]}. "
            sentence += rule.site.description or rule.site.title
        sides = ((rule_text(pair.old, rule) for rule in before), (rule_text(pair.new, rule) for rule in after))
        first, second = ("\n\n".join(side).splitlines() for side in sides)
        lines = [f"{line[0]} {line[1:].expandtabs(4)}" for line in unified_diff(first, second, n=0)
                 if not line.startswith(("---", "+++", "@@")) and line[1:].strip()]  # fmt: skip
        more = [f"  … {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
        # Any concern may use a library, so a change in a library is not assigned to one concern.
        known_by = frozenset(() if "lib." in package else (name, concern))
        where, text = rule.place.rpartition("!")[2], (*lines[:_MOST_LINES], *more)
        yield _Cause([changed[name]], "", known_by, sentence, where, text)


def _data(structure: Structure, suites: Sequence[Suite]) -> Iterator[_Cause]:
    files = next(filter(None, (suite.files["data"] for suite in suites)), ())
    documents = [read_document(file) for file in files] if structure.data else []
    for change in structure.data:
        old, new = ("not stated" if value is None else shown_value(value) for value in (change.old, change.new))
        path = tuple(change.name.split("."))
        place = place_of_datum(documents, path) if documents else None
        where = "" if place is None else f"{shown_file(place.file)}:{place.line}"
        known_by = path[1:2] if path[0] == "settings" else ("markings", "documents", "effects", "planning")
        # The text of the change shows where a long value begins to differ.
        long = old.endswith("…") or new.endswith("…")
        sentence = f"{change.line}." if long else f"{change.name} is {new}; before, {old}."
        text = _changed_lines(change.name, change.old, change.new)
        yield _Cause([change], "", frozenset(known_by), sentence, where, text)
