"""Translate JSON Schemas of other drafts to draft 2020-12, which manifests use.

The translated schema accepts the same values as the original, with these exceptions:

* Formats that 2020-12 defines are always checked. `contentEncoding` and `contentMediaType` are never checked,
  although draft-06 and draft-07 allow a validator to check these keywords.
* The translated schema accepts 1.0 as an integer. Draft-04 does not, but later drafts treat 1.0 and 1 as equal.
* A pattern that cannot be checked in linear time is dropped if the schema also has `maxLength`, `enum` or `const`. The
  translated schema then accepts more values, but the server still checks the pattern.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from pdp.documents import shown_name
from pdp.documents.document import Path
from pdp.errors import UsageError
from pdp.json import pointer_steps
from pdp.manifest.schema.compile import compile_schema
from pdp.manifest.schema.faults import FORMATS, KEYWORDS, REFUSED_KEYWORDS
from pdp.manifest.schema.references import subschemas, with_parts

_DRAFTS: Final = ("draft-04", "draft-06", "draft-07", "draft/2019-09", "draft/2020-12")
"""The drafts as `$schema` names them, from the oldest to the newest, which is also their order as texts."""

# The draft in which each keyword was introduced. Validators of older drafts ignore the keyword.
_SINCE: Final = {
    **dict.fromkeys(("const", "contains", "propertyNames"), "draft-06"),
    **dict.fromkeys(("else", "if", "then"), "draft-07"),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "maxContains", "minContains"), "draft/2019-09"),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), "draft/2019-09"),
    "prefixItems": "draft/2020-12",
}
_KNOWN: Final = KEYWORDS.union(REFUSED_KEYWORDS, ("additionalItems", "dependencies")) - {"$schema"}
_BESIDE_REFERENCE: Final = frozenset(("$comment", "$defs", "$ref", "default", "definitions", "description", "title"))
_BOUNDS: Final = frozenset(("const", "enum", "maxLength"))
# Keywords that can invert a schema: if a part below them accepts more values, the whole schema may accept fewer.
_TURNING: Final = frozenset(("contains", "if", "not", "oneOf"))
_DEEPEST: Final = 64
ASK_AUTHOR: Final = "ask the author of the tool to correct the tool"


class Translation(NamedTuple):
    """A schema in draft 2020-12. `notes` names each keyword that was translated or dropped."""

    schema: dict[str, Any]
    notes: tuple[str, ...]


def translated(schema: Mapping[str, Any], openapi: str = "") -> Translation:
    """Translate a schema to draft 2020-12, or raise `UsageError`. `openapi` is the OpenAPI version of the document."""
    reader = _Reader(schema, openapi)
    whole: dict[str, Any] = reader.part(schema, (), ())
    if isinstance(kinds := whole.get("type", ["object"]), list) and "object" in kinds:
        whole["type"] = "object"  # The arguments of a call are always an object, so the type is added.
    reader.finish(whole)
    return Translation(whole, tuple(dict.fromkeys(reader.notes)))


class _Reader:
    def __init__(self, schema: Mapping[str, Any], openapi: str) -> None:
        self.notes: list[str] = []
        self._places: dict[tuple[str, ...], Path] = {}
        self._seen: set[str] = set()
        self._is_declared = "$schema" in schema and not openapi
        self._draft = "draft-07" if openapi.startswith("3.0") else _DRAFTS[-1]
        if self._is_declared:
            uri = str(schema["$schema"])
            self._draft = uri.partition("://json-schema.org/")[2].rstrip("#").removesuffix("/schema")
            if self._draft not in _DRAFTS:
                raise UsageError(f"unknown `$schema` {shown_name(uri)}", hint=f"known: {', '.join(_DRAFTS)}")
            self.notes += [f"read as {self._draft}"] * (self._draft != _DRAFTS[-1])
        self._id = "id" if self._draft == _DRAFTS[0] else "$id"
        self._base = str(schema.get(self._id, "")).partition("#")[0]

    def part(self, schema: Any, old: tuple[str, ...], new: Path) -> Any:
        if len(old) > _DEEPEST:
            raise UsageError(f"the schema is nested deeper than {_DEEPEST} levels", hint=ASK_AUTHOR)
        self._places[old] = new
        if not isinstance(schema, dict):
            return schema
        kept = {key: value for key, value in schema.items() if self._keeps(schema, key, value)}
        if not str(kept.pop(self._id, "#")).startswith("#") and old:
            self._seen.add("nested id")
        if kept.pop("nullable", None) is True and not self._is_declared and isinstance(kept.get("type"), str):
            kept["type"] = sorted({kept["type"], "null"})
        origin = _rename_keywords(kept)
        self._seen |= kept.keys()
        return with_parts(
            kept,
            lambda part, at: self.part(part, (*old, origin.get(at[0], str(at[0])), *map(str, at[1:])), (*new, *at)),
        )

    def finish(self, whole: dict[str, Any]) -> None:
        """Update each `$ref` to its target's new location. Raise `UsageError` if the translation is not possible."""
        if "dropped pattern" in self._seen and not _TURNING.isdisjoint(self._seen):
            raise UsageError("a pattern cannot be dropped beside `not`, `if`, `oneOf` or `contains`", hint=ASK_AUTHOR)
        if {"nested id", "$ref"} <= self._seen:
            raise UsageError(f"a nested `{self._id}` changes the targets of `$ref`", hint=ASK_AUTHOR)
        if self._draft == "draft/2019-09" and {"contains", "unevaluatedItems"} <= self._seen:
            raise UsageError("`unevaluatedItems` with `contains` has another meaning in 2020-12", hint=ASK_AUTHOR)
        for _, part in subschemas(whole):
            if isinstance(reference := part.get("$ref"), str):
                base, _, pointer = reference.partition("#")
                place = self._places.get(pointer_steps(unquote(pointer)))
                if base not in ("", self._base) or place is None or pointer[:1] not in ("", "/"):
                    raise UsageError(
                        f"$ref target is outside the schema or does not exist: {reference:.80}", hint=ASK_AUTHOR
                    )
                part["$ref"] = "/".join(("#", *(str(step).replace("~", "~0").replace("/", "~1") for step in place)))

    def _keeps(self, schema: Mapping[str, Any], key: str, value: Any) -> bool:
        what = key
        if self._draft <= "draft-07" and "$ref" in schema:
            keeps = key in _BESIDE_REFERENCE  # Beside `$ref`, validators of these drafts ignore all other keywords.
        elif key == "format" and isinstance(value, str):
            keeps, what = value in FORMATS, f"format {value}"
        elif key == "pattern" and isinstance(value, str) and not _is_linear(value):
            if _BOUNDS.isdisjoint(schema):
                hint = f"{ASK_AUTHOR}: remove look-around, or add `maxLength`, `enum` or `const`"
                raise UsageError(f"the pattern {shown_name(value)} cannot be checked in linear time", hint=hint)
            self._seen.add("dropped pattern")
            keeps, what = False, f"pattern {value}"
        else:
            keeps = self._draft >= _SINCE.get(key, "") and (key in _KNOWN or key == self._id)
        if not keeps and key != "$schema" and not key.startswith("x-"):
            self.notes.append(f"dropped: {shown_name(what)}")
        return keeps


