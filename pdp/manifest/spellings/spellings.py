"""Other spellings and shapes of a manifest, read as the one that the models have.

camelCase keys, and the shapes of the tool registry record (tool pattern library, 9.5): `markings: [allowed: a, b]`,
`signature` for the two schemas, a name that is the end of the id; and of the tool registry document:
`idempotency_required`. What is reshaped keeps its place in the file.
"""

from __future__ import annotations

import re
import types
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from pdp.manifest.findings import Finding
from pdp.manifest.model import DeclaredTool, Governable, Governance, Manifest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdp.documents.document import Path

_NULLABLE = ("correct", "default", "deprecation")
_CAMEL = re.compile(r"(?<=[a-z0-9])([A-Z])")


class Reshaped:
    """A value in the models' spelling.

    Attributes:
        value: the value; what was there is never changed.
        findings: what could not be reshaped, with paths in the original.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self.findings: list[Finding] = []
        self._moved: dict[Path, Path] = {}

    def where(self, path: Path) -> Path:
        """Return the path in the original of what is at `path` in `value`."""
        original: Path = ()
        for end in range(1, len(path) + 1):
            original = self._moved.get(path[:end], (*original, path[end - 1]))
        return original

    def move(self, path: Path, original: Path) -> None:
        """Remember that what is at `path` in `value` was at `original`."""
        self._moved[path] = original


def reshaped_manifest(root: dict[str, Any]) -> Reshaped:
    """Return a manifest in the models' spelling; its tools are left for `reshaped_tool`.

    A file that is one registry record (it has `id` or `name`, and no `tools`) is a manifest of that tool alone, whose
    `manifest_version` is the record's `version`, unless it states one.
    """
    if "tools" in root or not {"id", "name"} & set(root):
        reshaped = Reshaped(None)
        fields = {name: value for name, value in root.items() if name != "tools"}
        reshaped.value = _respelt(fields, Manifest, reshaped, (), ())
        if "tools" in root:
            reshaped.value["tools"] = root["tools"]
        return reshaped
    record = {name: value for name, value in root.items() if name not in ("$defs", "manifest_version")}
    version = root.get("manifest_version", root.get("version"))
    reshaped = Reshaped({"tools": [record]})
    if version is not None:
        reshaped.value["manifest_version"] = version
        if "manifest_version" not in root:
            reshaped.move(("manifest_version",), ("version",))
    if "$defs" in root:
        reshaped.value["$defs"] = root["$defs"]
    reshaped.move(("tools",), ())
    reshaped.move(("tools", 0), ())
    return reshaped


def reshaped_governance(root: dict[str, Any]) -> Reshaped:
    """Return a governance file in the models' spelling."""
    reshaped = Reshaped(None)
    reshaped.value = _respelt(root, Governance, reshaped, (), ())
    if isinstance(reshaped.value.get("actions"), dict):
        for action, rules in reshaped.value["actions"].items():
            if isinstance(rules, dict):
                _expand_governable(rules, reshaped, ("actions", action))
    return reshaped


def reshaped_tool(record: Any, definitions: Mapping[str, Any]) -> Reshaped:
    """Return one tool entry in the models' spelling. Paths are relative to the entry.

    Args:
        record: the entry as the file states it.
        definitions: the `$defs` of the file, where a `signature` may be defined.
    """
    reshaped = Reshaped(record)
    if not isinstance(record, dict):
        return reshaped
    tool = reshaped.value = _respelt(record, DeclaredTool, reshaped, (), ())
    _expand_governable(tool, reshaped, ())
    if "signature" in tool:
        _expand_signature(tool, reshaped, definitions)
    if "name" not in tool and isinstance(tool.get("id"), str):
        tool["name"] = tool["id"].rpartition(".")[2]
        reshaped.move(("name",), reshaped.where(("id",)))
    return reshaped


def _expand_governable(rules: dict[str, Any], reshaped: Reshaped, at: Path) -> None:
    """Expand the short forms that tool entries and the governance file share, in place."""
    markings = rules.get("markings")
    if isinstance(markings, dict) and set(markings) == {"allowed"}:
        markings = rules["markings"] = markings["allowed"]
        reshaped.move((*at, "markings"), (*reshaped.where((*at, "markings")), "allowed"))
    if isinstance(markings, list):
        flat = []
        for index, one in enumerate(markings):
            if isinstance(one, dict) and set(one) == {"allowed"}:
                reshaped.move((*at, "markings", index), (*reshaped.where((*at, "markings", index)), "allowed"))
                flat.append(one["allowed"])
            else:
                flat.append(one)
        rules["markings"] = flat
    if "idempotency_required" not in rules:
        return
    required = rules.pop("idempotency_required")
    short = reshaped.where((*at, "idempotency_required"))
    block = rules.get("idempotency", {})
    if isinstance(block, dict):
        if block.get("required", required) != required:
            reshaped.findings.append(
                Finding(short, "`idempotency_required` contradicts `idempotency.required`", "state it once", key=True)
            )
        if "idempotency" not in rules:
            reshaped.move((*at, "idempotency"), short)
        if "required" not in block:
            reshaped.move((*at, "idempotency", "required"), short)
        rules["idempotency"] = {"required": required, **block}


