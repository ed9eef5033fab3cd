"""Translate JSON Schemas of other drafts to draft 2020-12, which manifests are written in.

A value passes the translation exactly where it passes the original, with these exceptions:

* Formats that 2020-12 defines are checked, whatever the draft. Draft-06 and draft-07 let a validator check
  `contentEncoding` and `contentMediaType`; 2020-12 does not.
* In draft-04, 1.0 is not an integer. Later drafts do not tell 1.0 from 1.
* A pattern that cannot be checked in linear time is dropped where `maxLength`, `enum` or `const` stands beside it. More
  values pass then, but only values that those keywords admit, and the server still checks its pattern.
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
"""As `$schema` has them; an older one compares as smaller."""

# The draft that brought a keyword: validators of older drafts ignore it.
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
# Where a schema admits more values, a schema that has one of these may admit fewer.
_TURNING: Final = frozenset(("contains", "if", "not", "oneOf"))
_DEEPEST: Final = 64
_ASK: Final = "ask its author to change it"


class Translation(NamedTuple):
    """A schema of draft 2020-12. `notes`: what was read in another way, and what was dropped, each once."""

    schema: dict[str, Any]
    notes: tuple[str, ...]


def translated(schema: Mapping[str, Any], openapi: str = "") -> Translation:
    """Return the schema of a tool's arguments as a manifest states it. `openapi`: the version of its document.

    Faults that loading a manifest finds are left to it. UsageError: 2020-12 cannot say what the schema says.
    """
    reader = _Reader(schema, openapi)
    whole: dict[str, Any] = reader.part(schema, (), ())
    if isinstance(kinds := whole.get("type", ["object"]), list) and "object" in kinds:
        whole["type"] = "object"  # arguments are always an object
    reader.finish(whole)
    return Translation(whole, tuple(dict.fromkeys(reader.notes)))


class _Reader:
    """Reads the parts of one schema, and keeps where each of them goes."""

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
                raise UsageError(f"`$schema` {shown_name(uri)} is not known", hint=f"known: {', '.join(_DRAFTS)}")
            self.notes += [f"read as {self._draft}"] * (self._draft != _DRAFTS[-1])
        self._id = "id" if self._draft == _DRAFTS[0] else "$id"
        self._base = str(schema.get(self._id, "")).partition("#")[0]

    def part(self, schema: Any, old: tuple[str, ...], new: Path) -> Any:
        """Return a copy of the schema that stands at `old` and will stand at `new`; its references are as they were."""
        if len(old) > _DEEPEST:
            raise UsageError(f"the schema is nested deeper than {_DEEPEST} levels", hint=_ASK)
        self._places[old] = new
        if not isinstance(schema, dict):
            return schema
        kept = {key: value for key, value in schema.items() if self._keeps(schema, key, value)}
        if not str(kept.pop(self._id, "#")).startswith("#") and old:
            self._seen.add("nested id")
        if kept.pop("nullable", None) is True and not self._is_declared and isinstance(kept.get("type"), str):
            kept["type"] = sorted({kept["type"], "null"})
        origin = _reworded(kept)
        self._seen |= kept.keys()
        return with_parts(
            kept,
            lambda part, at: self.part(part, (*old, origin.get(at[0], str(at[0])), *map(str, at[1:])), (*new, *at)),
        )

    def finish(self, whole: dict[str, Any]) -> None:
        """Have each reference lead where its target stands now. UsageError: it has none, or would mean another."""
        if "dropped pattern" in self._seen and not _TURNING.isdisjoint(self._seen):
            raise UsageError("a pattern beside `not`, `if`, `oneOf` or `contains` cannot be dropped", hint=_ASK)
        if {"nested id", "$ref"} <= self._seen:
            raise UsageError(f"a nested `{self._id}` changes where `$ref` leads", hint=_ASK)
        if self._draft == "draft/2019-09" and {"contains", "unevaluatedItems"} <= self._seen:
            raise UsageError("`unevaluatedItems` with `contains` has another meaning in 2020-12", hint=_ASK)
        for _, part in subschemas(whole):
            if isinstance(reference := part.get("$ref"), str):
                base, _, pointer = reference.partition("#")
                place = self._places.get(pointer_steps(unquote(pointer)))
                if base not in ("", self._base) or place is None or pointer[:1] not in ("", "/"):
                    raise UsageError(f"$ref leads out of the schema, or nowhere: {reference:.80}", hint=_ASK)
                part["$ref"] = "/".join(("#", *(str(step).replace("~", "~0").replace("/", "~1") for step in place)))

    def _keeps(self, schema: Mapping[str, Any], key: str, value: Any) -> bool:
        """Whether a keyword counts; one that does not is named. UsageError: it does, and cannot be checked."""
        what = key
        if self._draft <= "draft-07" and "$ref" in schema:
            keeps = key in _BESIDE_REFERENCE  # validators ignore all else
        elif key == "format" and isinstance(value, str):
            keeps, what = value in FORMATS, f"format {value}"
        elif key == "pattern" and isinstance(value, str) and not _is_linear(value):
            if _BOUNDS.isdisjoint(schema):
                hint = f"{_ASK}: no look-around, or `maxLength`, `enum` or `const` beside it"
                raise UsageError(f"the pattern {shown_name(value)} cannot be checked in linear time", hint=hint)
            self._seen.add("dropped pattern")
            keeps, what = False, f"pattern {value}"
        else:
            keeps = self._draft >= _SINCE.get(key, "") and (key in _KNOWN or key == self._id)
        if not keeps and key != "$schema" and not key.startswith("x-"):
            self.notes.append(f"dropped: {shown_name(what)}")
        return keeps


def _reworded(schema: dict[str, Any]) -> dict[Any, str]:
    """Write the schema in the words of 2020-12, in place; return the old keyword of each whose parts have moved.

    Where the new word is there as well, the old one stays, and is a fault of the manifest.
    """
    origin: dict[Any, str] = {}
    if "definitions" in schema and "$defs" not in schema:
        schema["$defs"], origin["$defs"] = schema.pop("definitions"), "definitions"
    if isinstance(schema.get("items"), list) and "prefixItems" not in schema:
        schema["prefixItems"], origin["prefixItems"] = schema.pop("items"), "items"
        if "additionalItems" in schema:
            schema["items"], origin["items"] = schema["additionalItems"], "additionalItems"
    schema.pop("additionalItems", None)  # it counts beside a list of items alone
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
