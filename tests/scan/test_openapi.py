"""Tests of the import of OpenAPI operations as tools."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdp.scan.exposed import ExposedTool, Exposure, openapi_tools

Json = dict[str, Any]

TEXT, NUMBER = {"type": "string"}, {"type": "number"}
ITEM = {"type": "object", "required": ["name"], "properties": {"name": TEXT}}


def of(*required: str, **properties: Any) -> Json:
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


def parameter(name: str, place: str, **stated: Any) -> Json:
    return {"name": name, "in": place, "schema": TEXT, **stated}


def body(schema: Json, kind: str = "application/json", **stated: Any) -> Json:
    return {"requestBody": {"content": {kind: {"schema": schema}}, **stated}}


SCHEMAS: dict[str, tuple[Json, Json]] = {
    "nothing": ({}, of()),
    "parameters of every place": (
        {"parameters": [
            parameter("q", "query", description="What"), parameter("id", "path", required=True),
            parameter("X-Trace", "header"), parameter("theme", "cookie"), parameter("Authorization", "header"),
            parameter("accept", "query"), parameter("Content-Type", "header"),
        ]},
        of("id", **{"q": {**TEXT, "description": "What"}, "id": TEXT, "X-Trace": TEXT, "theme": TEXT, "accept": TEXT}),
    ),
    "one name in two places": (
        {"parameters": [parameter("id", "path", required=True), parameter("id", "query", schema=NUMBER)]},
        of("id", id=TEXT, query_id=NUMBER),
    ),
    "a parameter with content": (
        {"parameters": [{"name": "f", "in": "query", "content": {"application/json": {"schema": ITEM}}}]}, of(f=ITEM),
    ),
    "a body that is needed": (body(ITEM, required=True), of("name", name=TEXT)),
    "a body that may be left out": (body(ITEM), of(name=TEXT)),
    "a body of a list": (body({"type": "array", "items": TEXT}, required=True), of("body", body={
        "type": "array", "items": TEXT,
    })),
    "a body with alternatives": (body({**ITEM, "anyOf": [{}]}), of(body={**ITEM, "anyOf": [{}]})),
    "a body with the name of a parameter": (
        {"parameters": [parameter("name", "query")], **body(ITEM)}, of(name=TEXT, body=ITEM),
    ),
    "JSON before a form": (
        {"requestBody": {"content": {
            "application/x-www-form-urlencoded": {"schema": NUMBER}, "application/vnd.x+json": {"schema": ITEM},
        }}},
        of(name=TEXT),
    ),
    "a form": (body(ITEM, "multipart/form-data"), of(name=TEXT)),
    "what nobody checks": (
        {"parameters": [parameter("n", "query", schema={"type": "integer", "format": "int64", "x-at": 1, "odd": 2})]},
        of(n={"type": "integer"}),
    ),
}  # fmt: skip


def read(document: Json, folder: Path) -> Exposure:
    (folder / "api.json").write_text(json.dumps({"openapi": "3.1.0", **document}))
    return openapi_tools(str(folder / "api.json"))


@pytest.mark.parametrize("name", SCHEMAS)
def test_parameters_and_body_of_an_operation_become_one_object(name: str, tmp_path: Path) -> None:
    operation, schema = SCHEMAS[name]

    assert [tool.schema for tool in read({"paths": {"/x": {"post": operation}}}, tmp_path).tools] == [schema]


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        ("getUserByID", "get_user_by_id"), ("getHTTPStatus", "get_http_status"), ("list-users", "list_users"),
        ("users.list", "users_list"), ("v2Users", "v2_users"), ("a\nb: c", "a_b_c"), (None, "put_users_id_files"),
    ],
)  # fmt: skip
def test_tool_names_are_in_snake_case(stated: str | None, name: str, tmp_path: Path) -> None:
    operation = {} if stated is None else {"operationId": stated}

    assert [tool.name for tool in read({"paths": {"/users/{id}/files": {"put": operation}}}, tmp_path).tools] == [name]


def test_http_method_of_an_operation_sets_the_effect_hints(tmp_path: Path) -> None:
    methods = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
    item = {"summary": "s", "x-y": 1, **{method: {"description": method} for method in methods}}
    hints = {"get": (True, None), "head": (True, None), "delete": (False, True)}
    file = tmp_path / "api.json"

    assert read({"paths": {"/x": item}}, tmp_path).tools == [
        ExposedTool(f"{method}_x", f"{file}: {method.upper()} /x", method, of(), *hints.get(method, (False, None)))
        for method in methods
    ]


def test_schema_of_an_operation_includes_only_referenced_components(tmp_path: Path) -> None:
    def ref(name: str) -> Json:
        return {"$ref": f"#/components/schemas/{name}"}

    def defined(name: str) -> Json:
        return {"$ref": f"#/$defs/{name}"}

    tree = {"type": "object", "properties": {"next": ref("Tree"), "leaf": ref("Leaf")}}
    document = {
        "paths": {
            "/x": {"$ref": "#/components/pathItems/x"},
            "/y": {"post": {"requestBody": {"$ref": "#/components/requestBodies/y"}}},
        },
        "components": {
            "pathItems": {"x": {"post": body(ref("Tree"))}},
            "requestBodies": {"y": body(ref("Leaf"))["requestBody"]},
            "schemas": {"Tree": tree, "Leaf": {"type": "object", "properties": {"name": TEXT}}, "Other": {}},
        },
    }
    leaf = {"type": "object", "properties": {"name": TEXT}}
    own = {"next": defined("Tree"), "leaf": defined("Leaf")}

    assert [tool.schema for tool in read(document, tmp_path).tools] == [
        {**of(**own), "$defs": {"Tree": {"type": "object", "properties": own}, "Leaf": leaf}},
        of(name=TEXT),
    ]
