"""The names that a user's concern may use: members of the request, of tools' contexts and arguments, and of data."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pdp.engine.data import RUN_TIME_ROOTS
from pdp.manifest.effective import FOR_POLICY
from pdp.manifest.fields import EffectClass, FlowProfile, Integrity, Otherwise, Pattern, RiskTier, Writes
from pdp.manifest.model import EffectiveApproval, FlowRules, Idempotency, Limit, Provenance, Release, ResultLabels, Tool
from pdp.manifest.rules.rules import PEP_CONTEXT
from pdp.manifest.schema.compile import closed_schema
from pdp.manifest.schema.walk import SchemaNode, walk

_ARGUMENTS: Final = "input.context.arguments"
_RESOURCE: Final = ("type", "id")
_DEEPEST: Final = 8
_INTEGER: Final = frozenset(("integer",))
_ENTRY: Final = "data.authz.lib.manifest.entry"
_ENTRY_MEMBERS: Final = {
    _ENTRY: (*FOR_POLICY, "contract"),
    f"{_ENTRY}.approval": (*EffectiveApproval.model_fields, "expires_seconds"),
    f"{_ENTRY}.idempotency": (*Idempotency.model_fields,),
    f"{_ENTRY}.limits.*": (*Limit.model_fields,),
    f"{_ENTRY}.provenance": (*Provenance.model_fields,),
    f"{_ENTRY}.release": (*Release.model_fields,),
    f"{_ENTRY}.result": (*ResultLabels.model_fields,),
    f"{_ENTRY}.flow": (*FlowRules.model_fields,),
}
_ENTRY_TEXTS: Final[Mapping[str, type[StrEnum]]] = {
    "effect_class": EffectClass,
    "flow.otherwise": Otherwise,
    "flow.profile": FlowProfile,
    "pattern": Pattern,
    "result.integrity": Integrity,
    "risk_tier": RiskTier,
    "writes": Writes,
}


@dataclass(frozen=True, slots=True)
class KnownNames:
    """The names that concerns may use. Without `tools`: any name of a context or argument. Without `data`: any data."""

    tools: Sequence[Tool] = ()
    data: Mapping[str, Any] | None = None

    def schemas(self, request: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return schemas for OPA's type checker by path. Each schema describes the value at its path."""
        extended = self._extended(request)
        if not self.tools:  # OPA's types cannot describe an object that has some known members and any others
            extended["properties"]["context"] = extended["properties"]["resource"]["properties"]["properties"] = {}
        return {"input": extended, **self._data()}

    def records(self, request: dict[str, Any]) -> dict[str, list[str] | None]:
        """Return the member names of objects by dotted path. None means that the object may have any members."""
        records: dict[str, list[str] | None] = {path: sorted(names) for path, names in _ENTRY_MEMBERS.items()}
        for path, schema in {"input": self._extended(request), **self._data()}.items():
            records |= _records(path, walk(schema))
        if not self.tools:
            records |= dict.fromkeys(("input.context", "input.resource.properties"))
        return records

    def values(self) -> dict[str, list[str]]:
        """Return the allowed values of the text members that have a fixed set of values, by dotted path."""
        values = {f"{_ENTRY}.{name}": sorted(map(str, texts)) for name, texts in _ENTRY_TEXTS.items()}
        if self.tools:
            names = sorted({tool.name for tool in self.tools})
            actions = sorted({tool.pdp_action for tool in self.tools})
            values |= dict.fromkeys((f"{_ENTRY}.name", "input.action.properties.tool"), names)
            values |= dict.fromkeys((f"{_ENTRY}.pdp_action", "input.action.name"), actions)
        return values

    def integers(self) -> list[str]:
        """Return the paths of arguments that are integers in every tool; without tools, the path of all arguments."""
        if not self.tools:
            return [_ARGUMENTS]
        nodes = [walk(closed_schema(tool.schema_)) for tool in self.tools]
        paths = {path for node in nodes for path in _integers(node, ())}
        return sorted(".".join((_ARGUMENTS, *path)) for path in paths if all(_is_whole(node, path) for node in nodes))

    def _extended(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the request's schema with the members that the tools add. All other members are forbidden."""
        parts = request["properties"]
        context, resource = parts["context"]["properties"], parts["resource"]["properties"]
        mapped = {name for tool in self.tools for name in tool.resource or {}}.difference(_RESOURCE)
        added = PEP_CONTEXT.union(*(tool.context or {} for tool in self.tools))
        context = {**_any(added), **context, "arguments": self._arguments()}
        properties = _closed({**_any(mapped), **resource["properties"]["properties"]})
        extended = {"context": _closed(context), "resource": _closed({**resource, "properties": properties})}
        return {**request, "properties": {**parts, **extended}}

    def _arguments(self) -> dict[str, Any]:
        """Return the schema of arguments. Any name is allowed if some tool accepts arguments that it does not name."""
        forms = [form for tool in self.tools for form in walk(closed_schema(tool.schema_)).alternatives]
        names = {name for form in forms for name in (*form.properties, *form.conditional)}
        closed = names and not any(form.members and form.members.alternatives for form in forms)
        return _closed(_any(names)) if closed else {"type": "object"}

    def _data(self) -> dict[str, dict[str, Any]]:
        return {f"data.{root}": _schema_of_value((self.data or {}).get(root)) for root in RUN_TIME_ROOTS}


def _schema_of_value(value: Any) -> dict[str, Any]:
    """Return the schema of a value in the data. In place of a list or an empty object, any value is allowed."""
    if not isinstance(value, dict) or not value:
        return {}
    return _closed({name: _schema_of_value(part) for name, part in value.items()})


def _integers(node: SchemaNode, at: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of integers in a schema (`*`: a list's item). The depth is limited, as schemas may recurse."""
    if node.kinds == _INTEGER:
        yield at
    for form in node.alternatives if len(at) < _DEEPEST else ():
        for name, part in (*form.properties.items(), *((("*", form.items),) if form.items else ())):
            yield from _integers(part, (*at, name))


def _is_whole(node: SchemaNode, path: tuple[str, ...]) -> bool:
    if not path:
        return node.kinds == _INTEGER
    for form in node.alternatives:
        if form.kinds is None or path[0] in form.conditional:
            return False
        if ("array" if path[0] == "*" else "object") in form.kinds:
            part = form.items if path[0] == "*" else form.properties.get(path[0], form.members)
            if part is None or (part.alternatives and not _is_whole(part, path[1:])):
                return False
    return True


def _any(names: Iterable[str]) -> dict[str, Any]:
    return {name: {} for name in sorted(names)}


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _records(path: str, node: SchemaNode) -> dict[str, list[str] | None]:
    records: dict[str, list[str] | None] = {}
    for form in node.alternatives:
        if form.properties:
            records[path] = sorted(form.properties)
        for name, part in form.properties.items():
            records |= _records(f"{path}.{name}", part)
    return records
