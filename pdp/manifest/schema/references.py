"""Make a JSON Schema self-contained: copy the definitions that it refers to into its `$defs`. Nothing is fetched."""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from pdp.documents import nearest
from pdp.documents.document import Path
from pdp.documents.validation import Finding
from pdp.json import pointer_steps

SCHEMA_LISTS: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
SCHEMA_MAPS: Final = frozenset(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"))
SCHEMA_KEYS: Final = frozenset((
    "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
))  # fmt: skip
"""The keywords whose value is a schema (JSON Schema 2020-12, core, 10 and 11)."""

LEADS_OUT: Final = "leads_out"
"""The rule name of findings about a `$ref` to another file, which is no fault if the ontology has that type."""

SHARED_PREFIX: Final = "types_"
_POINTER: Final = "#/$defs/"
_TYPES_FILE: Final = "types.json"
_ONTOLOGY: Final = "ontology"
_PREFIXES: Final = {"": "file_", _TYPES_FILE: SHARED_PREFIX, _ONTOLOGY: "ontology_"}


@cache
def shared_types() -> dict[str, Any]:
    """Return the schemas of types.json by name. The result is cached, so do not change it."""
    content = json.loads(files("pdp.manifest.schema").joinpath(_TYPES_FILE).read_text("utf-8"))
    types: dict[str, Any] = content["$defs"]
    return types


def direct(schema: Mapping[Any, Any]) -> Iterator[tuple[Path, Any]]:
    """Yield each direct subschema of a schema with its path, but no deeper subschemas."""
    for key, value in schema.items():
        if key in SCHEMA_KEYS:
            yield (key,), value
        elif isinstance(value, dict) and key in SCHEMA_MAPS:
            yield from (((key, name), part) for name, part in value.items())
        elif isinstance(value, list) and key in SCHEMA_LISTS:
            yield from (((key, index), part) for index, part in enumerate(value))


def subschemas(schema: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield a schema and all its subschemas with their paths. `const` and `default` contain values, not schemas."""
    pending: list[tuple[Path, Any]] = [((), schema)]
    while pending:
        at, part = pending.pop()
        if isinstance(part, dict):
            yield at, part
            pending += reversed([((*at, *place), inner) for place, inner in direct(part)])


def property_names(schema: Any) -> frozenset[str]:
    """Return the names of all properties in a schema, at any depth."""
    return frozenset(name for _, part in subschemas(schema) for name in part.get("properties", ()))


def with_parts(schema: Mapping[Any, Any], change: Callable[[Any, Path], Any]) -> dict[str, Any]:
    """Return a copy of a schema. `change(subschema, path)` replaces each direct subschema."""
    copy: dict[Any, Any] = dict(schema)
    for (key, *step), part in direct(schema):
        if not step:
            copy[key] = change(part, (key,))
            continue
        if copy[key] is schema[key]:
            copy[key] = copy[key].copy()
        copy[key][step[0]] = change(part, (key, step[0]))
    return copy


def referred(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definitions in `root` to which `schema` refers, directly or through other definitions, by `$ref`."""
    targets: dict[str, Any] = {}
    pending = [schema]
    while pending:
        for _, part in subschemas(pending.pop()):
            reference = part.get("$ref")
            if isinstance(reference, str) and reference not in targets:
                targets[reference] = resolve(root, reference)
                pending.append(targets[reference])
    return targets


def resolve(schema: Mapping[str, Any], pointer: str) -> Any:
    """Return the target of a `$ref` such as `#/$defs/Money` in a schema, or None if the target does not exist."""
    target: Any = schema
    for step in pointer_steps(pointer.removeprefix("#")):
        if isinstance(target, dict) and step in target:
            target = target[step]
        elif isinstance(target, list) and step.isdecimal() and int(step) < len(target):
            target = target[int(step)]
        else:
            return None
    return target


def self_contained(
    schema: dict[str, Any], definitions: Mapping[str, Any], ontology: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the schema with copies of the definitions that it refers to in its `$defs`, and its faulty references.

    A definition `#/$defs/NAME` of the file is copied as `file_NAME`, an `ontology` type `NAME` as `ontology_NAME`, and
    `types.json#/$defs/NAME` (or in short `NAME`) as `types_NAME`.
    """
    if not any("$ref" in part for _, part in subschemas(schema)):
        return schema, []
    copies = _Copies(schema, definitions, ontology or {})
    return copies.whole(), copies.faults


class _Copies:
    def __init__(self, schema: dict[str, Any], definitions: Mapping[str, Any], ontology: Mapping[str, Any]) -> None:
        self.faults: list[Finding] = []
        self._definitions: dict[str, Any] = {}
        self._schema = schema
        self._sources = {"": definitions, _TYPES_FILE: shared_types(), _ONTOLOGY: ontology}
        self._pending: deque[tuple[str, Any, Path, str]] = deque()

    def whole(self) -> dict[str, Any]:
        copy: dict[str, Any] = self._copied(self._schema, (), None)
        while self._pending:
            name, definition, place, source = self._pending.popleft()
            self._definitions[name] = self._copied(definition, place, source)
        return {**copy, "$defs": {**copy.get("$defs", {}), **self._definitions}} if self._definitions else self._schema

    def _copied(self, schema: Any, place: Path, source: str | None) -> Any:
        """Return a copy that refers to the result's `$defs`. `source` is the file of the schema, None for the root."""
        if not isinstance(schema, dict):
            return schema
        copy = with_parts(schema, lambda part, at: self._copied(part, (*place, *at), source))
        if isinstance(copy.get("$ref"), str):
            copy["$ref"] = self._target(copy["$ref"], (*place, "$ref"), source)
        return copy

    def _target(self, reference: str, place: Path, source: str | None) -> str:
        within = reference == "#" or reference.startswith("#/")
        if source is None and within and resolve(self._schema, reference) is not None:
            return reference
        inside = source or ""
        if not within:
            ontology = self._sources[_ONTOLOGY]
            if reference in ontology:
                inside = _ONTOLOGY
            elif reference.startswith(_TYPES_FILE + _POINTER) or reference in shared_types():
                inside = _TYPES_FILE
            else:
                hint = "refer to `#/$defs/NAME` of this file, to types.json#/$defs/NAME, or to a type of the `ontology`"
                message = f"$ref to another file: {reference:.80}"
                self.faults.append(Finding(place, message, nearest(reference, ontology) or hint, rule=LEADS_OUT))
                return reference
        name, known = reference.rpartition(_POINTER)[2], self._sources[inside]
        if name not in known:
            hint = (
                f"known: {', '.join(sorted(known))}" if known else "define it under `$defs` of the schema or the file"
            )
            self.faults.append(Finding(place, f"$ref target does not exist: {reference:.80}", hint))
            return reference
        copy_name = f"{_PREFIXES[inside]}{name}"
        own = self._schema.get("$defs")
        while isinstance(own, dict) and copy_name in own:
            copy_name += "_"
        if copy_name not in self._definitions:
            # The name is reserved before the definition is copied, so that a recursive definition ends.
            self._definitions[copy_name] = True
            self._pending.append((copy_name, known[name], place, inside))
        return f"{_POINTER}{copy_name}"
