"""Explain why a value does not match a schema, as text and for programs. Imported when the first value is invalid."""

import re
from collections.abc import Container, Iterable
from typing import Any, Final

import orjson
from jsonschema_rs import Draft202012Validator, ValidationError

from pdp.manifest.schema.cost import MAX_COST
from pdp.manifest.schema.references import with_parts

_INTO_BRANCH: Final = re.compile(r"/(anyOf|oneOf)/(\d+)")
_LONGEST_MESSAGE: Final = 300
# If the messages of all faults are longer than this, not all are listed. A message may quote the value and the schema
# in addition to its fixed text.
_MOST_MESSAGES: Final = 16_000_000
_OF_MESSAGE: Final = 8_000
_CLOSED: Final = ("additionalProperties", "unevaluatedProperties")
_TYPES: Final = {
    dict: "object", list: "array", str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null",
}  # fmt: skip


def value_faults(
    validator: Draft202012Validator, schema: Any, value: Any, name: str, cost: int
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the faults of an invalid value as text and as objects. `validator` is compiled from `with_one_branch`."""
    errors: list[ValidationError] = []
    if cost * (_OF_MESSAGE + len(orjson.dumps(value)) + len(str(schema))) <= _MOST_MESSAGES:
        errors = list(validator.iter_errors(value))
    # Finding the first fault takes as long as validating the value again, so the cost may be at most half of the limit.
    elif cost <= MAX_COST // 2:
        errors = _first_error(validator, value)
    lines = sorted(
        f"{name}{_shortened(_path_text(error.instance_path))}: {_shortened(error.message)}" for error in errors
    )
    details = sorted(map(_detail, errors), key=orjson.dumps)
    return lines or [f"{name}: does not match the schema, and is too large to locate the fault"], details


def _detail(error: ValidationError) -> dict[str, Any]:
    path, rule = list(error.instance_path), error.kind.name
    expected: Any = error.kind.value
    instance: Any = error.instance
    if rule == "required":
        path, expected, instance = [*path, expected], True, None
    elif rule in _CLOSED:
        name = min(expected)
        path, expected, instance = [*path, name], False, instance[name]
    elif rule == "unevaluatedItems":  # For this keyword, the library puts the unexpected items there.
        expected = False
    try:
        expected = expected if len(orjson.dumps(expected)) <= _LONGEST_MESSAGE else None
    except TypeError:  # `expected` is not JSON, because the library puts the errors of all branches there.
        expected = None
    at = _shortened(_path_text(path).removeprefix("."))
    return {"argument": at, "rule": rule, "expected": expected, "found": _TYPES.get(type(instance), "other")}


def _path_text(path: Iterable[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def _first_error(validator: Draft202012Validator, value: Any) -> list[ValidationError]:
    try:
        validator.validate(value)
    except ValidationError as error:
        return [error]
    return []


def _shortened(message: str) -> str:
    """Shorten a message in the middle, because its start quotes the value and its end describes the fault."""
    message = message.replace(
        "under any of the schemas listed in the 'oneOf'", "under exactly one schema of the 'oneOf'"
    )
    if len(message) <= _LONGEST_MESSAGE:
        return message
    return f"{message[: _LONGEST_MESSAGE // 2]} ... {message[5 - _LONGEST_MESSAGE // 2 :]}"


def with_one_branch(schema: Any, recursive: Container[int]) -> Any:
    """Return an equivalent schema that does not report the errors inside of branches and recursive subschemas.

    Otherwise the validator lists all errors of all branches first, and follows recursive references repeatedly.
    """
    if not isinstance(schema, dict):
        return schema
    copy = with_parts(schema, lambda part, _: with_one_branch(part, recursive))
    for key in ("anyOf", "oneOf"):
        if key in copy:
            copy[key] = [{"if": {key: copy[key]}, "else": False}]
    if "$ref" in copy:
        copy["$ref"] = _INTO_BRANCH.sub(r"/\1/0/if/\1/\2", copy["$ref"])
        if id(schema) in recursive:
            condition = {"if": {"$ref": copy.pop("$ref")}, "else": False}
            copy["allOf"] = [*copy.get("allOf", ()), {"anyOf": [condition]}]
    return copy
