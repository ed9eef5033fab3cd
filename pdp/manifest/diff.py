"""Compare two manifests: signature changes that need a new version, and governance changes.

A governance change loosens the rules if more calls are allowed after it, and tightens the rules if fewer are allowed. A
change is unclear if it may do both, or if only a person can judge it. pdp/manifest/effective.py defines "stricter".
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

from pdp.json import pointer
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.exports import described
from pdp.manifest.fields import EffectClass, FlowProfile, Integrity, Otherwise, RiskTier, Writes, duration_seconds
from pdp.manifest.model import MAX_ARGUMENTS, Tool
from pdp.manifest.roles import RoleNames
from pdp.manifest.rules.paths import mapped_values
from pdp.manifest.schema.differences import Bump, SchemaChange, schema_changes


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


_DESCRIPTION: Final = SchemaChange("description", "", _CHANGED, Bump.PATCH)


@dataclass(frozen=True, slots=True)
class ToolDiff:
    """A tool that was added, removed or changed (`kind`). `signature` is empty unless the tool was changed."""

    tool: str
    kind: str
    old_version: str | None
    new_version: str | None
    signature: tuple[SchemaChange, ...] = ()
    governance: tuple[ContentChange, ...] = ()

    @property
    def needed(self) -> Bump:
        """The smallest version bump that covers all signature changes."""
        return max((change.bump for change in self.signature), default=Bump.NONE)

    @property
    def fault(self) -> str | None:
        """Why the new version is too low for the signature changes, or None. Patch changes need no new version."""
        if self.kind != _CHANGED or (self.old_version is None and self.needed < Bump.MINOR):
            return None
        if self.new_version is None:
            return "has no version, although its signature or version changed"
        if self.old_version is None:
            return None
        old, new = Version.parse(self.old_version), Version.parse(self.new_version)
        if new < old:
            return f"version {new} is lower than {old}"
        # A pre-release of the lowest sufficient version is sufficient too.
        least = old.bump_major() if self.needed is Bump.MAJOR else old.bump_minor()
        if self.needed >= Bump.MINOR and new.finalize_version() < least:
            return f"a {self.needed.word} change from version {old} to {new} needs at least {least}"
        return None


@dataclass(frozen=True, slots=True)
class ManifestDiff:
    """The differences between two effective manifests: changed tools, and changed versions that agents pin."""

    old_version: str
    new_version: str
    old_digest: str
    new_digest: str
    tools: tuple[ToolDiff, ...]
    pins: tuple[ContentChange, ...]

    @property
    def faults(self) -> tuple[str, ...]:
        """A message for each tool whose new version is too low for its changes."""
        return tuple(f"{tool.tool}: {tool.fault}" for tool in self.tools if tool.fault)

    def directions(self) -> frozenset[Direction]:
        """Return the directions of all governance changes."""
        changes = [*self.pins, *(change for tool in self.tools for change in tool.governance)]
        return frozenset(change.direction for change in changes)

    def as_json(self) -> dict[str, Any]:
        """Return the object that `pdp manifest diff --json` prints. Its keys are the same in all releases."""
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
    """Return the differences between two manifests that affect the model or the policy.

    A changed description needs a patch bump, and a breaking change a major bump, also below version 1.0.0. Service
    levels (`sla`) are not compared.

    Args:
        old: the manifest before the change.
        new: the manifest after the change.

    Examples:
        >>> from pdp.files import load_effective
        >>> old, new = load_effective("manifest.json"), load_effective("manifest.json", "governance.yaml")
        >>> [tool.tool for tool in manifest_diff(old, new).tools]
        ['initiate_wire', 'lookup_beneficiary', 'validate_payment']
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
                words = f"window of {was['limit']}: {_replaced(*windows)}"
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
