"""Generate example arguments from a tool's schema, to start a scenario. Complex schemas may reject the example."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pdp.contract.checks import names_source
from pdp.manifest.schema.walk import Alternative, SchemaNode, walk
from pdp.workbench.neighbours.values import as_dict, as_list, is_number

_DEEPEST: Final = 8
_MOST_ITEMS: Final = 8
_LONGEST: Final = 64
_ORDER: Final = ("object", "array", "string", "number", "integer", "boolean", "null")
"""The types of a schema in the order in which an example prefers them."""

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
    """Return examples of the arguments that a draft 2020-12 schema requires. Patterns and conditions are ignored."""
    return as_dict(_example(walk(schema), "", 0))


def sourced_arguments(schema: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
    """Return example arguments in which each argument in `sources` names a source."""
    arguments = example_arguments({**schema, "required": [*schema.get("required", ()), *sources]})
    return arguments | {name: ["source-1"] for name in sources if not names_source(arguments.get(name))}


def _example(node: SchemaNode, name: str, depth: int) -> Any:
    if depth > _DEEPEST:
        return f"<{name}>"
    written = [part for part in node.parts if isinstance(part, dict)]
    for key in ("examples", "enum"):
        values = next((part[key] for part in written if as_list(part.get(key))), None)
        if values is not None:
            return values[0]
    defaults = [part["default"] for part in written if "default" in part]
    if defaults and all("const" not in part for part in written):
        return defaults[0]
    # An example is null only if the schema allows nothing else.
    forms = sorted(node.alternatives, key=lambda form: form.kinds == frozenset(("null",)))
    return _of_form(forms[0], name, depth) if forms else f"<{name}>"


def _of_form(form: Alternative, name: str, depth: int) -> Any:
    if form.values is not None:
        return form.values[0] if form.values else f"<{name}>"
    types = form.types if form.types is not None else frozenset(("object",) if form.properties else ("string",))
    kind = next((kind for kind in _ORDER if kind in types), "string")
    if kind == "object":
        # Arguments are listed in the order of the schema, because a set has no fixed order.
        named = [key for key in form.properties if key in form.required]
        members = {key: _example(form.properties[key], key, depth + 1) for key in named}
        return members | {key: f"<{key}>" for key in sorted(form.required - set(named))}
    if kind == "array":
        least = max((count for count in form.rest.get("minItems", ()) if isinstance(count, int)), default=0)
        return [
            _example(form.items, name, depth + 1) if form.items else f"<{name}>" for _ in range(min(least, _MOST_ITEMS))
        ]
    if kind in ("number", "integer"):
        return _number(form)
    return {"boolean": True, "null": None}.get(kind, _text(form, name))


def _number(form: Alternative) -> float:
    stated = {word: [value for value in values if is_number(value)] for word, values in form.rest.items()}
    least = [*stated.get("minimum", ()), *(bound + 1 for bound in stated.get("exclusiveMinimum", ()))]
    value: float = max(least) if least else min((1, *stated.get("maximum", ())))
    return value


def _text(form: Alternative, name: str) -> str:
    for word in form.rest.get("format", ()):
        if word in _FORMATS:
            return _FORMATS[word]
    least, most = (
        [length for length in form.rest.get(word, ()) if isinstance(length, int)] for word in ("minLength", "maxLength")
    )
    text = f"<{name}>".ljust(min(max(least, default=0), _LONGEST), "x")
    return text[: min(most)] if most else text
