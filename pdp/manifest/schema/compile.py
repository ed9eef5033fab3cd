"""JSON Schemas of tools: closed against unknown arguments, and compiled to validators (draft 2020-12, no network).

Decided here: formats are asserted, and an unknown one is an error, since it would never be checked; patterns run on a
linear-time engine without look-around and back-references, so that no argument can make one run for ever; a number is
a number, so that neither "47500" nor true is one.
"""

import re
from collections.abc import Callable, Container, Iterable
from functools import cached_property
from typing import Any, Final

import orjson
from jsonschema_rs import Draft202012Validator, ValidationError

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
_INTO_BRANCH: Final = re.compile(r"/(anyOf|oneOf)/(\d+)")
_LONGEST_MESSAGE: Final = 300
# Every fault is listed where their messages have at most so many characters, and these beside what they quote: at most
# the value and the schema.
_MOST_MESSAGES: Final = 16_000_000
_OF_MESSAGE: Final = 8_000
_STATED: Final = ("additionalProperties", "unevaluatedProperties")
_TYPES: Final = {
    dict: "object", list: "array", str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null",
}  # fmt: skip


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
        import jsonschema_rs  # noqa: PLC0415  # not needed to import the package

        self._schema = schema
        if not jsonschema_rs.meta.is_valid(schema):
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
        errors = list(self._errors(value, cost))
        lines = sorted(
            f"{name}{_shortened(_path_text(error.instance_path))}: {_shortened(error.message)}" for error in errors
        )
        details = sorted(map(_detail, errors), key=orjson.dumps)
        return lines or [f"{name}: is refused by the schema, and too large to say where"], details

    def _errors(self, value: Any, cost: int) -> Iterable[ValidationError]:
        if cost * (_OF_MESSAGE + len(orjson.dumps(value)) + len(str(self._schema))) <= _MOST_MESSAGES:
            return self._explaining.iter_errors(value)
        # To say where takes as long as to look whether it passes.
        return _first_error(self._explaining, value) if cost <= MAX_COST // 2 else ()

    @cached_property
    def _explaining(self) -> Draft202012Validator:
        return _validator(_with_one_branch(self._schema, self._cost.recursive))


def _detail(error: ValidationError) -> dict[str, Any]:
    path, rule = list(error.instance_path), error.kind.name
    expected: Any = error.kind.value
    instance: Any = error.instance
    if rule == "required":
        path, expected, instance = [*path, expected], True, None
    elif rule in _STATED:
        name = min(expected)
        path, expected, instance = [*path, name], False, instance[name]
    elif rule == "unevaluatedItems":  # the library has the items there
        expected = False
    try:
        expected = expected if len(orjson.dumps(expected)) <= _LONGEST_MESSAGE else None
    except TypeError:  # errors of the branches, none of which fits
        expected = None
    at = _shortened(_path_text(path).removeprefix("."))
    return {"argument": at, "rule": rule, "expected": expected, "found": _TYPES.get(type(instance), "other")}


def _path_text(path: Iterable[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def _first_error(validator: Draft202012Validator, value: Any) -> list[ValidationError]:
    import jsonschema_rs  # noqa: PLC0415  # not needed to import the package

    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        return [error]
    return []


def _shortened(message: str) -> str:
    """Return a message with its end, which says what is wrong: its beginning quotes the value."""
    message = message.replace(
        "under any of the schemas listed in the 'oneOf'", "under exactly one schema of the 'oneOf'"
    )
    if len(message) <= _LONGEST_MESSAGE:
        return message
    return f"{message[: _LONGEST_MESSAGE // 2]} ... {message[5 - _LONGEST_MESSAGE // 2 :]}"


def _with_one_branch(schema: Any, recursive: Container[int]) -> Any:
    """Return a schema that admits the same, and says of its branches and what is recursive only that none fits.

    The library lists every error of every branch, and those of their branches, before it reports the first one; and it
    follows a recursive reference as often as it meets it. Of a condition it asks only whether it holds.
    """
    if not isinstance(schema, dict):
        return schema
    copy = with_parts(schema, lambda part, _: _with_one_branch(part, recursive))
    for key in ("anyOf", "oneOf"):
        if key in copy:
            copy[key] = [{"if": {key: copy[key]}, "else": False}]
    if "$ref" in copy:
        copy["$ref"] = _INTO_BRANCH.sub(r"/\1/0/if/\1/\2", copy["$ref"])
        if id(schema) in recursive:
            condition = {"if": {"$ref": copy.pop("$ref")}, "else": False}
            copy["allOf"] = [*copy.get("allOf", ()), {"anyOf": [condition]}]
    return copy


def compile_schema(schema: dict[str, Any]) -> SchemaValidator:
    """Compile a schema of draft 2020-12; references may lead into the schema itself and into types.json.

    UsageError: not a schema, or one that cannot be checked reliably; the message says what is wrong.
    """
    whole, faults = self_contained(schema, {})
    if faults:
        raise UsageError(f"JSON Schema: {faults[0].message}", hint=faults[0].hint)
    return SchemaValidator(thawed(whole))  # the library takes no lists but plain ones


def _validator(schema: dict[str, Any]) -> Draft202012Validator:
    import jsonschema_rs  # noqa: PLC0415  # not needed to import the package

    try:
        return jsonschema_rs.Draft202012Validator(
            schema,
            offline=True,
            validate_formats=True,
            ignore_unknown_formats=False,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=10_000_000, dfa_size_limit=10_000_000),
        )
    except (ValueError, TypeError) as error:
        raise UsageError(f"JSON Schema: {str(error).splitlines()[0]:.200}", hint=NOT_A_SCHEMA) from None
