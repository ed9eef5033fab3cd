"""The page of the HTTP API, from the OpenAPI document of the service."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pdp.service.openapi import openapi_document
from scripts.reference.fields import fields_table, in_words, type_of
from scripts.reference.markdown import code, escaped, fence, page, paragraph, table

_JSON: Final = "application/json"


def pages() -> Iterator[tuple[str, str]]:
    """Yield the file name and the text of the page."""
    document = openapi_document()
    yield (
        "http-api.md",
        page(
            "HTTP API",
            paragraph(document["info"]["description"]),
            "The service describes itself as OpenAPI at `/openapi.json`, and in a browser at `/docs`. "
            "See [Codes](codes.md) for the codes of errors.",
            *_operations(document),
            "## Bodies",
            *_models(document),
        ),
    )


def _operations(document: Mapping[str, Any]) -> Iterator[str]:
    for tag in document["tags"]:
        yield f"## {tag['name'][0].upper()}{tag['name'][1:]}"
        yield paragraph(tag["description"]) + "."
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                if operation["tags"] == [tag["name"]]:
                    yield from _operation(f"{method.upper()} {path}", operation, document)


def _operation(name: str, operation: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    yield paragraph(f"{operation['summary']}.\n\n{operation.get('description', '')}")
    yield _security(operation.get("security", ()))
    if parameters := operation.get("parameters"):
        rows = [(code(each["name"]), each["in"], type_of(each["schema"], document)) for each in parameters]
        yield table(("parameter", "in", "type"), rows)
    if content := operation.get("requestBody", {}).get("content", {}):
        for part in content.values():
            yield f"**Body**: {type_of(part['schema'], document)}"
            for example in _examples(part):
                yield fence("json", json.dumps(example, indent=2, ensure_ascii=False))
    rows = [(status, _answer(answer, document)) for status, answer in operation["responses"].items()]
    yield table(("status", "answer"), [(status, text) for status, text in rows])


def _security(security: Any) -> str:
    scopes = [scope for each in security for scope in each.get("token", ())]
    allows = [f"a token with the scope {' or '.join(map(code, scopes))}"] if scopes else []
    allows += ["a token" for each in security if each.get("token") == []]
    allows += ["the cookie of a browser session" for each in security if "cookie" in each]
    return f"**Needs**: {', or '.join(allows)}." if allows else "**Needs**: no token."


def _answer(answer: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    kinds = [type_of(part["schema"], document) for part in answer.get("content", {}).values() if part.get("schema")]
    text = answer["description"].replace("Successful Response", "" if kinds else "No content")
    return ": ".join(filter(None, (escaped(text), " or ".join(kinds))))


def _examples(part: Mapping[str, Any]) -> Iterator[Any]:
    if "example" in part:
        yield part["example"]
    yield from (each["value"] for each in part.get("examples", {}).values() if "value" in each)


def _models(document: Mapping[str, Any]) -> Iterator[str]:
    for name, model in document["components"]["schemas"].items():
        if "properties" in model:
            yield f"### {in_words(name)}"
            yield paragraph(model.get("description", ""))
            yield fields_table(model, document)
