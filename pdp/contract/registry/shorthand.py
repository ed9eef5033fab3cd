"""The shorthand in which a contract record writes its schema, compiled to JSON Schema.

Source: tool contract document, "A real example": `{"web_search": "Optional[bool] — enable web search for this step"}`.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any, Final

from pdp.documents import nearest, shown_name
from pdp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES: Final = {
    "str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object",
}  # fmt: skip
_SEPARATOR: Final = re.compile(r"\s+(?:—|–|--?)\s+")  # noqa: RUF001 - an en dash stands there as well
_UNTYPED: Final = ("Any", "any", "object")
_KNOWN: Final = "known: str, int, float, bool, list[T], dict[str, T], Optional[T], T | U, Literal[...]"


def is_shorthand(schema: Mapping[str, Any]) -> bool:
    """Return whether a contract's schema is in shorthand, and not a JSON Schema already."""
    return "$ref" not in schema and schema.get("type") != "object" and not isinstance(schema.get("properties"), dict)


def argument_schema(schema: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the JSON Schema of arguments that a contract states in shorthand, `{argument: "TYPE — description"}`.

    TYPE is `str`, `int`, `float`, `bool`, `list[T]`, `dict[str, T]`, `Optional[T]`, `T | U`, `Union[T, U]` or
    `Literal["a", 1]`. An argument whose type admits None may be left out; every other one is required. After the type,
    ` — ` or ` - ` and the description that the model sees.

    Args:
        schema: the shorthand; a JSON Schema of type object is returned as it stands.
        where: what the schema belongs to, for messages.

    Raises:
        UsageError: not a type; the message names the argument.
    """
    if not is_shorthand(schema):
        return dict(schema)
    properties: dict[str, Any] = {}
    required = []
    for name, text in schema.items():
        at = f"{where}: schema of argument {shown_name(name)}"
        if not isinstance(text, str):
            raise UsageError(f"{at}: must be a text such as `str — the query`", hint="or write a whole JSON Schema")
        shown, *described = _SEPARATOR.split(text.strip(), maxsplit=1)
        one = _type_of(shown, at)
        if "null" not in _types(one):
            required.append(name)
        if described:
            one["description"] = described[0].strip()
        properties[name] = one
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _types(schema: dict[str, Any]) -> list[str]:
    if "anyOf" in schema:
        return [name for one in schema["anyOf"] for name in _types(one)]
    kind = schema.get("type")
    return kind if isinstance(kind, list) else [str(kind)]


def _type_of(text: str, at: str) -> dict[str, Any]:
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(f"{at}: {text!r:.60} is not a type", hint=_KNOWN) from None
    return _compiled(tree, text, at)


def _compiled(node: ast.expr, text: str, at: str) -> dict[str, Any]:
    match node:
        case ast.Constant(value=None):
            return {"type": "null"}
        case ast.Name(id=name) if name in _NAMES:
            return {"type": _NAMES[name]}
        case ast.Name(id=name) if name in _UNTYPED:
            raise UsageError(f"{at}: `{name}` is no type: whatever the model likes would pass", hint=_KNOWN)
        case ast.Name(id=name):
            raise UsageError(f"{at}: {name!r:.60} is not a type", hint=nearest(name, _NAMES) or _KNOWN)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _union([_compiled(left, text, at), _compiled(right, text, at)])
        case ast.Subscript(value=ast.Name(id=generic), slice=inner):
            return _generic(generic, inner, text, at)
    raise UsageError(f"{at}: {text!r:.60} is not a type", hint=_KNOWN)


def _generic(generic: str, inner: ast.expr, text: str, at: str) -> dict[str, Any]:
    parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    if generic == "Literal":
        return _literal(parts, text, at)
    if generic == "Union":
        return _union([_compiled(part, text, at) for part in parts])
    match generic, parts:
        case "Optional", [part]:
            return _union([_compiled(part, text, at), {"type": "null"}])
        case (("list" | "List"), [part]):
            return {"type": "array", "items": _compiled(part, text, at)}
        case (("dict" | "Dict"), [ast.Name(id="str"), part]):
            return {"type": "object", "additionalProperties": _compiled(part, text, at)}
    raise UsageError(f"{at}: {text!r:.60} is not a type", hint=_KNOWN)


def _literal(parts: list[ast.expr], text: str, at: str) -> dict[str, Any]:
    values = [part.value for part in parts if isinstance(part, ast.Constant)]
    kinds = {"bool" if isinstance(value, bool) else type(value).__name__ for value in values}
    if len(values) < len(parts) or not kinds <= {"str", "int", "bool"}:
        raise UsageError(f"{at}: {text!r:.60} has to list texts, whole numbers or booleans", hint=_KNOWN)
    names = sorted(_NAMES[kind] for kind in kinds)
    return {"type": names[0] if len(names) == 1 else names, "enum": values}


def _union(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what admits each of the parts: a list of type names where nothing more is said of any."""
    flat = [one for part in parts for one in part.get("anyOf", [part])]
    unique: list[dict[str, Any]] = [one for at, one in enumerate(flat) if one not in flat[:at]]
    if len(unique) == 1:
        return unique[0]
    names: list[str] = []
    for one in unique:
        names += [name for name in _types(one) if name not in names]
    bare = [one for one in unique if set(one) == {"type"}]
    detailed = [one for one in unique if set(one) != {"type"}]
    if not detailed:
        return {"type": names}
    # A null beside one type with details joins it: `{"type": ["array", "null"], "items": ...}` reads best to a model.
    if len(detailed) == 1 and _types({"anyOf": bare}) == ["null"] and "enum" not in detailed[0]:
        return {**detailed[0], "type": [*_types(detailed[0]), "null"]}
    return {"anyOf": unique}
