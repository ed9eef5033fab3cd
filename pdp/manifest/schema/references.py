"""Make a JSON Schema stand on its own: what it refers to in its file or in types.json is copied into its `$defs`.

So nothing is ever fetched, and what the model is shown and what arguments are validated with are the same text.
"""

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
"""Where in a schema further schemas stand (JSON Schema 2020-12, core, 10 and 11)."""

LEADS_OUT: Final = "leads_out"
"""The rule of a finding of a reference to another file, which an ontology may have."""

SHARED_PREFIX: Final = "types_"
_POINTER: Final = "#/$defs/"
_TYPES_FILE: Final = "types.json"
_ONTOLOGY: Final = "ontology"
_PREFIXES: Final = {"": "file_", _TYPES_FILE: SHARED_PREFIX, _ONTOLOGY: "ontology_"}


@cache
def shared_types() -> dict[str, Any]:
    """Return the schemas of types.json by name. Do not change them."""
    content = json.loads(files("pdp.manifest.schema").joinpath(_TYPES_FILE).read_text("utf-8"))
    types: dict[str, Any] = content["$defs"]
    return types


def direct(schema: Mapping[Any, Any]) -> Iterator[tuple[Path, Any]]:
    """Yield each schema that stands right in a schema, with its place there."""
    for key, value in schema.items():
        if key in SCHEMA_KEYS:
            yield (key,), value
        elif isinstance(value, dict) and key in SCHEMA_MAPS:
            yield from (((key, name), part) for name, part in value.items())
        elif isinstance(value, list) and key in SCHEMA_LISTS:
            yield from (((key, index), part) for index, part in enumerate(value))


def subschemas(schema: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield every schema in `schema`, itself included, with its place; not the values of `const` or `default`."""
    pending: list[tuple[Path, Any]] = [((), schema)]
    while pending:
        at, part = pending.pop()
        if isinstance(part, dict):
            yield at, part
            pending += reversed([((*at, *place), inner) for place, inner in direct(part)])


def property_names(schema: Any) -> frozenset[str]:
    """Return the names of properties that a schema states, at any depth."""
    return frozenset(name for _, part in subschemas(schema) for name in part.get("properties", ()))


def with_parts(schema: Mapping[Any, Any], change: Callable[[Any, Path], Any]) -> dict[str, Any]:
    """Return a copy in which each schema that stands right in `schema`, at `place`, is `change(part, place)`."""
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
    """Return what `schema` refers to in `root`, by reference, and what that refers to."""
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
    """Return what a reference such as `#/$defs/Money` means inside of a schema; None when it leads nowhere."""
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
    """Return the schema with every definition that it refers to in its own `$defs`, and which references are faulty.

    A reference is `#/…` within the schema, `#/$defs/NAME` of the file, whose `definitions` these are (copied as
    `file_NAME`), `NAME` of a type of the `ontology` (copied as `ontology_NAME`), or `types.json#/$defs/NAME`, for short
    `NAME` (copied as `types_NAME`).
    """
    if not any("$ref" in part for _, part in subschemas(schema)):
        return schema, []
    copies = _Copies(schema, definitions, ontology or {})
    return copies.whole(), copies.faults


class _Copies:
    """The copy of one schema, and of the definitions that it refers to outside of itself."""

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
        """Return a copy whose references lead into its own `$defs`. `source`: its file; None: the schema itself."""
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
                message = f"$ref leads out of the file: {reference:.80}"
                self.faults.append(Finding(place, message, nearest(reference, ontology) or hint, rule=LEADS_OUT))
                return reference
        name, known = reference.rpartition(_POINTER)[2], self._sources[inside]
        if name not in known:
            hint = (
                f"known: {', '.join(sorted(known))}" if known else "define it under `$defs` of the schema or the file"
            )
            self.faults.append(Finding(place, f"$ref leads nowhere: {reference:.80}", hint))
            return reference
        copy_name = f"{_PREFIXES[inside]}{name}"
        own = self._schema.get("$defs")
        while isinstance(own, dict) and copy_name in own:
            copy_name += "_"
        if copy_name not in self._definitions:
            self._definitions[copy_name] = True  # until its turn comes
            self._pending.append((copy_name, known[name], place, inside))
        return f"{_POINTER}{copy_name}"
