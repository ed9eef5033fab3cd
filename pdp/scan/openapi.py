"""Tools as an OpenAPI 3 document has them: an operation each, parameters and JSON body as one object of arguments."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from pdp.documents import read_document
from pdp.errors import UsageError
from pdp.manifest.schema.references import referred, resolve
from pdp.scan.exposed import ExposedTool, Exposure, plain_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
# Header parameters of these names are ignored (OpenAPI 3.1, parameter object).
_PROTOCOL: Final = ("accept", "authorization", "content-type")
_CAPITAL: Final = re.compile(r"([a-z0-9])([A-Z])|([A-Z])(?=[A-Z][a-z])")
_MERGED: Final = frozenset(("type", "properties", "required", "title", "description", "additionalProperties"))


def openapi_tools(file: str) -> Exposure:
    """Return the operations as tools: `operationId`, or method and path, in snake_case. UsageError: no such document.

    A schema that refers to another document stays as it is: no manifest takes it, and nothing is fetched.
    """
    # A reference then leads to the same schema in the document and in a schema of its own.
    root = json.loads(json.dumps(read_document(file).value).replace('"#/components/schemas/', '"#/$defs/'))
    try:
        if not root["openapi"].startswith("3."):
            raise KeyError("openapi: 3")  # noqa: TRY301 - as if it were not there
        root["$defs"] = root.get("components", {}).get("schemas", {})
        return Exposure([*_operations(root, file)], [])
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        hint = "check it with an OpenAPI validator"
        raise UsageError(f"{file}: not an OpenAPI 3 document: {error!r:.200}", hint=hint) from None


def _operations(root: dict[str, Any], file: str) -> Iterator[ExposedTool]:
    for path, stated in root["paths"].items():
        item = _target(root, stated)
        for method in filter(item.__contains__, _METHODS):
            operation, called = item[method], f"{method.upper()} {path}"
            words = re.sub(
                r"([a-z0-9])([A-Z])|([A-Z])(?=[A-Z][a-z])", r"\1\3_\2", operation.get("operationId") or called
            )
            name = re.sub(r"[^A-Za-z0-9]+", "_", words).strip("_").lower()
            schema = _arguments(root, (*item.get("parameters", ()), *operation.get("parameters", ())), operation)
            shared = {at.split("/")[2] for at in referred(schema, root) if at.startswith("#/$defs/")} & root[
                "$defs"
            ].keys()
            schema |= {"$defs": {at: root["$defs"][at] for at in sorted(shared)}} if shared else {}
            yield ExposedTool(
                name, f"{file}: {called}", operation.get("description") or operation.get("summary"),
                plain_schema(schema), reads=method in ("get", "head"), destroys=method == "delete" or None,
            )  # fmt: skip


def _target(root: dict[str, Any], value: Any) -> Any:
    """Return what a reference leads to, or the value itself. TypeError: nowhere; RecursionError: in a circle."""
    return _target(root, resolve(root, value["$ref"])) if "$ref" in value else value


def _arguments(root: dict[str, Any], parameters: Any, operation: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for of in {(at["name"], at["in"]): at for at in (_target(root, each) for each in parameters)}.values():
        if of["name"].lower() not in _PROTOCOL or of["in"] != "header":
            name = f"{of['in']}_{of['name']}" if of["name"] in properties else of["name"]
            schema = of["schema"] if "schema" in of else next(iter(of["content"].values()))["schema"]
            properties[name] = {**schema, **{key: of[key] for key in ("description",) if key in of}}
            required += [name] * (of.get("required") is True)
    body = _target(root, operation.get("requestBody", {}))
    if content := body.get("content"):
        schema = next((at for kind, at in content.items() if "json" in kind), next(iter(content.values())))["schema"]
        whole = _target(root, schema) if schema.get("$ref", "#").startswith("#") else schema
        members = whole.get("properties", {})
        is_merged = members and whole.keys() <= _MERGED and properties.keys().isdisjoint(members)
        properties |= members if is_merged else {"body": schema}
        if body.get("required") is True:
            required += whole.get("required", []) if is_merged else ["body"]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
