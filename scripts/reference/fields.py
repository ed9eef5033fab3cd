"""The pages of the files that people write, and of the request: every field with type, default, meaning and example."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import yaml

from pdp.cli.schemas import field_texts, schema_of
from scripts.reference.markdown import ROOT, block, code, escaped, fence, flow, page, paragraph, table

Schema = Mapping[str, Any]

FILES: Final = {
    "manifest": ("Manifest", "manifest.yaml", "pdp manifest lint manifest.yaml"),
    "governance": (
        "Governance file",
        "governance.yaml",
        "pdp manifest lint manifest.yaml -g governance.yaml",
    ),
    "project": ("Project file", "pdp.yaml", "pdp doctor"),
    "session": ("Session", "session.yaml", "pdp decide proposal.json --session session.yaml"),
    "scenarios": ("Scenario files", "scenarios.yaml", "pdp test scenarios.yaml"),
    "service": ("Service configuration", "service.yaml", "pdp serve --config service.yaml --check-config"),
}
"""The kinds of files, with the title of the page, the usual name of the file and a command that checks it."""

_NAMES: Final = {
    "ApprovalBlock": "Approval", "AuthzenSettings": "AuthZEN", "Cli": "Command line",
    "ConsoleClientSettings": "Console", "DeclaredTool": "Tool", "LimitSettings": "Limits",
    "OidcSettings": "OpenID Connect provider",
    "ScenarioSettings": "Scenario file", "ServiceSettings": "Service", "TenantSettings": "Tenant",
    "WebhookSettings": "Webhook",
}  # fmt: skip
"""The headings of models whose class names say less to readers."""

_TYPES: Final = {
    "string": "text", "integer": "whole number", "number": "number", "boolean": "true or false", "null": "null",
    "object": "mapping", "array": "list",
}  # fmt: skip


def pages() -> Iterator[tuple[str, str]]:
    """Yield the file names and texts of the pages."""
    for kind, (title, file, command) in FILES.items():
        yield f"{kind}.md", page(title, *_parts(kind, file, command))
    yield "request.md", _request()


def _parts(kind: str, file: str, command: str) -> Iterator[str]:
    schema = schema_of(kind)
    models = models_of(schema)
    root = next(iter(models))
    yield paragraph(models[root].get("description", ""))
    yield f"Check `{file}` with this command:"
    yield fence("sh", command)
    yield f"`pdp schema {kind}` prints these fields as a JSON Schema for your editor. Unknown fields are errors."
    paths = _paths(schema, root)
    for name, model in sorted(models.items(), key=lambda each: [root, *paths].index(each[0])):
        yield f"## {in_words(name)}"
        if name != root:
            where = ", ".join(map(code, paths[name][:3]))
            yield f"{paragraph(model.get('description', ''))}\n\nWritten at {where}."
        shown = {**model, "properties": _own_first(name, model["properties"])}
        yield fields_table(shown, schema)
        yield from _example(shown)
    for title, text in _sections()[kind].items():
        yield f"## {title}\n\n{text}"


@cache
def _sections() -> dict[str, dict[str, str]]:
    sections: dict[str, dict[str, str]] = yaml.safe_load((ROOT / "docs/reference/sections.yaml").read_text())
    return sections


def _own_first(name: str, properties: Schema) -> Schema:
    """Return fields with those first that the model itself defines, before those of its base class."""
    own = [field for field in properties if f"{name}.{field}" in field_texts()]
    return {field: properties[field] for field in dict.fromkeys([*own, *properties])}


def models_of(schema: Schema) -> dict[str, Schema]:
    """Return the models of a file that have fields, the model of the whole file first."""
    definitions = schema["$defs"]
    root = (schema.get("then") or schema)["$ref"].rpartition("/")[2]
    models = {root: definitions[root], **definitions}
    return {name: model for name, model in models.items() if "properties" in model and name != "RegistryRecord"}


def in_words(name: str) -> str:
    """Return the name of a model in words: `AgentPins` is "Agent pins"."""
    return _NAMES.get(name) or re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize()


def _anchor(name: str) -> str:
    return in_words(name).lower().replace(" ", "-")


def fields_table(model: Schema, root: Schema) -> str:
    """Return the fields of a model as a table."""
    required = {*model.get("required", ()), *_required_in_any_spelling(model)}
    rows = [
        (code(name), type_of(field, root) + _default(field, name in required), escaped(field.get("description", "")))
        for name, field in model["properties"].items()
    ]
    if not rows:
        return ""
    head = ("field", "type", "meaning")
    return table(head, rows) if any(row[2] for row in rows) else table(head[:2], [row[:2] for row in rows])


def _required_in_any_spelling(model: Schema) -> Iterator[str]:
    """Yield the required fields for which the schema also accepts another spelling."""
    for part in model.get("allOf", ()):
        names = [name for option in part.get("anyOf", ()) for name in option.get("required", ())]
        known = [name for name in names if name in model["properties"]]
        yield from known if len(known) == 1 else ()


def _default(field: Schema, required: bool) -> str:  # noqa: FBT001 - private
    if required:
        return ", **required**"
    value = field.get("default")
    return (
        ""
        if value in (None, []) or isinstance(value, dict)
        else f"; default {code(value if isinstance(value, str) else flow(value))}"
    )


def type_of(field: Schema, root: Schema) -> str:
    """Return the type of a field in words."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        model = _definitions(root)[name]
        return f"[{in_words(name)}](#{_anchor(name)})" if "properties" in model else type_of(model, root)
    choices = field.get("anyOf") or field.get("oneOf") or field.get("allOf")
    if choices:
        kinds = [type_of(each, root) for each in choices if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds)) or "null"
    if "const" in field or "enum" in field:
        values = field.get("enum") or [field["const"]]
        return ("one of " if len(values) > 1 else "") + ", ".join(map(code, values))
    kinds = field.get("type") if isinstance(field.get("type"), list) else [field.get("type")]
    return " or ".join(_plain_type(str(kind), field, root) for kind in kinds if kind != "null" or len(kinds) == 1)


