"""The governance changes between two effective entries of a tool, and between the pins of agents.

A governance change loosens the rules if more calls are allowed after it, and tightens the rules if fewer are allowed. A
change is unclear if it may do both, or if only a person can judge it. pdp/manifest/effective.py defines "stricter".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile
from operator import not_
from typing import Any, Final

from pdp.json import pointer
from pdp.manifest.fields import (
    READ_CLASSES,
    EffectClass,
    FlowProfile,
    Integrity,
    Otherwise,
    RiskTier,
    Writes,
    duration_seconds,
)
from pdp.manifest.model import MAX_ARGUMENTS
from pdp.manifest.roles import RoleNames
from pdp.manifest.rules.paths import mapped_values


class Direction(StrEnum):
    """The effect of a governance change: more calls are allowed (LOOSENS), fewer calls (TIGHTENS), or unknown."""

    LOOSENS = "loosens"
    TIGHTENS = "tightens"
    UNCLEAR = "unclear"

    @property
    def opposite(self) -> Direction:
        """LOOSENS for TIGHTENS, and TIGHTENS for LOOSENS."""
        return Direction.LOOSENS if self is Direction.TIGHTENS else Direction.TIGHTENS


_LOOSENS, _TIGHTENS, _UNCLEAR = Direction.LOOSENS, Direction.TIGHTENS, Direction.UNCLEAR
_CHANGED: Final = "changed"
_ARGUMENTS: Final = re.compile(r"\barguments\b")
_SESSION: Final = re.compile(r"\$.*\bsession\b", re.DOTALL)
_CONSTANT: Final = re.compile(r""" "[^"]*" | '[^']*' | \b(?:\d[\d.]*|true|false)\b """, re.VERBOSE)
_LONGEST: Final = 160
_BEFORE: Final = 20


@dataclass(frozen=True, slots=True)
class ContentChange:
    """A governance change of the field `name`. `old` and `new` are JSON, a digest, or None for an absent field."""

    name: str
    direction: Direction
    old: Any
    new: Any
    what: str
    where: str = ""

    @property
    def line(self) -> str:
        """The change as one line of text, with both values if a new value replaces an old value."""
        words = _replaced(self.old, self.new) if self.what == _CHANGED else self.what
        return f"{self.name}: {words}"

    @property
    def word(self) -> str:
        """The direction; `narrower (proved)` if no rule of the baseline decides any request less strictly after it.

        A concern of your own that reads the entry may decide otherwise.
        """
        field = self.name.rpartition(": ")[2]
        proved = field.partition(".")[0] in _PROVED or field in _PROVED
        is_narrower = self.direction is Direction.TIGHTENS and proved and not self.what.startswith(_WINDOW)
        return "narrower (proved)" if is_narrower else self.direction.value


def _replaced(old: Any, new: Any) -> str:
    texts = [
        "not stated" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for value in (old, new)
    ]
    long = any(len(text) > _LONGEST for text in texts)
    same = sum(1 for _ in takewhile(lambda letters: letters[0] == letters[1], zip(*texts, strict=False)))
    start = max(0, same - _BEFORE) if long else 0
    return " -> ".join(
        f"{'…' if start else ''}{text[start : start + _LONGEST]}{'…' if len(text) > start + _LONGEST else ''}"
        for text in texts
    )


# The policy reads these fields, and a stricter value never lets it decide less strictly. The window of a limit is left
# out, because the enforcement point computes the sums.
_PROVED: Final = frozenset((
    "admits", "agents", "approval.approvers", "approval.expires", "approval.lasting.max", "approval.lasting.reaches",
    "approval.lasting.uses", "approval.quorum", "approval.unless_within_limits", "destructive", "effect_class",
    "flow.otherwise", "flow.profile", "flow.rules", "idempotency.required", "limits", "provenance.required", "purposes",
    "risk_tier", "scopes", "tools",
))  # fmt: skip
_WINDOW: Final = "window of "


def pin_changes(
    old: Mapping[str, Mapping[str, str]] | None, new: Mapping[str, Mapping[str, str]] | None
) -> Iterator[ContentChange]:
    """Yield the changes of pinned tool versions, by agent. Pins of None mean that any agent may use any version."""
    words = ("pinned", "no longer pinned", "pinned to another version")
    if old is None or new is None:
        if old != new:
            yield _change("agents", old, new, comes=_TIGHTENS, words=words)
        return
    before = {(agent, tool): version for agent, pins in old.items() for tool, version in pins.items()}
    after = {(agent, tool): version for agent, pins in new.items() for tool, version in pins.items()}
    for pin in sorted(before.keys() | after.keys()):
        if before.get(pin) != after.get(pin):
            yield _change(f"agents.{'.'.join(pin)}", before.get(pin), after.get(pin), comes=_LOOSENS, words=words)


