"""Find all faults of a tool's JSON Schema at once, with their locations."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

from jsonschema_rs import Draft202012Validator

from pdp.documents import nearest
from pdp.documents.document import Path
from pdp.documents.validation import Finding
from pdp.errors import UsageError
from pdp.manifest.schema.compile import NOT_A_SCHEMA, closed_schema, compile_schema
from pdp.manifest.schema.references import SCHEMA_KEYS, SCHEMA_LISTS, SCHEMA_MAPS, self_contained, subschemas
from pdp.manifest.schema.walk import walk

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
FORMATS: Final = frozenset((
    "date", "date-time", "duration", "email", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6", "iri",
    "iri-reference", "json-pointer", "regex", "relative-json-pointer", "time", "uri", "uri-reference",
    "uri-template", "uuid",
))  # fmt: skip
"""The values of `format` that are checked (JSON Schema 2020-12, validation, 7.3). All others are faults."""

# These keywords change the target of references. A self-contained schema does not need them, so they are rejected.
REFUSED_KEYWORDS: Final = (
    "$anchor", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveAnchor", "$recursiveRef", "$vocabulary",
)  # fmt: skip
KEYWORDS: Final = frozenset((
    *SCHEMA_KEYS, *SCHEMA_LISTS, *SCHEMA_MAPS, "$comment", "$ref", "$schema", "const", "contentEncoding",
    "contentMediaType", "default", "dependentRequired", "deprecated", "description", "enum", "examples",
    "exclusiveMaximum", "exclusiveMinimum", "format", "maxContains", "maxItems", "maxLength", "maxProperties",
    "maximum", "minContains", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "pattern",
    "readOnly", "required", "title", "type", "uniqueItems", "writeOnly",
    # OpenAPI keywords that tool servers often write. They are descriptive and do not change the validation.
    "discriminator", "example", "externalDocs", "nullable", "xml",
))  # fmt: skip


def member_place(schema: dict[str, Any], field: str, name: str) -> Path:
    """Return the path of a dotted name's top-level property, or of the schema if only a branch has the property."""
    top = re.split(r"\.|\[\]", name)[0]
    return (field, "properties", top) if top in schema.get("properties", {}) else (field,)


def read_schema(
    schema: dict[str, Any],
    definitions: Mapping[str, Any],
    path: Path,
    *,
    root_object: bool = False,
    ontology: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the schema at a `path` of the file, with copies of the definitions it refers to; and the schema faults."""
    findings = list(_meta_findings(schema, path))
    mistyped = any(finding.path == (*path, "type") for finding in findings)
    for place, part in subschemas(schema):
        findings += _keyword_findings(part, (*path, *place))
    if not findings:
        findings += _unnamed_findings(closed_schema(schema) if root_object else schema, path)
    whole, faults = self_contained(schema, definitions, ontology)
    findings += [replace(fault, path=(*path, *fault.path)) for fault in faults]
    if root_object and not faults and not mistyped and walk(whole).kinds != frozenset(("object",)):
        message = "schema of the arguments must be of type object"
        findings.append(Finding(path, message, "write `type: object` and its `properties`"))
    if not findings:
        try:
            compile_schema(closed_schema(whole) if root_object else whole)
        except UsageError as error:
            findings.append(Finding(path, error.message, error.hint))
    return whole, findings


@cache
def _meta_validator() -> Draft202012Validator:
    return Draft202012Validator({"$ref": DRAFT})


def _meta_findings(schema: Any, path: Path) -> Iterator[Finding]:
    validator = _meta_validator()
    if validator.is_valid(schema):
        return
    # Several parts of the meta-schema report the same fault, so only the first fault at each location is kept.
    findings: dict[Path, Finding] = {}
    for error in validator.iter_errors(schema):
        place = tuple(error.instance_path)
        message = f"not a JSON Schema: {error.message:.200}"
        hint: str | None = NOT_A_SCHEMA
        if place and place[-1] == "type" and isinstance(error.instance, str):
            known = ("array", "boolean", "integer", "null", "number", "object", "string")
            message = f"`type` must be one of {', '.join(known)}, not `{error.instance:.40}`"
            hint = nearest(error.instance, known)
        findings.setdefault(place, Finding((*path, *place), message, hint))
    yield from findings.values()


def _keyword_findings(schema: dict[str, Any], path: Path) -> Iterator[Finding]:
    for key, value in schema.items():
        at = (*path, key)
        if key in REFUSED_KEYWORDS:
            yield Finding(
                at, f"keyword `{key}` is not supported", "refer to definitions with `$ref: '#/$defs/NAME'`", key=True
            )
        elif key == "$schema" and value not in (DRAFT, DRAFT + "#"):
            yield Finding(at, "only draft 2020-12 of JSON Schema is supported", f"write {DRAFT}, or leave it out")
        elif key in ("pattern", "patternProperties"):
            yield from _pattern_findings(value, at)
        elif key == "format" and isinstance(value, str) and value not in FORMATS:
            hint = nearest(value, FORMATS) or f"known: {', '.join(sorted(FORMATS))}"
            yield Finding(at, f"format `{value:.40}` is not known and would never be checked", hint)
        elif key not in KEYWORDS and not key.startswith("x-"):
            hint = nearest(key, KEYWORDS) or "remove it, or rename a custom keyword to `x-…`"
            yield Finding(at, f"`{key:.40}` is not a keyword of JSON Schema and checks nothing", hint, key=True)


def _unnamed_findings(schema: dict[str, Any], path: Path) -> Iterator[Finding]:
    """Yield required members that a closed object does not name. No value could match such a schema."""
    for place, part in subschemas(schema):
        if part.get("additionalProperties") is not False or "patternProperties" in part:
            continue
        named = part.get("properties", {})
        for at, name in enumerate(part.get("required", ())):
            if name not in named:
                hint = nearest(name, named) or "add it to `properties`"
                yield Finding((*path, *place, "required", at), f"`{name:.40}` is required but undefined", hint)


def _pattern_findings(value: Any, path: Path) -> Iterator[Finding]:
    for pattern in value if isinstance(value, dict) else [value]:
        if not isinstance(pattern, str):
            continue  # The check against the meta-schema reports this fault.
        try:
            compile_schema({"pattern": pattern})
        except UsageError:
            inside = isinstance(value, dict)
            yield Finding(
                (*path, pattern) if inside else path,
                f"`{pattern:.60}` is not a regular expression that can be checked in linear time",
                r"check its brackets; instead of look-around and back-references, write out the allowed text, as in "
                r"`^[+-]?\d+(\.\d+)?$`; instead of a huge repetition, state `maxLength`",
                key=inside,
            )
