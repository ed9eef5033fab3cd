"""Tests that a translated schema accepts the same values as the original schema does in the draft of the original."""

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pdp.errors import UsageError
from pdp.manifest.foreign.dialects import translated
from pdp.manifest.schema.compile import compile_schema
from pdp.manifest.schema.faults import FORMATS, read_schema

Json = Any
DRAFTS = {
    "http://json-schema.org/draft-04/schema#": jsonschema_rs.Draft4Validator,
    "http://json-schema.org/draft-06/schema#": jsonschema_rs.Draft6Validator,
    "http://json-schema.org/draft-07/schema#": jsonschema_rs.Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
}
OLDEST = next(iter(DRAFTS))
# All validators check formats as draft 2020-12 does, because only translated keywords are compared.
CHECKS = {name: compile_schema({"format": name}).is_valid for name in FORMATS}
TEXTS = ("", "a", "abc", "x-1", "2026-01-01", "ann@example.com", "1.5")
NAMES = ("a", "b", "c", "id")

scalars = st.one_of(st.none(), st.booleans(), st.integers(-3, 12), st.sampled_from((0.5, 1.5)), st.sampled_from(TEXTS))
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)
small = st.integers(0, 3)
# The schemas at these paths contain no references, because the validators do not stop on endless recursion.
TARGETS = (
    "#/definitions/one", "#/$defs/two", "#/properties/a", "#/properties/list/items/0",
    "#/properties/list/additionalItems", "#/properties/object/dependencies/a", "#/properties/a~1b",
)  # fmt: skip


def parts(inner: st.SearchStrategy[Json]) -> dict[str, st.SearchStrategy[Json]]:
    kinds = ("string", "integer", "number", "object", "array", "null", "boolean")
    several = st.lists(inner, min_size=1, max_size=2)
    named = st.dictionaries(st.sampled_from(NAMES), inner, max_size=2)
    texts = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True)
    keywords = {
        "type": st.sampled_from(kinds) | st.lists(st.sampled_from(kinds), min_size=1, max_size=3, unique=True),
        "enum": st.lists(scalars, min_size=1, max_size=4, unique_by=repr), "const": scalars,
        "multipleOf": st.sampled_from((1, 2, 0.5)), "minLength": small, "maxLength": small,
        "pattern": st.sampled_from(("^a", "b", r"\d+", "^[a-z]*$")), "format": st.sampled_from((*FORMATS, "int32")),
        "items": inner | several, "additionalItems": inner, "prefixItems": several, "minItems": small,
        "maxItems": small, "uniqueItems": st.booleans(), "contains": inner, "minContains": small, "maxContains": small,
        "properties": named, "patternProperties": st.dictionaries(st.sampled_from(("^a", "b")), inner, max_size=2),
        "additionalProperties": inner | st.booleans(), "required": texts, "propertyNames": inner,
        "minProperties": small, "maxProperties": small,
        "dependencies": st.dictionaries(st.sampled_from(NAMES), inner | texts, max_size=2),
        "dependentRequired": st.dictionaries(st.sampled_from(NAMES), texts, max_size=2), "dependentSchemas": named,
        "allOf": several, "anyOf": several, "oneOf": several, "not": inner, "if": inner, "then": inner, "else": inner,
        "unevaluatedItems": inner | st.booleans(), "unevaluatedProperties": inner | st.booleans(),
        "description": st.just("d"), "nullable": st.just(True), "x-own": st.just(1), "odd": st.just({"type": "null"}),
    }  # fmt: skip
    for bound in ("Minimum", "Maximum"):
        keywords |= {bound.lower(): small, f"exclusive{bound}": small | st.booleans()}
    return keywords


