"""Where and why a value does not pass a schema, in words and for programs; loaded when the first value fails."""

import re
from collections.abc import Container, Iterable
from typing import Any, Final

import orjson
from jsonschema_rs import Draft202012Validator, ValidationError

from pdp.manifest.schema.cost import MAX_COST
from pdp.manifest.schema.references import with_parts

_INTO_BRANCH: Final = re.compile(r"/(anyOf|oneOf)/(\d+)")
_LONGEST_MESSAGE: Final = 300
# Every fault is listed where their messages have at most so many characters, and these beside what they quote: at most
# the value and the schema.
_MOST_MESSAGES: Final = 16_000_000
_OF_MESSAGE: Final = 8_000
_CLOSED: Final = ("additionalProperties", "unevaluatedProperties")
_TYPES: Final = {
    dict: "object", list: "array", str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null",
}  # fmt: skip


def value_faults(
    validator: Draft202012Validator, schema: Any, value: Any, name: str, cost: int
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return why a value does not pass, as of `SchemaValidator.explained`.

    `validator` is of `with_one_branch(schema)`; `cost` is what the check of the value takes.
    """
    errors: list[ValidationError] = []
    if cost * (_OF_MESSAGE + len(orjson.dumps(value)) + len(str(schema))) <= _MOST_MESSAGES:
        errors = list(validator.iter_errors(value))
    elif cost <= MAX_COST // 2:  # to say where takes as long as to look whether it passes
        errors = _first_error(validator, value)
    lines = sorted(
        f"{name}{_shortened(_path_text(error.instance_path))}: {_shortened(error.message)}" for error in errors
    )
    details = sorted(map(_detail, errors), key=orjson.dumps)
    return lines or [f"{name}: is refused by the schema, and too large to say where"], details


def _detail(error: ValidationError) -> dict[str, Any]:
    path, rule = list(error.instance_path), error.kind.name
    expected: Any = error.kind.value
    instance: Any = error.instance
    if rule == "required":
        path, expected, instance = [*path, expected], True, None
    elif rule in _CLOSED:
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
    try:
        validator.validate(value)
    except ValidationError as error:
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


def with_one_branch(schema: Any, recursive: Container[int]) -> Any:
    """Return a schema that admits the same, and says of its branches and what is recursive only that none fits.

    The library lists every error of every branch, and those of their branches, before it reports the first one; and it
    follows a recursive reference as often as it meets it. Of a condition it asks only whether it holds.
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
