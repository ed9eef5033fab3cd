"""JSON Schemas of tools: closed against unknown arguments, and compiled to validators (draft 2020-12, no network).

Decided here: formats are asserted, and an unknown one is an error, since it would never be checked; patterns run on a
linear-time engine without look-around and back-references, so that no argument can make one run for ever; a number is
a number, so that neither "47500" nor true is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from pdp.errors import UsageError
from pdp.manifest.schema.references import ReferenceFault, resolve, self_contained, subschemas

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Keywords by which other schemas of the same object may name its properties.
_IN_PLACE: Final = ("$ref", "allOf", "anyOf", "dependentSchemas", "else", "if", "oneOf", "then")
_UNTOUCHED: Final = (*_IN_PLACE, "contains", "not", "propertyNames")
_OPEN: Final = ("additionalProperties", "patternProperties", "unevaluatedProperties")


class SchemaError(Protocol):
    """One thing that is wrong with an instance: what, and where in it."""

    @property
    def message(self) -> str:
        """What is wrong."""

    @property
    def instance_path(self) -> Sequence[str | int]:
        """The way to the faulty part of the instance."""


class Validator(Protocol):
    """A compiled schema. Safe to share between threads."""

    def is_valid(self, instance: Any) -> bool:
        """Return whether the instance is valid."""

    def iter_errors(self, instance: Any) -> Iterator[SchemaError]:
        """Return what is wrong with the instance, in no fixed order."""


def closed_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema, closed: an object admits no property that it does not name, unless it states otherwise.

    That holds for the arguments and for plain nested objects that name properties, wherever they stand: in properties,
    items and definitions. Inside of `allOf`, `anyOf`, `oneOf`, `if`, `not` and the like nothing is closed, since a
    property may be named in another branch; there the object around them is closed as a whole. A nested object that
    names no properties stays as free as it is stated.
    """
    applied = _applied_definitions(schema)
    return _closed(schema, applied, root=True)


def _closed(schema: dict[str, Any], applied: frozenset[str], *, root: bool = False) -> dict[str, Any]:
    closed = dict(schema)
    for key in ("$defs", "patternProperties", "properties"):
        if isinstance(closed.get(key), dict):
            kept = applied if key == "$defs" else frozenset[str]()
            closed[key] = {
                name: one if name in kept else _closed_part(one, applied) for name, one in closed[key].items()
            }
    for key in ("items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties"):
        if key in closed:
            closed[key] = _closed_part(closed[key], applied)
    if isinstance(closed.get("prefixItems"), list):
        closed["prefixItems"] = [_closed_part(one, applied) for one in closed["prefixItems"]]
    if not any(key in closed for key in _OPEN):
        closed |= _closing(closed, applied, root=root)
    return closed


def _closing(schema: dict[str, Any], applied: frozenset[str], *, root: bool) -> dict[str, bool]:
    """Return the keyword that closes an object, if it needs one."""
    beside = [key for key in _IN_PLACE if key in schema]
    if not beside:
        return {"additionalProperties": False} if root or "properties" in schema else {}
    # A reference by itself is closed where it leads, unless that had to stay open; the rest around its branches.
    by_itself = beside == ["$ref"] and not root and "properties" not in schema
    if by_itself and _definition_name(schema["$ref"]) not in applied:
        return {}
    # Where no branch names a property there is nothing to hold others against: it stays as free as it is stated.
    named = root or any("properties" in one or "$ref" in one for _, one in subschemas(schema))
    return {"unevaluatedProperties": False} if named else {}


def _closed_part(schema: Any, applied: frozenset[str]) -> Any:
    return _closed(schema, applied) if isinstance(schema, dict) else schema


def _applied_definitions(schema: dict[str, Any]) -> frozenset[str]:
    """Return the definitions that are, or may be, applied beside others to one object: they must stay open."""
    found: set[str] = set()
    definitions = schema.get("$defs")
    for _, one in subschemas(schema):
        beside = bool(set(one) & {"properties", *_IN_PLACE} - {"$ref"}) or one is schema
        if "$ref" in one and beside:
            found.add(_definition_name(one["$ref"]))
        for key in _UNTOUCHED:
            if key == "$ref":
                continue
            inner = one.get(key)
            parts = list(inner.values()) if key == "dependentSchemas" and isinstance(inner, dict) else [inner]
            for part in [item for each in parts for item in (each if isinstance(each, list) else [each])]:
                found |= {_definition_name(deep["$ref"]) for _, deep in subschemas(part) if "$ref" in deep}
    # What an applied definition refers to is applied with it.
    reached: set[str] = set()
    while found - reached:
        name = (found - reached).pop()
        reached.add(name)
        inner = definitions.get(name) if isinstance(definitions, dict) else None
        found |= {_definition_name(deep["$ref"]) for _, deep in subschemas(inner) if "$ref" in deep}
    return frozenset(reached)


def _definition_name(reference: Any) -> str:
    return reference.removeprefix("#/$defs/") if isinstance(reference, str) else ""


def compile_schema(schema: dict[str, Any]) -> Validator:
    """Compile a schema of draft 2020-12; references may lead into the schema itself and into types.json.

    Raises:
        UsageError: not a schema, or one that cannot be checked reliably; the message says what is wrong.
    """
    import jsonschema_rs  # noqa: PLC0415  # not needed to import the package

    try:
        # The library's interface says more than what is needed here; `Validator` is the part that is.
        return cast(
            "Validator",
            jsonschema_rs.Draft202012Validator(
                self_contained(schema, {}),
                offline=True,
                validate_formats=True,
                ignore_unknown_formats=False,
                pattern_options=jsonschema_rs.RegexOptions(size_limit=1_000_000, dfa_size_limit=10_000_000),
            ),
        )
    except ReferenceFault as error:
        raise UsageError(f"JSON Schema: {error}", hint=error.hint) from None
    except (ValueError, TypeError) as error:
        raise UsageError(f"JSON Schema: {str(error).splitlines()[0]}") from None


def argument_schemas(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of each argument that a tool's schema names, also by `$ref` or `allOf`."""
    found: dict[str, Any] = {}
    pending: list[dict[str, Any]] = [schema]
    seen: set[int] = set()
    while pending:
        one = pending.pop(0)
        if id(one) in seen:
            continue  # references may lead in a circle
        seen.add(id(one))
        properties = one.get("properties")
        if isinstance(properties, dict):
            found |= {name: part for name, part in properties.items() if name not in found}
        target = resolve(schema, one["$ref"]) if isinstance(one.get("$ref"), str) else None
        branches = one.get("allOf")
        inner = [target, *(branches if isinstance(branches, list) else [])]
        pending += [part for part in inner if isinstance(part, dict)]
    return found
