"""Where a schema leaves open what something is: `any` (tool pattern library, 9.1: "untyped any is forbidden")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pdp.manifest.fields import Pattern
from pdp.manifest.schema_references import resolve
from pdp.manifest.schemas import argument_schemas

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdp.manifest.models import DeclaredTool

_TYPES = ("$ref", "allOf", "anyOf", "const", "enum", "oneOf", "type")
_DEEPEST = 8


def untyped_arguments(tool: DeclaredTool) -> Iterator[str]:
    """Yield the dotted paths of arguments that may be anything.

    The candidate of a validation is not among them: its rule pack says what it has to be (pattern 3).
    """
    for path in untyped_members(tool.schema_):
        if tool.pattern is not Pattern.VALIDATION or path.partition(".")[0].removesuffix("[]") != "candidate":
            yield path


def untyped_result(tool: DeclaredTool) -> Iterator[str]:
    """Yield the dotted paths in the result that may be anything; the empty one is the whole. None when unstated."""
    if tool.result_schema is None:
        return
    if not any(key in tool.result_schema for key in _TYPES):
        yield ""
    else:
        yield from untyped_members(tool.result_schema)


def untyped_members(schema: dict[str, Any]) -> Iterator[str]:
    """Yield the dotted paths of properties and items that may be anything."""
    pending = [(name, one, 0) for name, one in argument_schemas(schema).items()]
    while pending:
        path, one, depth = pending.pop(0)
        if not isinstance(one, dict) or not any(key in one for key in _TYPES):
            yield path
            continue
        reference = one.get("$ref")
        target = resolve(schema, reference) if isinstance(reference, str) and depth < _DEEPEST else None
        for inner in (one, target):
            if not isinstance(inner, dict):
                continue
            pending += [(f"{path}.{name}", part, depth + 1) for name, part in inner.get("properties", {}).items()]
            if "items" in inner:
                pending.append((f"{path}[]", inner["items"], depth + 1))