def of_draft(uri: str, inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    keywords = parts(inner)

    @st.composite
    def made(draw: st.DrawFn) -> Json:
        names = draw(st.lists(st.sampled_from(sorted(keywords)), min_size=1, max_size=4, unique=True))
        schema = {name: draw(keywords[name]) for name in names}
        for bound in ("Minimum", "Maximum"):
            exclusive = schema.get(f"exclusive{bound}")
            if uri == OLDEST and exclusive is not None:
                schema |= {f"exclusive{bound}": bool(exclusive), bound.lower(): schema.get(bound.lower(), 2)}
            elif isinstance(exclusive, bool):
                schema[f"exclusive{bound}"] = 2
        if isinstance(schema.get("items"), list) and uri == [*DRAFTS][-1]:
            schema["items"] = schema["items"][0]
        return possible(schema)

    return made()


def possible(schema: Json) -> Json:
    """Remove `required` from a closed object if it requires an undeclared name, which is a fault in every draft."""
    named, required = schema.get("properties", {}), schema.get("required", ())
    if schema.get("additionalProperties") is False and not {*required} <= {*named}:
        del schema["required"]
    return schema


@st.composite
def schemas(draw: st.DrawFn, uri: str) -> Json:
    booleans = st.nothing() if uri == OLDEST else st.booleans()
    leaf = of_draft(uri, st.sampled_from(({"type": "string"}, {"minimum": 2}, {})) | booleans)
    references = st.builds(
        lambda target, beside: {"$ref": target, **beside}, st.sampled_from(TARGETS), st.just({}) | leaf
    )
    tree = of_draft(uri, leaf | references | of_draft(uri, leaf | references))
    listed = {"items": draw(leaf)} if uri == [*DRAFTS][-1] else {"items": [draw(leaf)], "additionalItems": draw(leaf)}
    return possible({
        **draw(tree), "$schema": uri, "type": "object",
        "definitions": {"one": draw(leaf)}, "$defs": {"two": draw(leaf)},
        "properties": {
            "a": draw(leaf), "b": draw(tree), "c": draw(references), "a/b": draw(leaf),
            "list": {"type": "array", **listed}, "object": {"dependencies": {"a": draw(leaf)}},
        },
    })  # fmt: skip


@pytest.mark.parametrize("uri", DRAFTS)
def test_translated_schema_accepts_the_same_values_as_the_original(uri: str) -> None:
    names = st.sampled_from((*NAMES, "list", "object", "a/b"))
    outcomes = set[bool]()

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(schemas(uri), st.lists(st.dictionaries(names, values), min_size=4, max_size=12))
    def compare(schema: Json, arguments: list[Json]) -> None:
        try:
            original = DRAFTS[uri](schema, validate_formats=True, formats=CHECKS, ignore_unknown_formats=True)
        except (ValueError, jsonschema_rs.ValidationError):
            assume(False)
        try:
            read = translated(schema).schema
        except UsageError:  # Some schemas cannot be translated, for example if the target of a reference is dropped.
            assume(False)
        # If `dependencies` is beside a newer keyword for the same purpose, it is not translated, so the manifest
        # rejects the schema.
        faults = read_schema(read, {}, ("schema",), root_object=False)[1]
        assume(not any("dependencies" in fault.path for fault in faults))
        assert faults == []
        copy = compile_schema(read)
        for value in arguments:
            assert copy.is_valid(value) == original.is_valid(value), (value, schema, read)
            outcomes.add(original.is_valid(value))

    compare()
    assert outcomes == {True, False}


UNDECLARED: dict[str, tuple[Json, list[Json], list[Json]]] = {
    "tuple": ({"items": [{"type": "string"}], "additionalItems": False}, [["a"]], [["a", 1], [1]]),
    "exclusive": ({"minimum": 1, "exclusiveMinimum": True, "maximum": 3, "exclusiveMaximum": False}, [2, 3], [1, 4]),
    "dependencies": ({"dependencies": {"a": ["b"]}}, [{"b": 1}], [{"a": 1}]),
    "nullable": ({"type": "string", "nullable": True}, ["a", None], [1]),
    "an odd format": ({"type": "integer", "format": "int32"}, [1, 2**40], ["a"]),
    "a pattern with a bound": ({"type": "string", "pattern": "(?=a)b", "maxLength": 2}, ["xx"], ["xxx"]),
}


@pytest.mark.parametrize("name", UNDECLARED)
def test_keywords_of_old_drafts_are_translated_if_the_schema_declares_no_draft(name: str) -> None:
    schema, passing, failing = UNDECLARED[name]
    whole = compile_schema(translated({"type": "object", "properties": {"v": schema}}).schema)

    assert [whole.is_valid({"v": value}) for value in passing + failing] == [True] * len(passing) + [False] * len(
        failing
    )


REFUSED: dict[str, tuple[Json, str]] = {
    "draft-03": ({"$schema": "http://json-schema.org/draft-03/schema#"}, "unknown `$schema`"),
    "a pattern": ({"properties": {"v": {"pattern": "(?=a)b"}}}, "the pattern `(?=a)b` cannot be checked"),
    "a pattern that turns": (
        {"properties": {"v": {"not": {"pattern": "(?=a)b", "maxLength": 2}}}}, "a pattern cannot be dropped beside",
    ),
    "a nested id": (
        {"properties": {"v": {"$id": "http://example.com/x", "items": {"$ref": "#/properties/w"}}, "w": {}}},
        "a nested `$id`",
    ),
    "elsewhere": ({"properties": {"v": {"$ref": "other.json#/x"}}}, "$ref target is outside"),
    "a shared type of manifests": ({"properties": {"v": {"$ref": "Metric"}}}, "$ref target is outside"),
    "too deep": (json.loads('{"not":' * 80 + "{}" + "}" * 80), "nested deeper"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_foreign_schema_that_cannot_be_translated_is_an_error_with_a_hint(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        translated(REFUSED[name][0])

    assert REFUSED[name][1] in caught.value.message
    assert caught.value.hint


def test_references_to_moved_definitions_are_translated() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#", "$id": "https://example.com/s",
        "type": ["object", "null"],
        "definitions": {"Pair": {"items": [{"$ref": "#/definitions/One"}]}, "One": {"type": "string"}},
        "properties": {
            "pair": {"$ref": "https://example.com/s#/definitions/Pair"}, "one": {"$ref": "#/definitions/Pair/items/0"},
        },
    }  # fmt: skip

    assert translated(schema) == (
        {
            "type": "object",
            "$defs": {"Pair": {"prefixItems": [{"$ref": "#/$defs/One"}]}, "One": {"type": "string"}},
            "properties": {"pair": {"$ref": "#/$defs/Pair"}, "one": {"$ref": "#/$defs/Pair/prefixItems/0"}},
        },
        ("read as draft-07",),
    )


@pytest.mark.parametrize("kind", [7, None, True, {"object": 1}])
def test_invalid_type_keyword_is_not_changed(kind: Any) -> None:
    read = translated({"type": kind, "properties": {}}).schema

    assert read["type"] == kind
    assert read_schema(read, {}, (), root_object=True)[1]
