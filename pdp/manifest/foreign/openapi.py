"""Operations of an OpenAPI 3 document as tools: parameters and JSON body as one object of arguments."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from pdp.documents import shown_name
from pdp.errors import UsageError
from pdp.manifest.foreign.dialects import translated
from pdp.manifest.schema.references import referred, resolve

_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
# Header parameters of these names are ignored (OpenAPI 3.1, parameter object).
_PROTOCOL: Final = ("accept", "authorization", "content-type")
# A body of these keywords, and of those that only describe, has its members beside the parameters.
_MERGED: Final = frozenset(("type", "properties", "required", "additionalProperties"))
_DESCRIBING: Final = frozenset(("deprecated", "description", "example", "examples", "externalDocs", "title", "xml"))
_FAULTS: Final = (AttributeError, LookupError, RecursionError, StopIteration, TypeError, ValueError)
_CHECK: Final = "check the document with an OpenAPI validator"


class Operation(NamedTuple):
    """One operation. `fault`: why its `schema`, of the arguments, cannot be read; empty where it can."""

    method: str
    path: str
    id: str | None
    description: str | None
    schema: dict[str, Any]
    notes: tuple[str, ...] = ()
    fault: str = ""


def operations(document: Any, *, headers: bool) -> Iterator[Operation]:
    """Yield the operations of a document. `headers`: whether headers and cookies are arguments.

    A schema that refers to another document has a fault: nothing is fetched. UsageError: not a document of OpenAPI 3.
    """
    if isinstance(document, dict) and "swagger" in document:
        hint = "convert it to OpenAPI 3, for example with swagger2openapi"
        raise UsageError(f"Swagger {document['swagger']!s:.10} is not read, only OpenAPI 3", hint=hint)
    try:
        # A reference then leads to the same schema in the document and in a schema that stands on its own.
        root = json.loads(json.dumps(document).replace('"#/components/schemas/', '"#/$defs/'))
        if not root["openapi"].startswith("3."):
            raise UsageError(f"OpenAPI {root['openapi']!s:.10} is not read, only OpenAPI 3", hint=_CHECK)
        root["$defs"] = root.get("components", {}).get("schemas", {})
        paths = [*root["paths"].items()]
    except _FAULTS as error:
        raise UsageError(f"not a document of OpenAPI 3: {_reason(error)}", hint=_CHECK) from None
    for path, stated in paths:
        try:
            item = _target(root, stated)
            methods = [method for method in _METHODS if method in item]
        except _FAULTS as error:
            yield Operation("ANY", path, path, None, {}, fault=f"the path cannot be read: {_reason(error)}; {_CHECK}")
            continue
        for method in methods:
            yield _operation(root, path, item, method, headers=headers)


def _operation(root: dict[str, Any], path: str, item: dict[str, Any], method: str, *, headers: bool) -> Operation:
    operation = item[method]
    told = operation if isinstance(operation, dict) else {}
    texts = [at if isinstance(at, str) else None for at in map(told.get, ("operationId", "description", "summary"))]
    made = Operation(method.upper(), path, texts[0], texts[1] or texts[2], {})
    try:
        parameters = [*item.get("parameters", ()), *operation.get("parameters", ())]
        schema = _arguments(root, [_target(root, each) for each in parameters], operation, headers=headers)
        shared = {at.split("/")[2] for at in referred(schema, root) if at.startswith("#/$defs/")}
        used = {at: root["$defs"][at] for at in sorted(shared & root["$defs"].keys())}
        read = translated(schema | ({"$defs": used} if used else {}), root["openapi"])
    except UsageError as error:
        return made._replace(fault=f"{error.message}; {error.hint}")
    except _FAULTS as error:
        return made._replace(fault=f"its arguments cannot be read: {_reason(error)}; {_CHECK}")
    return made._replace(schema=read.schema, notes=read.notes)


def _reason(error: Exception) -> str:
    return f"{shown_name(error.args[0])} is missing" if isinstance(error, KeyError) else f"{error!r:.200}"


def _target(root: dict[str, Any], value: Any) -> Any:
    """Return what a reference leads to, or the value itself. TypeError: nowhere; RecursionError: in a circle."""
    return _target(root, resolve(root, value["$ref"])) if "$ref" in value else value


def _arguments(
    root: dict[str, Any], parameters: list[Any], operation: Mapping[str, Any], *, headers: bool
) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for of in {(at["name"], at["in"]): at for at in parameters}.values():
        is_protocol = of["name"].lower() in _PROTOCOL and of["in"] == "header"
        if not is_protocol and (headers or of["in"] not in ("cookie", "header")):
            name = f"{of['in']}_{of['name']}" if of["name"] in properties else of["name"]
            schema = of["schema"] if "schema" in of else next(iter(of["content"].values()))["schema"]
            properties[name] = {**schema, **{key: of[key] for key in ("description",) if key in of}}
            required += [name] * (of.get("required") is True)
    body = _target(root, operation.get("requestBody", {}))
    if content := body.get("content"):
        schema = next((at for kind, at in content.items() if "json" in kind), next(iter(content.values())))["schema"]
        whole = _target(root, schema) if schema.get("$ref", "#").startswith("#") else schema
        members = whole.get("properties", {})
        constrains = {key for key in whole.keys() - _DESCRIBING if not key.startswith("x-")}
        is_merged = members and constrains <= _MERGED and properties.keys().isdisjoint(members)
        properties |= members if is_merged else {"body": schema}
        if body.get("required") is True:
            required += whole.get("required", []) if is_merged else ["body"]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