def _definitions(root: Schema) -> Schema:
    found: Schema = root.get("$defs") or root.get("definitions") or root["components"]["schemas"]
    return found


def _plain_type(kind: str, field: Schema, root: Schema) -> str:
    if kind == "array":
        items = field.get("items") or (field.get("prefixItems") or [{}])[0]
        return f"list of {_plural(type_of(items, root))}" if items else "list"
    if kind == "object" and (values := _values(field)):
        return f"mapping of names to {type_of(values, root)}"
    low, high = (field.get(name, field.get(f"exclusive{name.capitalize()}")) for name in ("minimum", "maximum"))
    bound = f", {low} to {high}" if None not in (low, high) else f", from {low}" if low is not None else ""
    return _TYPES.get(kind, "any value") + bound


def _plural(kind: str) -> str:
    words = r"^(text|whole number|number|mapping|object|list)\b"
    return re.sub(words, r"\1s", kind).replace("one of ", "these: ")


def _values(field: Schema) -> Schema | None:
    """Return the schema of a mapping's values, or None for another schema."""
    patterns = () if "properties" in field else field.get("patternProperties", {}).values()
    values = next(iter(patterns), field.get("additionalProperties"))
    return values if isinstance(values, dict) else None


def _paths(schema: Schema, root: str) -> dict[str, list[str]]:
    """Return the paths at which each model occurs, the shortest first."""
    found: dict[str, list[str]] = {}
    waiting: list[tuple[str, Schema, tuple[str, ...]]] = [("", schema["$defs"][root], (root,))]
    for path, part, above in waiting:
        if "$ref" in part and (name := part["$ref"].rpartition("/")[2]) not in above:
            found.setdefault(name, []).append(path or "/")
            waiting.append((path, schema["$defs"][name], (*above, name)))
        waiting += [(f"{path}.{name}".lstrip("."), field, above) for name, field in part.get("properties", {}).items()]
        waiting += [(path, each, above) for key in ("anyOf", "oneOf", "allOf") for each in part.get(key, ())]
        if isinstance(items := part.get("items"), dict):
            waiting.append((f"{path}[]", items, above))
        if (values := _values(part)) is not None:
            waiting.append((f"{path}.NAME".lstrip("."), values, above))
    return found


def _example(model: Schema) -> Iterator[str]:
    fields = model["properties"].items()
    lines = [line for name, field in fields if field.get("examples") for line in block(name, field["examples"][0])]
    if lines:
        yield "Examples, one for each field:"
        yield fence("yaml", "\n".join(lines))


def _request() -> str:
    schema = json.loads((ROOT / "policies/schemas/request.json").read_text())
    texts = yaml.safe_load((ROOT / "docs/reference/request.yaml").read_text())
    fields = dict(request_fields(schema, schema))
    parts = []
    for top in ("subject", "action", "resource", "context", "context.approval", "context.grant", "context.flow"):
        shown = [path for path in fields if path.startswith(f"{top}.") and not _is_deeper(path, top)]
        rows = [(code(path), _type_in_request(fields[path], schema), escaped(texts["fields"][path])) for path in shown]
        parts += [f"## {top}", texts["fields"][top], table(("field", "type", "meaning"), rows)]
    example = fence("yaml", "\n".join(line for name, value in texts["example"].items() for line in block(name, value)))
    return page("Request", paragraph(texts["introduction"]), example, *parts)


def request_fields(schema: Schema, root: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield the path and the schema of each field of the request."""
    schema = _resolved(schema, root)
    if path and "[]" not in path[-2:]:
        yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from request_fields(field, root, f"{path}.{name}".lstrip("."))
    if isinstance(schema.get("items"), dict) and "properties" in (items := _resolved(schema["items"], root)):
        yield from request_fields(items, root, f"{path}[]")


def _resolved(schema: Schema, root: Schema) -> Schema:
    if "$ref" in schema:
        return _resolved(root["definitions"][schema["$ref"].rpartition("/")[2]], root)
    options = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    return _resolved(options[0], root) if options else schema


def _is_deeper(path: str, top: str) -> bool:
    return top == "context" and path.startswith(("context.approval.", "context.grant.", "context.flow."))


def _type_in_request(field: Schema, root: Schema) -> str:
    if "properties" in field:
        return "object"
    return "list of objects" if "properties" in _items(field, root) else type_of(field, root)


def _items(field: Schema, root: Schema) -> Schema:
    items = field.get("items")
    return _resolved(items, root) if isinstance(items, dict) else {}