def _rename_keywords(schema: dict[str, Any]) -> dict[Any, str]:
    """Rename old keywords in place, unless the new name exists too. Return a dictionary from new to old names."""
    origin: dict[Any, str] = {}
    if "definitions" in schema and "$defs" not in schema:
        schema["$defs"], origin["$defs"] = schema.pop("definitions"), "definitions"
    if isinstance(schema.get("items"), list) and "prefixItems" not in schema:
        schema["prefixItems"], origin["prefixItems"] = schema.pop("items"), "items"
        if "additionalItems" in schema:
            schema["items"], origin["items"] = schema["additionalItems"], "additionalItems"
    schema.pop("additionalItems", None)  # The keyword has an effect only beside a list of item schemas.
    needs = schema.get("dependencies")
    if isinstance(needs, dict) and schema.keys().isdisjoint(("dependentRequired", "dependentSchemas")):
        schema["dependentRequired"] = {name: at for name, at in needs.items() if isinstance(at, list)}
        schema["dependentSchemas"] = {name: at for name, at in needs.items() if name not in schema["dependentRequired"]}
        origin["dependentSchemas"] = "dependencies"
        del schema["dependencies"]
    for key, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(key), bool) and schema.pop(key) and bound in schema:
            schema[key] = schema.pop(bound)
    return origin


def _is_linear(pattern: str) -> bool:
    try:
        compile_schema({"pattern": pattern})
    except UsageError:
        return False
    return True
