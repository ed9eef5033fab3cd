"""The difference of two manifests: what breaks callers and asks for which version, and what is governed otherwise.

Where a change of governance admits more it loosens, where less it tightens; where it depends, or a person has to look,
it is unclear. "Stricter" means what it means where manifest and governance file are merged (pdp/manifest/effective.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import takewhile
from operator import not_
from typing import Any, Final

from semver import Version

from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.exports import described
from pdp.manifest.fields import EffectClass, FlowProfile, Integrity, Otherwise, RiskTier, Writes, duration_seconds
from pdp.manifest.model import MAX_ARGUMENTS, Tool
from pdp.manifest.rules.paths import mapped_values
from pdp.manifest.schema.differences import Bump, SchemaChange, schema_changes


class Direction(StrEnum):
    """Which way a change goes."""

    LOOSENS = "loosens"
    TIGHTENS = "tightens"
    UNCLEAR = "unclear"

    @property
    def opposite(self) -> Direction:
        """The way back, of one that loosens or tightens."""
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
    """One change of what a manifest or a bundle contains.

    `name` is a field of an entry, dotted; in a bundle also a reason code, or a path of data. `old` and `new` are plain
    JSON, None for what is not there, and a digest of what is too long to be shown. `where` has the places of rules.
    """

    name: str
    direction: Direction
    old: Any
    new: Any
    what: str
    where: str = ""

    @property
    def line(self) -> str:
        """The change in words, with both values where one replaces the other."""
        words = _replaced(self.old, self.new) if self.what == _CHANGED else self.what
        return f"{self.name}: {words}"


def _replaced(old: Any, new: Any) -> str:
    """Both values; of long ones the part from a little before the first letter that differs."""
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


_DESCRIPTION: Final = SchemaChange("description", "", _CHANGED, Bump.PATCH)


@dataclass(frozen=True, slots=True)
class ToolDiff:
    """One tool that differs; `kind` is `added`, `removed` or `changed`.

    Of one that was added or removed `signature` is empty, and `governance` says that one thing.
    """

    tool: str
    kind: str
    old_version: str | None
    new_version: str | None
    signature: tuple[SchemaChange, ...] = ()
    governance: tuple[ContentChange, ...] = ()

    @property
    def needed(self) -> Bump:
        """What the changes of the signature ask of the version."""
        return max((change.bump for change in self.signature), default=Bump.NONE)

    @property
    def fault(self) -> str | None:
        """What is wrong with the version, or None: the bump is there, and it did not go back. Text needs no bump."""
        if self.kind != _CHANGED or (self.old_version is None and self.needed < Bump.MINOR):
            return None
        if self.new_version is None:
            return "states no version, and its signature or its version changed"
        if self.old_version is None:
            return None
        old, new = Version.parse(self.old_version), Version.parse(self.new_version)
        if new < old:
            return f"version {new} is before {old}"
        # A pre-release of what is needed will do.
        least = old.bump_major() if self.needed is Bump.MAJOR else old.bump_minor()
        if self.needed >= Bump.MINOR and new.finalize_version() < least:
            return f"a {self.needed.word} change, and version {old} became {new}: at least {least}"
        return None


@dataclass(frozen=True, slots=True)
class ManifestDiff:
    """What differs between two effective manifests: the tools by name, and which agent may use which version."""

    old_version: str
    new_version: str
    old_digest: str
    new_digest: str
    tools: tuple[ToolDiff, ...]
    pins: tuple[ContentChange, ...]

    @property
    def faults(self) -> tuple[str, ...]:
        """A line for each tool whose version does not say what changed."""
        return tuple(f"{tool.tool}: {tool.fault}" for tool in self.tools if tool.fault)

    def directions(self) -> frozenset[Direction]:
        """Return which ways the changes of governance go."""
        changes = [*self.pins, *(change for tool in self.tools for change in tool.governance)]
        return frozenset(change.direction for change in changes)

    def as_json(self) -> dict[str, Any]:
        """Return the object that `pdp manifest diff --json` prints; its form is stable."""
        return {
            "old": {"version": self.old_version, "digest": self.old_digest},
            "new": {"version": self.new_version, "digest": self.new_digest},
            "tools": [
                asdict(tool)
                | {
                    "needed": tool.needed.word,
                    "fault": tool.fault,
                    "signature": [asdict(change) | {"bump": change.bump.word} for change in tool.signature],
                }
                for tool in self.tools
            ],
            "pins": [asdict(change) for change in self.pins],
            "faults": list(self.faults),
        }


def manifest_diff(old: EffectiveManifest, new: EffectiveManifest) -> ManifestDiff:
    """Return what differs. Service levels and the like are no difference here.

    What the model is told of a tool is a patch, as all text is. Breaking is major also below version 1.0.0.
    """
    tools = (
        _tool_diff(name, old.tools.get(name), new.tools.get(name))
        for name in sorted(old.tools.keys() | new.tools.keys())
    )
    return ManifestDiff(
        old_version=old.version,
        new_version=new.version,
        old_digest=old.digest,
        new_digest=new.digest,
        tools=tuple(tool for tool in tools if tool is not None),
        pins=tuple(pin_changes(old.document.get("agents"), new.document.get("agents"))),
    )


def _tool_diff(name: str, old: Tool | None, new: Tool | None) -> ToolDiff | None:
    versions = (old.version if old else None, new.version if new else None)
    before, after = (
        None if tool is None else tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in (old, new)
    )
    governance = entry_changes(name, before, after)
    if old is None or new is None:
        return ToolDiff(name, "removed" if old else "added", *versions, governance=governance)
    signature = (
        *schema_changes(old.schema_, new.schema_, "request"),
        *schema_changes(old.result_schema, new.result_schema, "response"),
        *((_DESCRIPTION,) if described(old) != described(new) else ()),
    )
    if not signature and not governance and old.version == new.version:
        return None
    return ToolDiff(name, _CHANGED, *versions, signature, governance)


def pin_changes(
    old: Mapping[str, Mapping[str, str]] | None, new: Mapping[str, Mapping[str, str]] | None
) -> Iterator[ContentChange]:
    """Yield what changed of which agent may use which version; None: any agent, any version."""
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
    """Return the change of what comes (`comes` is what that does), goes or is replaced, with the word for it."""
    if old is None:
        return ContentChange(field, comes, old, new, words[0])
    if new is None:
        return ContentChange(field, comes.opposite, old, new, words[1])
    return ContentChange(field, _UNCLEAR, old, new, words[2])


# What a field demands: more is stricter. Without an effect class the gate is the scope alone, and limits may excuse
# from approval: neither more nor less. An idempotency key that is derived need not be given.
_RANKS: Final[dict[str, Callable[[Any], float | None]]] = {
    "risk_tier": list(RiskTier).index,
    "effect_class": lambda name: None if name is None else list(EffectClass).index(name),
    "approval.quorum": int,
    "approval.expires": lambda duration: -duration_seconds(duration),
    "approval.unless_within_limits": not_,
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
# Sets of which each member is one more demand, or admits more; what None stands for is another matter of each.
_SETS: Final = dict.fromkeys((
    "scopes", "provenance.required", "sensitive", "safety.requires", "flow.rules", "result.markings",
), _TIGHTENS) | dict.fromkeys((
    "accepts", "approval.approvers", "commits", "program.options", "program.subcommands", "purposes", "admits",
    "result.created", "result.names", "result.trusted",
), _LOOSENS)  # fmt: skip
_LABELS: Final = frozenset(("admits", "destructive", "flow", "result", "roles"))
# How much is asked about an argument. One more that the call is aimed at is asked about, and may excuse the call.
_WEIGHTS: Final = {None: 0, "body": 1, "value": 2, "object": 3, "destination": 4, "url": 4, "address": 4}
# What it changes that a field is stated at all: without purposes any will do, a program that is not listed may not run.
_STATED: Final = {
    "purposes": (_TIGHTENS, ("restricted", "no longer restricted")),
    "program": (_LOOSENS, ("listed", "no longer listed")),
}
# What changes what the tool is, or what the policy is told about a call: only a person can say what follows.
_WEIGHED: Final = (
    "cli", "compensation", "config", "pdp_action", "pattern", "retries", "state", "timeout",
    "type", "idempotency.ttl", "safety.side_effects", "safety.idempotent", "release.deprecation",
    "ontology_pin", "id", "program.path", "contract",
)  # fmt: skip
_WORDS: Final = {"contract": "what a bundle has only a digest of changed (schemas, mapping, invariants, execution): "
                             "see `pdp manifest diff`"}  # fmt: skip


def entry_changes(name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> tuple[ContentChange, ...]:
    """Return what changed of what governs a tool, in the order of the fields' names.

    `old` and `new` are effective entries as plain JSON, whole or as a bundle has them; None: there is none.

    KeyError, TypeError, ValueError, AttributeError: an entry that no loader would have made.
    """
    if old is None or new is None:
        words = ("may be called now", "may no longer be called")
        return (_change("tools", name if old else None, name if new else None, comes=_LOOSENS, words=words),)
    before, after = _flat(old), _flat(new)
    # Who took part counts for more than a stranger's word, and for less than the system's.
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
    if ("flow" in before) != ("flow" in after):
        # Where labels are in use on one side alone, whatever they say there is more than nothing.
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
    # A limit stands before its argument, whatever the order of the keys is.
    return ", ".join(
        value if isinstance(value, str) else " ".join(str(value[key]) for key in sorted(value, reverse=True))
        for value in values
    )


def _limits(before: dict[str, Any], after: dict[str, Any]) -> Iterator[ContentChange]:
    """Yield which limits came and went, and whose window is another one: in a longer one a sum holds for longer."""
    old, new = before.get("limits", []), after.get("limits", [])
    rest = {"limits": list(old)}
    for was in _missing(old, new):
        for now in _missing(new, old):
            windows = was.get("window"), now.get("window")
            if was | {"window": None} == now | {"window": None} and all(isinstance(window, str) for window in windows):
                direction = _TIGHTENS if duration_seconds(windows[1]) > duration_seconds(windows[0]) else _LOOSENS
                words = f"window of {was['limit']}: {_replaced(*windows)}"
                yield ContentChange("limits", direction, old, new, words)
                rest["limits"][old.index(was)] = now
    yield from _set_changes("limits", rest, after, more=_TIGHTENS)


def _markings(before: dict[str, Any], after: dict[str, Any]) -> Iterator[ContentChange]:
    """Yield both sides of each change: what the tool may touch, and what clears for data whose markings nobody knows.

    Of such data the entry's markings count as the data's own (policies/authz/lib/resource/resource.rego).
    """
    old, new = before.get("markings"), after.get("markings")
    for values, verb, touches, clears in (
        (_missing(new, old), "added", "may be touched", "needs clearance for it"),
        (_missing(old, new), "removed", "may no longer be touched", "no longer needs clearance for it"),
    ):
        if values:
            direction = _LOOSENS if verb == "added" else _TIGHTENS
            subject = f"{verb} {_listed(values)}: data"
            yield ContentChange("markings", direction, old, new, f"{subject} so marked {touches}")
            yield ContentChange("markings", direction.opposite, old, new, f"{subject} of unknown markings {clears}")


def _roles(before: dict[str, Any], after: dict[str, Any]) -> Iterator[ContentChange]:
    old, new = before.get("roles", {}), after.get("roles", {})
    for name in sorted(old.keys() | new.keys()):
        was, now = old.get(name), new.get(name)
        if was != now:
            direction = _LOOSENS if _WEIGHTS[now] < _WEIGHTS[was] else _UNCLEAR
            direction = _TIGHTENS if was is None and now == "body" else direction
            yield ContentChange(f"roles.{name}", direction, was, now, _CHANGED)


def _mappings(before: dict[str, Any], after: dict[str, Any]) -> Iterator[ContentChange]:
    """Yield what the policy is told otherwise: a fact loosens that the model, or the manifest itself, now may state."""
    for field in ("resource", "context"):
        old, new = (
            {".".join(map(str, path)): value for path, value in mapped_values(entry.get(field), (field,))}
            for entry in (before, after)
        )
        for name in (name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)):
            was, now = old.get(name), new.get(name)
            direction, words = _UNCLEAR, _CHANGED
            if _of_model(now) and not _of_model(was):
                direction, words = _LOOSENS, f"from the model's arguments now: {_replaced(was, now)}"
            elif _SESSION.match(str(was)) and _constants(now) - _constants(was):
                direction, words = _LOOSENS, f"may be a constant now: {_replaced(was, now)}"
            yield ContentChange(name, direction, was, now, words)


def _constants(value: Any) -> frozenset[str]:
    if isinstance(value, str) and value.startswith("$"):
        return frozenset(_CONSTANT.findall(value))
    return frozenset() if value is None else frozenset((json.dumps(value),))


def _of_model(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("$") and _ARGUMENTS.search(value) is not None


def _invariants(before: dict[str, Any], after: dict[str, Any]) -> Iterator[ContentChange]:
    old, new = (
        {rule["id"]: {name: value for name, value in rule.items() if name != "rule"} for rule in rules}
        for rules in (before.get("invariants", ()), after.get("invariants", ()))
    )
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            yield _change(f"invariants.{name}", old.get(name), new.get(name), comes=_TIGHTENS)