def _expand_signature(tool: dict[str, Any], reshaped: Reshaped, definitions: Mapping[str, Any]) -> None:
    """Replace `signature` by the two schemas: `{request, response}`, or a reference to a definition of that form."""
    signature = tool.pop("signature")
    at = reshaped.where(("signature",))
    hint = "write {request: SCHEMA, response: SCHEMA}, or '#/$defs/NAME' where NAME is defined so under $defs"
    reference = signature if isinstance(signature, str) else None
    if isinstance(signature, dict) and set(signature) == {"$ref"}:
        reference = signature["$ref"]
    if isinstance(reference, str):
        name = reference.removeprefix("#/$defs/")
        signature = definitions.get(name) if name != reference else None
        if signature is None:
            reshaped.findings.append(Finding(at, f"`signature` leads nowhere: {reference:.80}", hint))
    if not isinstance(signature, dict) or not {"request"} <= set(signature) <= {"request", "response"}:
        if not reshaped.findings or reshaped.findings[-1].path != at:
            reshaped.findings.append(Finding(at, "`signature` must hold the schemas `request` and `response`", hint))
        tool.setdefault("schema", {"type": "object"})
        return
    for part, field in (("request", "schema"), ("response", "result_schema")):
        if part not in signature:
            continue
        if field in tool:
            reshaped.findings.append(
                Finding((field,), f"`{field}` is stated twice, here and in `signature`", "state it once", key=True)
            )
        schema = signature[part]
        tool[field] = {"$ref": schema} if isinstance(schema, str) else schema
        reshaped.move((field,), at if isinstance(reference, str) else (*at, part))


def _short_forms(model: type[BaseModel]) -> tuple[str, ...]:
    if issubclass(model, DeclaredTool):
        return ("idempotency_required", "signature")
    return ("idempotency_required",) if issubclass(model, Governable) else ()


def _respelt(value: Any, annotation: Any, reshaped: Reshaped, path: Path, original: Path) -> Any:
    """Return a value whose mappings have the keys of the models in `annotation`, where they are spelt otherwise."""
    if not isinstance(value, dict | list):
        return value
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated or origin in (Union, types.UnionType):
        for option in inner[:1] if origin is Annotated else inner:
            value = _respelt(value, option, reshaped, path, original)
    elif origin is tuple and isinstance(value, list):
        value = [_respelt(one, inner[0], reshaped, (*path, at), (*original, at)) for at, one in enumerate(value)]
    elif origin is dict and isinstance(value, dict):
        value = {key: _respelt(one, inner[1], reshaped, (*path, key), (*original, key)) for key, one in value.items()}
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel) and isinstance(value, dict):
        value = _respelt_mapping(value, annotation, reshaped, path, original)
    return value


def _respelt_mapping(
    value: dict[str, Any],
    model: type[BaseModel],
    reshaped: Reshaped,
    path: Path,
    original: Path,
) -> dict[str, Any]:
    fields: dict[str, Any] = {spec.alias or name: spec.annotation for name, spec in model.model_fields.items()}
    fields |= dict.fromkeys(_short_forms(model))
    result: dict[str, Any] = {}
    for key, one in value.items():
        snake = _CAMEL.sub(r"_\1", key).lower()
        name = snake if key not in fields and snake in fields else key
        here = (*original, key)
        if name != key:
            if name in value:
                reshaped.findings.append(
                    Finding(here, f"`{key}` is another spelling of `{name}`, which is there too", "keep one", key=True)
                )
                continue
            reshaped.move((*path, name), here)
        if one is None and name in fields and name not in _NULLABLE and not _is_required(model, name):
            # Read as absent, `purposes:` with nothing behind it would mean any purpose.
            reshaped.findings.append(Finding(here, f"`{key}` is null", "state a value, or leave the field out"))
            continue
        result[name] = _respelt(one, fields.get(name), reshaped, (*path, name), here)
    return result


def _is_required(model: type[BaseModel], name: str) -> bool:
    return any(spec.is_required() for field, spec in model.model_fields.items() if (spec.alias or field) == name)