def _change(
    field: str, old: Any, new: Any, *, comes: Direction, words: Sequence[str] = ("added", "removed", _CHANGED)
) -> ContentChange:
    if old is None:
        return ContentChange(field, comes, old, new, words[0])
    if new is None:
        return ContentChange(field, comes.opposite, old, new, words[1])
    return ContentChange(field, _UNCLEAR, old, new, words[2])


# The rank of each demand; a higher rank is stricter. A tool without an effect class cannot be compared, because it only
# needs the scope, and limits can replace its approval. With a derived idempotency key, the session need not have a key.
_RANKS: Final[dict[str, Callable[[Any], float | None]]] = {
    "risk_tier": list(RiskTier).index,
    "effect_class": lambda name: None if name is None else list(EffectClass).index(name),
    "approval.quorum": int,
    "approval.expires": lambda duration: -duration_seconds(duration),
    "approval.unless_within_limits": not_,
    "approval.lasting.max": lambda duration: -duration_seconds(duration or "PT0S"),
    "approval.lasting.uses": lambda uses: -(uses or 0),
    "idempotency.required": bool,
    "idempotency.key": not_,
    "safety.error_text": not_,
    "program.operands": not_,
    "max_bytes": lambda size: -(size or MAX_ARGUMENTS),
    "destructive": bool,
    "writes": list(Writes).index,
    "flow.otherwise": lambda verdict: verdict == Otherwise.DENY,
    "flow.profile": lambda name: -1 if name is None else list(FlowProfile).index(name),
    "result.integrity": lambda name: name != Integrity.TRUSTED,
}
# Fields with sets. An additional member either adds a demand or allows more. None has a different meaning in each
# field.
_SETS: Final = dict.fromkeys((
    "scopes", "provenance.required", "sensitive", "safety.requires", "flow.rules", "result.markings",
), _TIGHTENS) | dict.fromkeys((
    "accepts", "approval.approvers", "approval.lasting.free", "approval.lasting.reaches", "commits",
    "program.options", "program.subcommands", "purposes", "admits",
    "result.created", "result.names", "result.trusted",
), _LOOSENS)  # fmt: skip
_LABELS: Final = frozenset(("admits", "destructive", "flow", "result", "roles"))
# The rank of the checks on an argument's role. An additional argument that names the target adds a check, but may also
# make the call acceptable.
_WEIGHTS: Final = {None: 0, "body": 1, "value": 2, "object": 3, "destination": 4, "url": 4, "address": 4}
# What changes if a field is added at all: without `purposes` any purpose is allowed, and a program that is not listed
# does not run.
_STATED: Final = {
    "purposes": (_TIGHTENS, ("restricted", "no longer restricted")),
    "program": (_LOOSENS, ("listed", "no longer listed")),
}
# Fields that define the tool itself or the request to the policy. Only a person can judge whether such a change loosens
# the rules.
_WEIGHED: Final = (
    "approval.lasting.by",
    "cli", "compensation", "config", "pdp_action", "pattern", "retries", "state", "timeout",
    "type", "idempotency.ttl", "safety.side_effects", "safety.idempotent", "release.deprecation",
    "ontology_pin", "id", "program.path", "contract",
)  # fmt: skip
_WORDS: Final = {"contract": "schemas, mapping, invariants or execution changed: see `pdp manifest diff`"}


