"""Read the operations of an OpenAPI 3 document as tools, whose arguments are the parameters and the JSON body."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from pdp.documents import shown_name
from pdp.errors import UsageError
from pdp.manifest.foreign.dialects import translated
from pdp.manifest.schema.references import referred, resolve

_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
# OpenAPI 3.1 ignores header parameters with these names (section "Parameter Object").
_PROTOCOL: Final = ("accept", "authorization", "content-type")
# The properties of a request's body become arguments beside the parameters only if the body's schema has no keywords
# other than these and descriptive keywords.
_MERGED: Final = frozenset(("type", "properties", "required", "additionalProperties"))
_DESCRIBING: Final = frozenset(("deprecated", "description", "example", "examples", "externalDocs", "title", "xml"))
_TEXTS: Final = ("operationId", "description", "summary")
_FAULTS: Final = (AttributeError, LookupError, RecursionError, StopIteration, TypeError, ValueError)
_CHECK: Final = "check the document with an OpenAPI validator"


class Operation(NamedTuple):
    """An HTTP operation. `schema` describes its arguments. `fault` is why the arguments cannot be read, or empty."""

    method: str
    path: str
    id: str | None
    description: str | None
    schema: dict[str, Any]
    notes: tuple[str, ...] = ()
    fault: str = ""


def operations(document: Any, *, headers: bool) -> Iterator[Operation]:
    """Yield the operations of an OpenAPI document. With `headers`, arguments include headers and cookies.

    Raise `UsageError` if the document is not OpenAPI 3. References to other documents are faults: nothing is fetched.
    """
    if isinstance(document, dict) and "swagger" in document:
        hint = "convert it to OpenAPI 3, for example with swagger2openapi"
        raise UsageError(f"Swagger {document['swagger']!s:.10} is not supported, only OpenAPI 3", hint=hint)
    try:
        # With this path, a reference names the same schema in the document and in a self-contained schema.
        root = json.loads(json.dumps(document).replace('"#/components/schemas/', '"#/$defs/'))
        if not root["openapi"].startswith("3."):
            raise UsageError(f"OpenAPI {root['openapi']!s:.10} is not supported, only OpenAPI 3", hint=_CHECK)
        root["$defs"] = root.get("components", {}).get("schemas", {})
        paths = [*root["paths"].items()]
    except _FAULTS as error:
        raise UsageError(f"not an OpenAPI 3 document: {_reason(error)}", hint=_CHECK) from None
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
    fields = operation if isinstance(operation, dict) else {}
    texts = [text if isinstance(text, str) else None for text in map(fields.get, _TEXTS)]
    made = Operation(method.upper(), path, texts[0], texts[1] or texts[2], {})
    try:
        parameters = [*item.get("parameters", ()), *operation.get("parameters", ())]
        schema = _arguments(root, [_target(root, parameter) for parameter in parameters], operation, headers=headers)
        shared = {name.split("/")[2] for name in referred(schema, root) if name.startswith("#/$defs/")}
        used = {name: root["$defs"][name] for name in sorted(shared & root["$defs"].keys())}
        read = translated(schema | ({"$defs": used} if used else {}), root["openapi"])
    except UsageError as error:
        return made._replace(fault=f"{error.message}; {error.hint}")
    except _FAULTS as error:
        return made._replace(fault=f"its arguments cannot be read: {_reason(error)}; {_CHECK}")
    return made._replace(schema=read.schema, notes=read.notes)


def _reason(error: Exception) -> str:
    return f"{shown_name(error.args[0])} is missing" if isinstance(error, KeyError) else f"{error!r:.200}"


def _target(root: dict[str, Any], value: Any) -> Any:
    """Return the target of a reference; other values unchanged. Raise RecursionError (cycle), TypeError (no target)."""
    return _target(root, resolve(root, value["$ref"])) if "$ref" in value else value


def _arguments(
    root: dict[str, Any], parameters: list[Any], operation: Mapping[str, Any], *, headers: bool
) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for item in {(value["name"], value["in"]): value for value in parameters}.values():
        is_protocol = item["name"].lower() in _PROTOCOL and item["in"] == "header"
        if not is_protocol and (headers or item["in"] not in ("cookie", "header")):
            name = f"{item['in']}_{item['name']}" if item["name"] in properties else item["name"]
            schema = item["schema"] if "schema" in item else next(iter(item["content"].values()))["schema"]
            properties[name] = {**schema, **{key: item[key] for key in ("description",) if key in item}}
            required += [name] * (item.get("required") is True)
    body = _target(root, operation.get("requestBody", {}))
    if content := body.get("content"):
        schema = next((part for kind, part in content.items() if "json" in kind), next(iter(content.values())))[
            "schema"
        ]
        whole = _target(root, schema) if schema.get("$ref", "#").startswith("#") else schema
        members = whole.get("properties", {})
        constrains = {key for key in whole.keys() - _DESCRIBING if not key.startswith("x-")}
        is_merged = members and constrains <= _MERGED and properties.keys().isdisjoint(members)
        properties |= members if is_merged else {"body": schema}
        if body.get("required") is True:
            required += whole.get("required", []) if is_merged else ["body"]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
