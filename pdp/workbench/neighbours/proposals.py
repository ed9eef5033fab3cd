"""Arguments from a tool's schema, and arguments near a proposal's: for what the contract stops before any policy.

Examples are a start for a scenario: valid in form where that is easy, without meaning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdp.workbench.neighbours.values import GONE, as_dict, as_list, is_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_DEEPEST: Final = 8
_MOST_ITEMS: Final = 8
_LONGEST: Final = 64
_OTHERS: Final[tuple[Any, ...]] = (
    None, "", "another", "x" * 5000, 0, -1, 0.5, 1e9, True, [], ["another", "another"], {},
)  # fmt: skip
_FORMATS: Final = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "duration": "PT1H",
    "email": "someone@example.org",
    "uri": "https://example.org/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
    "hostname": "example.org",
}


def example_arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments for a schema of draft 2020-12: what it requires, from examples, defaults, enums and bounds.

    Whether they are valid is for whoever fills them in: patterns and conditions are not looked at.
    """
    made = _example(schema, schema, "", 0)
    return made if isinstance(made, dict) else {}


def near_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield arguments with one change each: taken away, mistyped, or just beyond what the schema admits."""
    properties = as_dict(schema.get("properties"))
    for name in {**arguments, **properties}:
        inner = properties.get(name)
        if name in arguments:
            yield {key: value for key, value in arguments.items() if key != name}
        for value in (*_beyond(as_dict(inner)), *_OTHERS):
            if arguments.get(name, GONE) != value:
                yield {**arguments, name: value}
        if isinstance(arguments.get(name), dict) and isinstance(inner, dict):
            yield from ({**arguments, name: changed} for changed in near_arguments(arguments[name], inner))
    yield {**arguments, "another": "x"}


def _beyond(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Values just outside of a schema's bounds, and on them."""
    for word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
        bound = schema.get(word)
        if is_number(bound):
            yield from (bound - 1, bound, bound + 1, bound / 2)
    for words, unit in ((("minLength", "maxLength"), "x"), (("minItems", "maxItems"), ["x"])):
        for length in (schema.get(word) for word in words):
            if isinstance(length, int):
                yield from (unit * max(length + by, 0) for by in (-1, 0, 1))


def _example(schema: Any, root: Mapping[str, Any], name: str, depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return f"<{name}>" if name else {}
    schema = _resolved(schema, root)
    if "const" in schema:
        return schema["const"]
    for key in ("examples", "enum"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    if "default" in schema:
        return schema["default"]
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list) and schema[key] and "type" not in schema:
            return _example(schema[key][0], root, name, depth + 1)
    return _of_type(_type_of(schema), schema, root, name, depth)


def _of_type(kind: Any, schema: Mapping[str, Any], root: Mapping[str, Any], name: str, depth: int) -> Any:
    if kind == "object":
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        required = schema.get("required")
        required = required if isinstance(required, list) else []
        return {key: _example(properties.get(key, {}), root, str(key), depth + 1) for key in required}
    if kind == "array":
        least = schema.get("minItems", 0)
        count = min(least, _MOST_ITEMS) if isinstance(least, int) else 0
        return [_example(schema.get("items", {}), root, name, depth + 1) for _ in range(count)]
    if kind in ("number", "integer"):
        return _number(schema)
    return {"boolean": True, "null": None}.get(str(kind), _text(schema, name))


def _number(schema: Mapping[str, Any]) -> float:
    least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    if is_number(least):
        return least
    if is_number(above):
        return above + 1
    most = schema.get("maximum")
    return min(1, most) if is_number(most) else 1


def _text(schema: Mapping[str, Any], name: str) -> str:
    given = _FORMATS.get(str(schema.get("format")))
    if given is not None:
        return given
    text = f"<{name}>"
    least, most = schema.get("minLength"), schema.get("maxLength")
    if isinstance(least, int) and least <= _LONGEST:
        text = text.ljust(least, "x")
    return text[:most] if isinstance(most, int) else text


def _type_of(schema: Mapping[str, Any]) -> Any:
    kind = schema.get("type")
    if isinstance(kind, list):
        return next((one for one in kind if one != "null"), "null")
    return kind if kind is not None else "object" if "properties" in schema else "string"


def _resolved(schema: dict[str, Any], root: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """The schema with `$ref` and `allOf` laid into it."""
    merged = dict(schema)
    parts = [_target(merged.pop("$ref"), root)] if isinstance(merged.get("$ref"), str) else []
    parts += as_list(merged.pop("allOf", None))
    for part in parts:
        if isinstance(part, dict) and depth < _DEEPEST:
            below = _resolved(part, root, depth + 1)
            merged = {
                **below,
                **merged,
                "properties": {**as_dict(below.get("properties")), **as_dict(merged.get("properties"))},
                "required": [*as_list(below.get("required")), *as_list(merged.get("required"))],
            }
            merged = {key: value for key, value in merged.items() if value or key not in ("properties", "required")}
    return merged


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    at: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        at = at.get(key) if isinstance(at, dict) else None
    return at
