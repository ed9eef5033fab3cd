"""Mutants of an effective manifest: an entry weakened in one place, named as a reviewer would, or no pins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import yaml
from pydantic import BaseModel

from pdp.documents import read_document
from pdp.manifest.effective import made_of
from pdp.manifest.fields import EffectClass, Pattern, RiskTier, duration_seconds
from pdp.manifest.schema.references import SHARED_PREFIX
from pdp.workbench.mutation.mutant import Identities, ManifestMutant, difference, file_name
from pdp.workbench.neighbours.values import GONE, at, edited

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

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
_WEIGHTY: Final = dict.fromkeys((Pattern.EXTRACTION, Pattern.COMPOSITION, Pattern.AGGREGATION, Pattern.SEARCH))
_LONGER: Final = 10
_BOUNDS: Final = (
    "type", "enum", "const", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems",
)  # fmt: skip
_LISTS: Final[tuple[tuple[str, JsonPath, str], ...]] = (
    ("scope dropped", ("scopes",), "scopes"),
    ("limit dropped", ("limits",), "limits"),
    ("marking dropped", ("markings",), "markings"),
    ("invariant dropped", ("invariants",), "invariants"),
    ("approver dropped", ("approval", "approvers"), "approvers"),
    ("provenance dropped", ("provenance", "required"), "provenance"),
)
"""Kind, way to the list, and what a list is called, of which each element is dropped."""


class Weakening(NamedTuple):
    """One field of an entry changed.

    Attributes:
        kind: what is done.
        path: where it stands in the entry, as a manifest writes it.
        original, changed: that part, before and after, as a person would write it.
        value: what stands there then; `GONE`: nothing.
    """

    kind: str
    path: JsonPath
    original: str
    changed: str
    value: Any


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
        self._governance = [read_document(file) for file in stated(suite, "governance")]

    def place(self, path: JsonPath) -> Place:
        """Return where something stands in the manifest file."""
        return self._manifest.place(path)

    def place_of(self, tool: Tool, path: JsonPath) -> Place:
        """Return where a part of an effective entry stands: in the manifest or, when it is not there, in the other."""
        entries = at(self._manifest.value, ("tools",))
        names = [at(entry, ("name",)) for entry in entries] if isinstance(entries, list) else []
        base: JsonPath = ("tools", names.index(tool.name)) if tool.name in names else ()
        if at(self._manifest.value, (*base, path[0])) is GONE:
            rules: JsonPath = ("actions", tool.pdp_action)
            for governance in self._governance:
                if at(governance.value, (*rules, path[0])) is not GONE:
                    return governance.place((*rules, *path))
        return self._manifest.place((*base, *path))


def manifest_mutants(manifest: EffectiveManifest, files: StatedFiles) -> list[ManifestMutant]:
    """Return the mutants of an effective manifest, none twice.

    Args:
        manifest: what manifest and governance file state together.
        files: both, for places.
    """
    identities = Identities(file_name(files.manifest))
    agents = manifest.document.get("agents")
    mutants: dict[str, ManifestMutant] = {}
    for tool in manifest.tools.values():
        for kind, path, original, changed, value in _weakenings(tool):
            weaker: Tool = _replaced(tool, path, value)
            mutated = made_of(manifest.version, {**manifest.tools, tool.name: weaker}, agents=agents)
            if mutated.digest == manifest.digest:
                continue
            # Without positions, which change with edits elsewhere.
            way = ".".join(step for step in path if isinstance(step, str))
            mutant = ManifestMutant(
                id=identities.of(tool.name, kind, f"{way} {original}", changed),
                kind=kind,
                owner=tool.name,
                place=files.place_of(tool, path),
                original=original,
                changed=changed,
                diff=difference(f"{files.manifest}, {tool.name} in effect", _written(tool), _written(weaker)),
                manifest=mutated,
                tool=tool.name,
            )
            mutants.setdefault(mutated.digest, mutant)
    if agents is None:
        return list(mutants.values())
    before = yaml.safe_dump({"agents": agents}, sort_keys=False)
    unpinned = ManifestMutant(
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
    return [*mutants.values(), unpinned]


def _written(tool: Tool) -> str:
    entry = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
    return yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=100)


def _replaced(holder: Any, path: JsonPath, value: Any) -> Any:
    """Return a part of an entry with something else at `path`; of a model, a field that is gone is None."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(holder, BaseModel):
        field = "schema_" if step == "schema" else str(step)
        inner = _replaced(getattr(holder, field), rest, value)
        return holder.model_copy(update={field: None if inner is GONE else inner})
    if isinstance(holder, tuple):
        return tuple(edited(list(holder), (path, value)))
    return edited(holder, (path, value))


