"""JSON Schemas of tools: closed against unknown arguments, and compiled to validators (draft 2020-12, no network).

Decided here: formats are asserted, and an unknown one is an error, since it would never be checked; patterns run on a
linear-time engine without look-around and back-references, so that no argument can make one run for ever; a number is
a number, so that neither "47500" nor true is one.
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

# Keywords by which other schemas of the same object may name its properties.
_IN_PLACE: Final = ("$ref", "allOf", "anyOf", "dependentSchemas", "else", "if", "oneOf", "then")
NOT_A_SCHEMA: Final = "write what draft 2020-12 of JSON Schema admits here"
# Keywords whose schemas stay as they are: closing them would refuse what another branch names, or turn a negation.
_APPLIED: Final = (*_IN_PLACE[1:], "contains", "not", "propertyNames")
_STATED: Final = ("additionalProperties", "unevaluatedProperties")


def closed_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema, closed: an object admits no property that it does not name, unless it states otherwise.

    That holds for the arguments and for nested objects that name properties. Inside of `allOf`, `anyOf`, `oneOf`, `if`,
    `not` and the like nothing is closed, since a property may be named in another branch; there the object around them
    is closed as a whole.
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


class SchemaValidator:
    """A compiled schema. Immutable and safe to share between threads.

    Attributes:
        free_bytes: a value of at most so many bytes, as JSON, is never too much work.
        is_valid: whether a value passes. It cannot be interrupted: for a larger value than `free_bytes`, ask `lines`.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        if not meta.is_valid(schema):
            _validator(schema)  # which says why
        # A schema that costs too much is refused before the library reads it, which takes as long.
        self._cost = SchemaCost(schema)
        self.free_bytes = self._cost.free_bytes
        self.is_valid: Callable[[Any], bool] = _validator(schema).is_valid

    def lines(self, value: Any, name: str) -> list[str]:
        """Return where and why a value does not pass, sorted, as `NAME.PATH: message`; of a large value only one line.

        What is too much work to check does not pass. The lines are the same for the same value, which the library
        does not promise, and quote little of it.
        """
        return self.explained(value, name)[0]

    def explained(self, value: Any, name: str) -> tuple[list[str], list[dict[str, Any]]]:
        """Return `lines`, and `{argument, rule, expected, found}` of each that has a place, for programs.

        `argument` is where it is, `rule` the keyword, `expected` what the keyword demands (null where that is long),
        `found` the type of what is there: never a value.
        """
        cost = self._cost.of(value)
        if cost > MAX_COST:
            return [f"{name}: too much to check: the schema may take {cost} steps, at most {MAX_COST} are admitted"], []
        if self.is_valid(value):
            return [], []
        from pdp.manifest.schema.explain import value_faults  # noqa: PLC0415 - only where a value does not pass

        return value_faults(self._explaining, self._schema, value, name, cost)

    @cached_property
    def _explaining(self) -> Draft202012Validator:
        from pdp.manifest.schema.explain import with_one_branch  # noqa: PLC0415 - as above

        return _validator(with_one_branch(self._schema, self._cost.recursive))


def compile_schema(schema: dict[str, Any]) -> SchemaValidator:
    """Compile a schema of draft 2020-12; references may lead into the schema itself and into types.json.

    UsageError: not a schema, or one that cannot be checked reliably; the message says what is wrong.
    """
    whole, faults = self_contained(schema, {})
    if faults:
        raise UsageError(f"JSON Schema: {faults[0].message}", hint=faults[0].hint)
    return SchemaValidator(thawed(whole))  # the library takes no lists but plain ones


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
