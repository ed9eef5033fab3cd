"""Mutants of an effective manifest: an entry weakened in one place, named as a reviewer would, or no pins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from pdp.documents import read_document
from pdp.manifest.effective import made_of
from pdp.manifest.fields import EffectClass, Pattern, RiskTier, duration_seconds
from pdp.manifest.schema.references import SHARED_PREFIX
from pdp.workbench.mutation.mutant import Identities, ManifestMutant, difference, file_name
from pdp.workbench.neighbours.values import GONE, at

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pdp.documents import Document
    from pdp.errors import Place
    from pdp.manifest.effective import EffectiveManifest
    from pdp.manifest.model import Tool
    from pdp.workbench.neighbours.values import JsonPath
    from pdp.workbench.scenarios.files.suite import Suite

_LOWER: Final = {RiskTier.HIGH: RiskTier.MEDIUM, RiskTier.MEDIUM: RiskTier.LOW}
_LIGHTER: Final = {
    EffectClass.COMMIT_HIGH: EffectClass.COMMIT_LOW,
    EffectClass.COMMIT_LOW: EffectClass.STAGE,
    EffectClass.STAGE: EffectClass.READ_INTERNAL,
    EffectClass.READ_EXTERNAL: EffectClass.READ_INTERNAL,
    EffectClass.READ_INTERNAL: EffectClass.PURE,
}
# Patterns with rules of their own, beyond the class that they fix (tool pattern library, patterns 1, 5, 8 and 10).
_WEIGHTY: Final = frozenset((Pattern.EXTRACTION, Pattern.COMPOSITION, Pattern.AGGREGATION, Pattern.SEARCH))
_LONGER: Final = 10
_BOUNDS: Final = (
    "type", "enum", "const", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems",
)  # fmt: skip
_INSIDE: Final = ("properties", "$defs")


@dataclass(frozen=True, slots=True)
class Weakening:
    """An entry with one field changed.

    Attributes:
        kind: what was done.
        path: where it stands in the entry, as a manifest writes it.
        original, changed: that part, before and after, as a person would write it.
        tool: the entry as it is then.
    """

    kind: str
    path: tuple[str | int, ...]
    original: str
    changed: str
    tool: Tool


def stated(suite: Suite, setting: str) -> tuple[Path, ...]:
    """Return the files that a suite, or what it extends, states under `setting`; none when nobody does."""
    file = suite.file
    while True:
        settings = read_document(file).value
        if setting in settings:
            named = settings[setting]
            names = [named] if isinstance(named, str) else named or []
            return tuple(file.parent / name for name in names)
        if "extends" not in settings:
            return ()
        file = file.parent / settings["extends"]


class StatedFiles:
    """The manifest file of a suite, and its governance file if there is one."""

    def __init__(self, suite: Suite) -> None:
        self.manifest = stated(suite, "manifest")[0]
        self._manifest = read_document(self.manifest)
        governance = stated(suite, "governance")
        self._governance: Document | None = read_document(governance[0]) if governance else None

    def place(self, path: JsonPath) -> Place:
        """Return where something stands in the manifest file."""
        return self._manifest.place(path)

    def place_of(self, tool: str, action: str, path: JsonPath) -> Place:
        """Return where a part of an effective entry stands: in the manifest or, when it is not there, in the other."""
        value = self._manifest.value
        entries = value.get("tools") if isinstance(value, dict) else None
        index = next(
            (
                number
                for number, entry in enumerate(entries or ())
                if isinstance(entry, dict) and entry.get("name") == tool
            ),
            None,
        )
        base: JsonPath = () if index is None else ("tools", index)
        rules: JsonPath = ("actions", action)
        stated_here = at(value, (*base, path[0])) is not GONE
        if (
            self._governance is not None
            and not stated_here
            and at(self._governance.value, (*rules, path[0])) is not GONE
        ):
            return self._governance.place((*rules, *path))
        return self._manifest.place((*base, *path))


def manifest_mutants(manifest: EffectiveManifest, files: StatedFiles) -> list[ManifestMutant]:
    """Return the mutants of an effective manifest, none twice.

    Args:
        manifest: what manifest and governance file state together.
        files: both, for places.
    """
    identities = Identities(file_name(files.manifest))
    agents = manifest.document.get("agents")
    found: dict[str, ManifestMutant] = {}
    for tool in manifest.tools.values():
        before = _written(tool)
        for weakening in weakenings(tool):
            tools = {**manifest.tools, tool.name: weakening.tool}
            changed = made_of(manifest.version, tools, agents=agents)
            if changed.digest == manifest.digest:
                continue
            identity = identities.of(tool.name, weakening.kind, _named(weakening), weakening.changed)
            found.setdefault(
                changed.digest,
                ManifestMutant(
                    id=identity,
                    kind=weakening.kind,
                    owner=tool.name,
                    place=files.place_of(tool.name, tool.pdp_action, weakening.path),
                    original=weakening.original,
                    changed=weakening.changed,
                    diff=difference(f"{files.manifest}, {tool.name} in effect", before, _written(weakening.tool)),
                    manifest=changed,
                    tool=tool.name,
                ),
            )
    mutants = list(found.values())
    if agents is not None:
        mutants.append(_unpinned(manifest, agents, files, identities))
    return mutants


def _unpinned(
    manifest: EffectiveManifest, agents: dict[str, Any], files: StatedFiles, identities: Identities
) -> ManifestMutant:
    before = yaml.safe_dump({"agents": agents}, sort_keys=False)
    return ManifestMutant(
        id=identities.of("agents", "pins removed", before, ""),
        kind="pins removed",
        owner="agents",
        place=files.place(("agents",)),
        original=before,
        changed="",
        diff=difference(str(files.manifest), before, ""),
        manifest=made_of(manifest.version, manifest.tools, agents=None),
        tool=None,
    )


def _named(weakening: Weakening) -> str:
    """The way there without positions, which change with edits elsewhere, and what stood there."""
    way = ".".join(step for step in weakening.path if isinstance(step, str))
    return f"{way} {weakening.original}"


def _written(tool: Tool) -> str:
    entry = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
    return yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=100)


def weakenings(tool: Tool) -> Iterator[Weakening]:
    """Yield every weakening of an effective entry."""
    yield from _classes(tool)
    for field, kind in (("scopes", "scope dropped"), ("limits", "limit dropped"), ("markings", "marking dropped")):
        yield from _shortened(tool, field, kind)
    yield from _markings(tool)
    yield from _purposes(tool)
    yield from _idempotency(tool)
    yield from _approval(tool)
    yield from _provenance(tool)
    for field in ("resource", "context"):
        yield from _mapping(tool, field)
    yield from _shortened(tool, "invariants", "invariant dropped")
    yield from _schema(tool)


def _with(tool: Tool, **changes: Any) -> Tool:
    return tool.model_copy(update=changes)


def _classes(tool: Tool) -> Iterator[Weakening]:
    lower = _LOWER.get(tool.risk_tier)
    if lower is not None:
        changed = _with(tool, risk_tier=lower)
        yield Weakening("tier lowered", ("risk_tier",), f"risk_tier: {tool.risk_tier}", f"risk_tier: {lower}", changed)
    lighter = _LIGHTER.get(tool.effect_class) if tool.effect_class else None
    if lighter is not None:
        before, after = f"effect_class: {tool.effect_class}", f"effect_class: {lighter}"
        changed = _with(tool, effect_class=lighter)
        yield Weakening("effect class lightened", ("effect_class",), before, after, changed)
    if tool.pattern in _WEIGHTY:
        changed = _with(tool, pattern=None)
        yield Weakening("pattern dropped", ("pattern",), f"pattern: {tool.pattern}", "", changed)


def _shortened(tool: Tool, field: str, kind: str) -> Iterator[Weakening]:
    items = getattr(tool, field) or ()
    for index, item in enumerate(items):
        rest = (*items[:index], *items[index + 1 :])
        yield Weakening(kind, (field, index), f"{field}: {_shown(item)}", "", _with(tool, **{field: rest}))


def _markings(tool: Tool) -> Iterator[Weakening]:
    # Of one marking, dropping it has emptied the list.
    if tool.markings and len(tool.markings) > 1:
        before = f"markings: [{', '.join(tool.markings)}]"
        yield Weakening("markings emptied", ("markings",), before, "markings: []", _with(tool, markings=()))


def _purposes(tool: Tool) -> Iterator[Weakening]:
    if tool.purposes is None:
        return
    before = f"purposes: [{', '.join(tool.purposes)}]"
    yield Weakening("purposes removed", ("purposes",), before, "", _with(tool, purposes=None))
    if tool.purposes:
        yield Weakening("purposes emptied", ("purposes",), before, "purposes: []", _with(tool, purposes=()))


def _idempotency(tool: Tool) -> Iterator[Weakening]:
    stated = tool.idempotency
    if stated.required:
        off = stated.model_copy(update={"required": False})
        yield Weakening(
            "idempotency off", ("idempotency",), "required: true", "required: false", _with(tool, idempotency=off)
        )
        if stated.key is not None:
            underived = stated.model_copy(update={"key": None})
            changed = _with(tool, idempotency=underived)
            yield Weakening("derived key dropped", ("idempotency", "key"), f"key: {stated.key}", "", changed)


def _approval(tool: Tool) -> Iterator[Weakening]:
    approval = tool.approval
    approvers = approval.approvers or ()

    def changed(kind: str, field: str, before: str, after: str, value: Any) -> Weakening:
        copy = _with(tool, approval=approval.model_copy(update={field: value}))
        return Weakening(kind, ("approval", field), before, after, copy)

    for index, role in enumerate(approvers):
        rest = (*approvers[:index], *approvers[index + 1 :])
        yield changed("approver dropped", "approvers", f"approvers: {role}", "", rest)
    if approval.quorum > 1:
        before, after = f"quorum: {approval.quorum}", f"quorum: {approval.quorum - 1}"
        yield changed("quorum lowered", "quorum", before, after, approval.quorum - 1)
    if tool.limits:
        other = not approval.unless_within_limits
        before, after = (f"unless_within_limits: {str(value).lower()}" for value in (not other, other))
        yield changed(f"unless_within_limits {'on' if other else 'off'}", "unless_within_limits", before, after, other)
    if approvers:
        longer = f"PT{duration_seconds(approval.expires) * _LONGER:g}S"
        yield changed("expiry longer", "expires", f"expires: {approval.expires}", f"expires: {longer}", longer)


def _provenance(tool: Tool) -> Iterator[Weakening]:
    required = tool.provenance.required
    for index, name in enumerate(required):
        rest = tool.provenance.model_copy(update={"required": (*required[:index], *required[index + 1 :])})
        changed = _with(tool, provenance=rest)
        yield Weakening("provenance dropped", ("provenance", "required", index), f"provenance: {name}", "", changed)


def _mapping(tool: Tool, field: str) -> Iterator[Weakening]:
    mapping = getattr(tool, field) or {}
    for key, value in mapping.items():
        # A resource without type and id is refused for what it is.
        if field == "resource" and key in {"type", "id"}:
            continue
        rest = {name: each for name, each in mapping.items() if name != key}
        yield Weakening(f"{field} field dropped", (field, key), f"{key}: {value}", "", _with(tool, **{field: rest}))


def _schema(tool: Tool) -> Iterator[Weakening]:
    for path, before, after, schema in loosened(tool.schema_):
        changed = _with(tool, schema_=schema)
        yield Weakening("schema loosened", ("schema", *path), before, after, changed)
    if "additionalProperties" not in tool.schema_:
        open_ = tool.schema_ | {"additionalProperties": True}
        changed = _with(tool, schema_=open_)
        yield Weakening("schema loosened", ("schema",), "", "additionalProperties: true", changed)


def loosened(schema: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str, str, dict[str, Any]]]:  # noqa: C901 - one branch for each rule that a schema can have
    """Yield a schema with one rule less each: the way to it, it, what stands there then, and the whole schema."""
    required = schema.get("required")
    if isinstance(required, list):
        for index, name in enumerate(required):
            rest = [*required[:index], *required[index + 1 :]]
            yield ("required", index), f"required: {name}", "", schema | {"required": rest}
    if schema.get("additionalProperties") is False:
        before, after = "additionalProperties: false", "additionalProperties: true"
        yield ("additionalProperties",), before, after, schema | {"additionalProperties": True}
    for name in _BOUNDS:
        if name in schema and not (name == "type" and schema["type"] == "object"):
            rest_ = {key: value for key, value in schema.items() if key != name}
            yield (name,), f"{name}: {schema[name]}", "", rest_
    for name in _INSIDE:
        for key, inner in (schema.get(name) or {}).items():
            # A shared type is no statement of the manifest's: it only refers to it.
            shared = name == "$defs" and key.startswith(SHARED_PREFIX)
            if isinstance(inner, dict) and not shared:
                for path, before, after, changed in loosened(inner):
                    yield (name, key, *path), before, after, schema | {name: schema[name] | {key: changed}}
    if isinstance(schema.get("items"), dict):
        for path, before, after, changed in loosened(schema["items"]):
            yield ("items", *path), before, after, schema | {"items": changed}


def _shown(item: Any) -> str:
    if isinstance(item, str):
        return item
    stated = item.model_dump(mode="json", exclude_none=True)
    return str(stated.get("limit", stated.get("id", stated)))
