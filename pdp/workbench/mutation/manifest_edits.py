"""The ways in which an effective entry is weakened in one place, named as a reviewer would name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.manifest.fields import EffectClass, Pattern, RiskTier, duration_seconds
from pdp.manifest.schema.references import SHARED_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdp.manifest.model import Tool

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
        path: the way to what was changed in the entry, as a manifest writes it.
        original, changed: that part, before and after, as a person would write it.
        tool: the entry as it is then.
    """

    kind: str
    path: tuple[str | int, ...]
    original: str
    changed: str
    tool: Tool


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
