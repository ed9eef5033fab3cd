"""JSON Schemas of tools: closed against unknown arguments, and compiled to validators (draft 2020-12, no network).

Decided here: formats are asserted, and an unknown one is an error, since it would never be checked; patterns run on a
linear-time engine without look-around and back-references, so that no argument can make one run for ever; a number is
a number, so that neither "47500" nor true is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdp.errors import UsageError
from pdp.json import thawed
from pdp.manifest.schema.references import referred, self_contained, subschemas, with_parts

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator

    from pdp.manifest.schema.references import Place

# Keywords by which other schemas of the same object may name its properties.
_IN_PLACE: Final = ("$ref", "allOf", "anyOf", "dependentSchemas", "else", "if", "oneOf", "then")
# Keywords whose schemas stay as they are: closing them would refuse what another branch names, or turn a negation.
_APPLIED: Final = (*_IN_PLACE[1:], "contains", "not", "propertyNames")
_STATED: Final = ("additionalProperties", "unevaluatedProperties")


def closed_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema, closed: an object admits no property that it does not name, unless it states otherwise.

    That holds for the arguments and for plain nested objects that name properties, wherever they stand: in properties,
    items and definitions. Inside of `allOf`, `anyOf`, `oneOf`, `if`, `not` and the like nothing is closed, since a
    property may be named in another branch; there the object around them is closed as a whole. A nested object that
    names no properties stays as free as it is stated.
    """
    closed: dict[str, Any] = _closed(schema, _applied_definitions(schema), root=True)
    return closed


def _closed(schema: Any, applied: frozenset[str], *, root: bool = False) -> Any:
    if not isinstance(schema, dict):
        return schema

    def part(inner: Any, place: Place) -> Any:
        stays = place[0] in _APPLIED or "/".join(map(str, ("#", *place))) in applied
        return inner if stays else _closed(inner, applied)

    closed = with_parts(schema, part)
    if any(key in schema for key in _STATED):
        return closed
    return closed | _closing(schema, applied, root=root)


def _closing(schema: dict[str, Any], applied: frozenset[str], *, root: bool) -> dict[str, bool]:
    """Return the keyword that closes an object, if it needs one."""
    beside = [key for key in _IN_PLACE if key in schema]
    named = root or "properties" in schema
    if not beside:
        return {"additionalProperties": False} if named else {}
    # A reference by itself is closed where it leads, unless that had to stay open; the rest around its branches.
    if beside == ["$ref"] and not named and schema["$ref"] not in applied:
        return {}
    # Where no branch names a property there is nothing to hold others against: it stays as free as it is stated.
    named = named or any("properties" in part or "$ref" in part for _, part in subschemas(schema))
    return {"unevaluatedProperties": False} if named else {}


def _applied_definitions(schema: dict[str, Any]) -> frozenset[str]:
    """Return the references to what is, or may be, applied beside others to one object: it must stay open."""
    beside: list[dict[str, Any]] = []
    for _, part in subschemas(schema):
        beside += [{key: part[key]} for key in _APPLIED if key in part]
        if "$ref" in part and (part is schema or {"properties", *_IN_PLACE[1:]} & part.keys()):
            beside.append({"$ref": part["$ref"]})
    return frozenset(referred({"allOf": beside}, schema))


def fault_lines(validator: Draft202012Validator, value: Any, name: str, longest: int | None = None) -> list[str]:
    """Return why a schema refuses a value, `NAME.PATH: message`, each of at most `longest` characters; sorted.

    The validator lists members in the order of a hash map; the lines are the same for the same value.
    """
    lines = []
    for error in validator.iter_errors(value):
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
        lines.append(f"{name}{path}: {error.message}"[:longest])
    return sorted(lines)


def compile_schema(schema: dict[str, Any]) -> Draft202012Validator:
    """Compile a schema of draft 2020-12; references may lead into the schema itself and into types.json.

    Raises:
        UsageError: not a schema, or one that cannot be checked reliably; the message says what is wrong.
    """
    import jsonschema_rs  # noqa: PLC0415  # not needed to import the package

    whole, faults = self_contained(schema, {})
    if faults:
        raise UsageError(f"JSON Schema: {faults[0].message}", hint=faults[0].hint)
    try:
        return jsonschema_rs.Draft202012Validator(
            thawed(whole),  # the library takes no lists but plain ones
            offline=True,
            validate_formats=True,
            ignore_unknown_formats=False,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=1_000_000, dfa_size_limit=10_000_000),
        )
    except (ValueError, TypeError) as error:
        raise UsageError(f"JSON Schema: {str(error).splitlines()[0]}") from None