def _weakenings(tool: Tool) -> Iterator[Weakening]:
    """Yield every weakening of an effective entry."""
    yield from _classes(tool)
    for kind, path, name in _LISTS:
        for index, item in enumerate(_part(tool, path) or ()):
            yield Weakening(kind, (*path, index), f"{name}: {_shown(item)}", "", GONE)
    yield from _emptied(tool)
    if tool.idempotency.required:
        path = ("idempotency", "required")
        yield Weakening("idempotency off", path, "required: true", "required: false", value=False)
        if tool.idempotency.key is not None:
            key = f"key: {tool.idempotency.key}"
            yield Weakening("derived key dropped", ("idempotency", "key"), key, "", GONE)
    yield from _approval(tool)
    for field in ("resource", "context"):
        for key, value in (getattr(tool, field) or {}).items():
            # A resource without type and id is refused for what it is.
            if field == "context" or key not in {"type", "id"}:
                yield Weakening(f"{field} field dropped", (field, key), f"{key}: {value}", "", GONE)
    yield from _loosened(tool.schema_, ("schema",))
    if "additionalProperties" not in tool.schema_:
        path = ("schema", "additionalProperties")
        yield Weakening("schema loosened", path, "", "additionalProperties: true", value=True)


def _classes(tool: Tool) -> Iterator[Weakening]:
    tables: tuple[tuple[str, str, Mapping[Any, Any]], ...] = (
        ("tier lowered", "risk_tier", _LOWER),
        ("effect class lightened", "effect_class", _LIGHTER),
        ("pattern dropped", "pattern", _WEIGHTY),
    )
    for kind, field, weaker in tables:
        stated_value = getattr(tool, field)
        if stated_value in weaker:
            value = weaker[stated_value]
            after = "" if value is None else f"{field}: {value}"
            yield Weakening(kind, (field,), f"{field}: {stated_value}", after, value)


def _emptied(tool: Tool) -> Iterator[Weakening]:
    # Of one marking, dropping it has emptied the list.
    if tool.markings and len(tool.markings) > 1:
        yield Weakening(
            "markings emptied", ("markings",), f"markings: [{', '.join(tool.markings)}]", "markings: []", ()
        )
    if tool.purposes is not None:
        before = f"purposes: [{', '.join(tool.purposes)}]"
        yield Weakening("purposes removed", ("purposes",), before, "", GONE)
        if tool.purposes:
            yield Weakening("purposes emptied", ("purposes",), before, "purposes: []", ())


def _approval(tool: Tool) -> Iterator[Weakening]:
    approval = tool.approval

    def changed(kind: str, field: str, before: Any, after: Any, value: Any) -> Weakening:
        return Weakening(kind, ("approval", field), f"{field}: {before}", f"{field}: {after}", value)

    if approval.quorum > 1:
        lower = approval.quorum - 1
        yield changed("quorum lowered", "quorum", approval.quorum, lower, lower)
    if tool.limits:
        other = not approval.unless_within_limits
        kind = f"unless_within_limits {'on' if other else 'off'}"
        yield changed(kind, "unless_within_limits", str(not other).lower(), str(other).lower(), other)
    if approval.approvers:
        longer = f"PT{duration_seconds(approval.expires) * _LONGER:g}S"
        yield changed("expiry longer", "expires", approval.expires, longer, longer)


def _loosened(schema: dict[str, Any], path: JsonPath) -> Iterator[Weakening]:
    """Yield each rule of a schema that can be taken away."""

    def loosened(step: JsonPath, original: str, changed: str = "", value: Any = GONE) -> Weakening:
        return Weakening("schema loosened", (*path, *step), original, changed, value)

    required = schema.get("required")
    for index, name in enumerate(required if isinstance(required, list) else ()):
        yield loosened(("required", index), f"required: {name}")
    if schema.get("additionalProperties") is False:
        name = "additionalProperties"
        yield loosened((name,), f"{name}: false", f"{name}: true", value=True)
    for name in _BOUNDS:
        if name in schema and not (name == "type" and schema["type"] == "object"):
            yield loosened((name,), f"{name}: {schema[name]}")
    # A shared type is no statement of the manifest's: it only refers to it.
    own = {key: inner for key, inner in (schema.get("$defs") or {}).items() if not key.startswith(SHARED_PREFIX)}
    inside: list[tuple[JsonPath, Any]] = [
        *((("properties", key), inner) for key, inner in (schema.get("properties") or {}).items()),
        *((("$defs", key), inner) for key, inner in own.items()),
        (("items",), schema.get("items")),
    ]
    for step, inner in inside:
        if isinstance(inner, dict):
            yield from _loosened(inner, (*path, *step))


def _part(tool: Tool, path: JsonPath) -> Any:
    part: Any = tool
    for step in path:
        part = getattr(part, str(step))
    return part


def _shown(item: Any) -> str:
    if isinstance(item, str):
        return item
    named = item.model_dump(mode="json", exclude_none=True)
    return str(named.get("limit", named.get("id", named)))
