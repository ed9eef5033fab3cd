"""What a user's concern may name: the members of the request, of the tools' contexts and arguments, and of the data.

A shape is the members of a closed object by their names, `*` for the items of a list; None is open, to any member.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.engine.data import RUN_TIME_ROOTS
from pdp.manifest.rules.rules import PEP_CONTEXT
from pdp.manifest.schema.compile import closed_schema
from pdp.manifest.schema.walk import walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pdp.manifest.model import Tool
    from pdp.manifest.schema.walk import SchemaNode

Shape = dict[str, Any] | None

_DEEPEST: Final = 8
_RESOURCE: Final = ("type", "id")


@dataclass(frozen=True, slots=True)
class KnownNames:
    """The names that concerns are held to.

    Attributes:
        tools: the effective entries that are decided for; without any, context and arguments are open.
        data: the data that is given; a root that is not in it is open.
    """

    tools: Sequence[Tool] = ()
    data: Mapping[str, Any] | None = None

    def schemas(self, request: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return what OPA's type checker holds concerns to, by the path that it is about."""
        schemas = {path: _schema(shape) for path, shape in self._shapes().items()}
        extended = self._extended(request, deep=False)
        if not self.tools:  # OPA knows no object of which it knows some members
            extended["properties"]["context"] = extended["properties"]["resource"]["properties"]["properties"] = {}
        return {**schemas, "input": extended}

    def records(self, request: dict[str, Any]) -> dict[str, list[str] | None]:
        """Return the objects whose members have names of their own, by dotted path; None: they may have others too."""
        records: dict[str, list[str] | None] = {}
        for path, shape in {"input": _of_schema(walk(self._extended(request, deep=True))), **self._shapes()}.items():
            _add_records(records, path, shape)
        if not self.tools:
            records |= dict.fromkeys(("input.context", "input.resource.properties"))
        return records

    def _extended(self, request: dict[str, Any], *, deep: bool) -> dict[str, Any]:
        """Return the schema of the request with what the tools' mappings and arguments add to it, closed.

        `deep`: with the members of arguments as well, of which OPA would not believe that they may be null.
        """
        parts = request["properties"]
        context, resource = parts["context"]["properties"], parts["resource"]["properties"]
        arguments = (
            _merged(_of_schema(walk(closed_schema(tool.schema_))) for tool in self.tools) if self.tools else None
        )
        if not deep and arguments is not None:
            arguments = dict.fromkeys(arguments)
        mapped = {name for tool in self.tools for name in tool.resource or {}}.difference(_RESOURCE)
        added = PEP_CONTEXT.union(*(tool.context or {} for tool in self.tools))
        context = {**_any(added), **context, "arguments": {**_schema(arguments), "type": "object"}}
        properties = _closed({**_any(mapped), **resource["properties"]["properties"]})
        extended = {"context": _closed(context), "resource": _closed({**resource, "properties": properties})}
        return {**request, "properties": {**parts, **extended}}

    def _shapes(self) -> dict[str, Shape]:
        return {f"data.{root}": _of_value((self.data or {}).get(root)) for root in RUN_TIME_ROOTS}


def _of_schema(node: SchemaNode, depth: int = 0) -> Shape:
    """Return the shape of what a schema admits."""
    shapes: list[Shape] = []
    for form in node.alternatives:
        kinds = form.kinds
        if kinds is None or depth > _DEEPEST:
            return None
        if "array" in kinds and form.items is not None:
            shapes.append({"*": _of_schema(form.items, depth + 1)})
        if "object" in kinds:
            if form.members is None or form.members.alternatives:
                return None
            named = {**form.conditional, **form.properties}
            shapes.append({name: _of_schema(part, depth + 1) for name, part in named.items()})
    return _merged(shapes)


def _of_value(value: Any) -> Shape:
    """Return the shape of what the data holds; where it is empty, anything may come to stand there."""
    if isinstance(value, dict):
        return {name: _of_value(part) for name, part in value.items()} or None
    return {"*": _merged(_of_value(part) for part in value)} if isinstance(value, list) and value else None


def _merged(shapes: Iterable[Shape]) -> Shape:
    merged: dict[str, Any] = {}
    for shape in shapes:
        if shape is None:
            return None
        for name, part in shape.items():
            merged[name] = _merged((merged[name], part)) if name in merged else part
    return merged or None


def _schema(shape: Shape) -> dict[str, Any]:
    if shape is None:
        return {}
    if "*" in shape:
        return {"type": "array", "items": _schema(shape["*"])} if len(shape) == 1 else {}
    return _closed({name: _schema(part) for name, part in shape.items()})


def _any(names: Iterable[str]) -> dict[str, Any]:
    return {name: {} for name in sorted(names)}


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _add_records(records: dict[str, list[str] | None], path: str, shape: Shape) -> None:
    names = [name for name in shape or {} if name != "*"]
    if names:
        records[path] = sorted(names)
    for name, part in (shape or {}).items():
        _add_records(records, f"{path}.{name}", part)