def entry_changes(name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> tuple[ContentChange, ...]:
    """Return the governance changes between two effective entries of a tool, sorted by field.

    Raises KeyError, TypeError, ValueError or AttributeError for an entry that no loader has checked.
    """
    if old is None or new is None:
        words = ("may be called now", "may no longer be called")
        return (_change("tools", name if old else None, name if new else None, comes=_LOOSENS, words=words),)
    before, after = _flat(old), _flat(new)
    # Data that the parties of a conversation wrote is trusted more than untrusted data and less than data of the
    # system.
    trusted = before.get("result.integrity") == after.get("result.integrity") == Integrity.TRUSTED
    sets = {**_SETS, "result.parties": _TIGHTENS if trusted else _LOOSENS}
    changes = [
        *_rank_changes(before, after),
        *(change for name, more in sets.items() for change in _set_changes(name, before, after, more=more)),
        *_limits(before, after),
        *_markings(before, after),
        *_roles(before, after),
        *(
            _change(name, before.get(name), after.get(name), comes=comes, words=words)
            for name, (comes, words) in _STATED.items()
            if (before.get(name) is None) != (after.get(name) is None)
        ),
        *_invariants(before, after),
        *_mappings(before, after),
        *(
            ContentChange(name, _UNCLEAR, before.get(name), after.get(name), _WORDS.get(name, _CHANGED))
            for name in _WEIGHED
            if before.get(name) != after.get(name)
        ),
    ]
    changes = [_with_other_fields(change, before, after) for change in changes]
    if ("flow" in before) != ("flow" in after):
        # If only one of the two versions uses labels, every label in it is stricter than no labels.
        used = _TIGHTENS if "flow" in after else _LOOSENS
        changes = [
            replace(change, direction=used) if change.name.partition(".")[0] in _LABELS else change
            for change in changes
        ]
    return tuple(sorted(changes, key=lambda change: (change.name, change.direction)))


def _flat(entry: Mapping[str, Any]) -> dict[str, Any]:
    nested = {
        f"{name}.{field}": value
        for name in ("approval", "flow", "idempotency", "program", "provenance", "release", "result", "safety")
        for field, value in entry.get(name, {}).items()
    }
    lasting = {"reaches": [], "free": [], **(entry.get("approval", {}).get("lasting") or {})}
    nested |= {f"approval.lasting.{field}": value for field, value in lasting.items()}
    return {**entry, **nested, "accepts": list(entry.get("accepts", ()))}


def _rank_changes(before: dict[str, Any], after: dict[str, Any]) -> Iterator[ContentChange]:
    for name, rank in _RANKS.items():
        old, new = before.get(name), after.get(name)
        old_rank, new_rank = rank(old), rank(new)
        if old_rank != new_rank:
            direction = _UNCLEAR
            if old_rank is not None and new_rank is not None:
                direction = _TIGHTENS if new_rank > old_rank else _LOOSENS
            yield ContentChange(name, direction, old, new, _CHANGED)


def _with_other_fields(change: ContentChange, before: dict[str, Any], after: dict[str, Any]) -> ContentChange:
    """Return the change with another direction if it tightens its own field, but may allow more because of others."""
    was, now = before.get("effect_class"), after.get("effect_class")
    needs_approval = after["risk_tier"] == RiskTier.HIGH or now == EffectClass.COMMIT_HIGH
    loosens = {
        # A gate with the clause "scope" allows nothing as long as the entry names no scope.
        "scopes": not before["scopes"] and (now != EffectClass.PURE or "pattern" in after),
        # Without a limit, no call keeps the limits, so every call needs the approval.
        "limits": not before.get("limits") and needs_approval and bool(after.get("approval.unless_within_limits")),
    }
    unclear = {
        # Only the gate of `read-external` demands a purpose, and each pattern denies all classes but one. Labels find
        # other things in a tool that writes.
        "effect_class": (was == EffectClass.READ_EXTERNAL and "purposes" not in after)
        or ("flow" in before and was in READ_CLASSES and now not in READ_CLASSES)
        or "pattern" in {**before, **after},
        # The step-up of a limit takes the place of the step-up of the risk tier, and a grant may clear it.
        "limits": bool(after.get("approval.lasting.reaches")),
        # Fewer calls are similar to the approved call, but a grant now clears the links in this argument.
        "approval.lasting.free": True,
        # A tool of these classes with a body carries a message, so its target may be a party of the conversation.
        "roles": now in (EffectClass.STAGE, EffectClass.COMMIT_LOW),
        # The corrected call may be allowed.
        "invariants": isinstance(change.new, dict) and isinstance(change.new.get("correct"), dict),
    }
    if change.direction is not _TIGHTENS:
        return change
    names = (change.name, change.name.partition(".")[0])
    if any(loosens.get(name) for name in names):
        return replace(change, direction=_LOOSENS)
    return replace(change, direction=_UNCLEAR) if any(unclear.get(name) for name in names) else change


def _set_changes(
    name: str, before: dict[str, Any], after: dict[str, Any], *, more: Direction
) -> Iterator[ContentChange]:
    old, new = before.get(name), after.get(name)
    if name in _STATED and (old is None or new is None):
        return
    if added := _missing(new, old):
        yield ContentChange(name, more, old, new, f"added {_listed(added)}")
    if removed := _missing(old, new):
        yield ContentChange(name, more.opposite, old, new, f"removed {_listed(removed)}")


def _missing(values: list[Any] | None, others: list[Any] | None) -> list[Any]:
    return [value for value in values or () if value not in (others or ())]


def _listed(values: list[Any]) -> str:
    # The keys are sorted in reverse, so that `limit` is shown before `argument`.
    return ", ".join(
        value if isinstance(value, str) else " ".join(str(value[key]) for key in sorted(value, reverse=True))
        for value in values
    )


def _limits(before: dict[str, Any], after: dict[str, Any]) -> Iterator[ContentChange]:
    """Yield changes of limits. A longer window is stricter, because the limit then covers the sum of more calls."""
    old, new = before.get("limits", []), after.get("limits", [])
    rest = {"limits": list(old)}
    for was in _missing(old, new):
        for now in _missing(new, old):
            windows = was.get("window"), now.get("window")
            if was | {"window": None} == now | {"window": None} and all(isinstance(window, str) for window in windows):
                direction = _TIGHTENS if duration_seconds(windows[1]) > duration_seconds(windows[0]) else _LOOSENS
                words = f"{_WINDOW}{was['limit']}: {_replaced(*windows)}"
                yield ContentChange("limits", direction, old, new, words)
                rest["limits"][old.index(was)] = now
    yield from _set_changes("limits", rest, after, more=_TIGHTENS)


def _markings(before: dict[str, Any], after: dict[str, Any]) -> Iterator[ContentChange]:
    """Yield two changes for each changed marking, because a marking of an entry has two opposite effects.

    An added marking lets the tool use data with this marking. But data of unknown markings counts as having all of the
    entry's markings, so the use of such data needs one more clearance (policies/authz/lib/resource/resource.rego).
    """
    old, new = before.get("markings"), after.get("markings")
    for values, verb, touches, clears in (
        (_missing(new, old), "added", "may be touched", "needs clearance for it"),
        (_missing(old, new), "removed", "may no longer be touched", "no longer needs clearance for it"),
    ):
        if values:
            direction = _LOOSENS if verb == "added" else _TIGHTENS
            subject = f"{verb} {_listed(values)}: data"
            yield ContentChange("markings", direction, old, new, f"{subject} with this marking {touches}")
            yield ContentChange("markings", direction.opposite, old, new, f"{subject} of unknown markings {clears}")


def _roles(before: dict[str, Any], after: dict[str, Any]) -> Iterator[ContentChange]:
    old, new = before.get("roles", {}), after.get("roles", {})
    names, new_names = RoleNames(old), RoleNames(new)
    for name in sorted(old.keys() | new.keys()):
        # A part of an argument without a role of its own has the role of the argument.
        path = name if name.startswith("/") else pointer(name)
        was, now = old.get(names.of(path)), new.get(new_names.of(path))
        if was != now:
            direction = _LOOSENS if _WEIGHTS[now] < _WEIGHTS[was] else _UNCLEAR
            direction = _TIGHTENS if was is None and now == "body" else direction
            yield ContentChange(f"roles.{name}", direction, was, now, _CHANGED)


def _mappings(before: dict[str, Any], after: dict[str, Any]) -> Iterator[ContentChange]:
    """Yield mapping changes. A change loosens the rules if it lets model arguments or a constant set the value."""
    for field in ("resource", "context"):
        old, new = (
            {".".join(map(str, path)): value for path, value in mapped_values(entry.get(field), (field,))}
            for entry in (before, after)
        )
        for name in (name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)):
            was, now = old.get(name), new.get(name)
            direction, words = _UNCLEAR, _CHANGED
            if _reads_arguments(now) and not _reads_arguments(was):
                direction, words = _LOOSENS, f"now from the model's arguments: {_replaced(was, now)}"
            elif _SESSION.match(str(was)) and _constants(now) - _constants(was):
                direction, words = _LOOSENS, f"may now be a constant: {_replaced(was, now)}"
            yield ContentChange(name, direction, was, now, words)


def _constants(value: Any) -> frozenset[str]:
    if isinstance(value, str) and value.startswith("$"):
        return frozenset(_CONSTANT.findall(value))
    return frozenset() if value is None else frozenset((json.dumps(value),))


def _reads_arguments(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("$") and _ARGUMENTS.search(value) is not None


def _invariants(before: dict[str, Any], after: dict[str, Any]) -> Iterator[ContentChange]:
    old, new = (
        {rule["id"]: {name: value for name, value in rule.items() if name != "rule"} for rule in rules}
        for rules in (before.get("invariants", ()), after.get("invariants", ()))
    )
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            yield _change(f"invariants.{name}", old.get(name), new.get(name), comes=_TIGHTENS)
