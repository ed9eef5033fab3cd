"""Compile the schemas of tools to validators (draft 2020-12, no network), and close them against unknown arguments.

Unknown formats are errors. Patterns have no look-around or back-references, so that they run in linear time.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from jsonschema_rs import Draft202012Validator, RegexOptions, meta

from pdp.documents.document import Path
from pdp.errors import UsageError
from pdp.json import thawed
from pdp.manifest.schema.cost import MAX_COST, SchemaCost
from pdp.manifest.schema.references import referred, self_contained, subschemas, with_parts

# Keywords through which other schemas can name properties of the same object.
_IN_PLACE: Final = ("$ref", "allOf", "anyOf", "dependentSchemas", "else", "if", "oneOf", "then")
NOT_A_SCHEMA: Final = "check this part against JSON Schema draft 2020-12"
# Schemas below these keywords are not closed, because closing them would reject properties of other branches or reverse
# a negation.
_APPLIED: Final = (*_IN_PLACE[1:], "contains", "not", "propertyNames")
_STATED: Final = ("additionalProperties", "unevaluatedProperties")


def closed_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the schema whose objects reject unnamed properties, unless the schema explicitly allows these.

    Schemas in `allOf`, `if`, `not` and similar keywords are not changed, because another branch may name the property.
    """
    closed: dict[str, Any] = _closed(schema, _applied_definitions(schema), root=True)
    return closed


def _closed(schema: Any, applied: frozenset[str], *, root: bool = False) -> Any:
    if not isinstance(schema, dict):
        return schema

    def part(inner: Any, place: Path) -> Any:
        stays = place[0] in _APPLIED or "/".join(map(str, ("#", *place))) in applied
        return inner if stays else _closed(inner, applied)

    closed = with_parts(schema, part)
    if any(key in schema for key in _STATED):
        return closed
    return closed | _closing(schema, applied, root=root)


def _closing(schema: dict[str, Any], applied: frozenset[str], *, root: bool) -> dict[str, bool]:
    beside = [key for key in _IN_PLACE if key in schema]
    named = root or "properties" in schema
    if not beside:
        return {"additionalProperties": False} if named else {}
    # A schema that is only a reference is closed at its target, unless the target must stay open. Other objects are
    # closed around their branches.
    if beside == ["$ref"] and not named and schema["$ref"] not in applied:
        return {}
    # If no branch names a property, the object stays as open as the schema declares it.
    named = named or any("properties" in part or "$ref" in part for _, part in subschemas(schema))
    return {"unevaluatedProperties": False} if named else {}


def _applied_definitions(schema: dict[str, Any]) -> frozenset[str]:
    """Return the definitions, by reference, that must stay open because other schemas apply to the same object."""
    beside: list[dict[str, Any]] = []
    for _, part in subschemas(schema):
        beside += [{key: part[key]} for key in _APPLIED if key in part]
        if "$ref" in part and (part is schema or {"properties", *_IN_PLACE[1:]} & part.keys()):
            beside.append({"$ref": part["$ref"]})
    return frozenset(referred({"allOf": beside}, schema))


class SchemaValidator:
    """An immutable compiled schema. `is_valid` has no cost limit; for values above `free_bytes` bytes, call `lines`."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        if not meta.is_valid(schema):
            _validator(schema)  # This raises an error with the reason.
        # A schema that costs too much is rejected before the library compiles it, which would also take long.
        self._cost = SchemaCost(schema)
        self.free_bytes = self._cost.free_bytes
        self.is_valid: Callable[[Any], bool] = _validator(schema).is_valid

    def lines(self, value: Any, name: str) -> list[str]:
        """Return sorted faults as `NAME.PATH: message`; only one fault if the value is large or expensive to check."""
        return self.explained(value, name)[0]

    def explained(self, value: Any, name: str) -> tuple[list[str], list[dict[str, Any]]]:
        """Return `lines`, and the same faults as objects `{argument, rule, expected, found}` for programs.

        `rule` is a JSON Schema keyword, `expected` its value (null if long), and `found` the type of the faulty value.
        """
        cost = self._cost.of(value)
        if cost > MAX_COST:
            return [
                f"{name}: too expensive to validate: it may take {cost} steps, but at most {MAX_COST} are allowed"
            ], []
        if self.is_valid(value):
            return [], []
        from pdp.manifest.schema.explain import value_faults  # noqa: PLC0415 - only needed for invalid values

        return value_faults(self._explaining, self._schema, value, name, cost)

    @cached_property
    def _explaining(self) -> Draft202012Validator:
        from pdp.manifest.schema.explain import with_one_branch  # noqa: PLC0415 - only needed for invalid values

        return _validator(with_one_branch(self._schema, self._cost.recursive))


def compile_schema(schema: dict[str, Any]) -> SchemaValidator:
    """Compile a draft 2020-12 schema. Raise `UsageError` if it is invalid, or if validations would be too expensive."""
    whole, faults = self_contained(schema, {})
    if faults:
        raise UsageError(f"JSON Schema: {faults[0].message}", hint=faults[0].hint)
    return SchemaValidator(thawed(whole))  # The validation library accepts only plain lists.


def _validator(schema: dict[str, Any]) -> Draft202012Validator:
    try:
        return Draft202012Validator(
            schema,
            offline=True,
            validate_formats=True,
            ignore_unknown_formats=False,
            pattern_options=RegexOptions(size_limit=10_000_000, dfa_size_limit=10_000_000),
        )
    except (ValueError, TypeError) as error:
        raise UsageError(f"JSON Schema: {str(error).splitlines()[0]:.200}", hint=NOT_A_SCHEMA) from None
