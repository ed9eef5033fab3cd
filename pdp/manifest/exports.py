"""What the model may see of a manifest: names, descriptions and parameters, and nothing else.

Governance fields never cross the boundary to the model (tool registry document, "Manifest → LLM → PEP").
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from pdp.documents import shown_name
from pdp.errors import UsageError
from pdp.manifest.model import DeclaredTool
from pdp.manifest.schema.compile import closed_schema
from pdp.manifest.schema.references import with_parts
from pdp.manifest.schema.walk import SchemaNode, argument_schemas


class ExportFormat(StrEnum):
    """Whose form of a tool list is wanted."""

    PLAIN = "plain"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    MCP = "mcp"


def export_tools(tools: Iterable[DeclaredTool], form: ExportFormat | str) -> list[dict[str, Any]]:
    """Return what a model is told of these tools, in their order, plain JSON.

    `plain` is the payload as the tool registry document prints it: `{name, parameters: {argument: type name}}`. The
    others hold the description, with the invariants' rules that it does not contain yet, and the JSON Schema that
    arguments are validated with: openai `{type, function: {name, description, parameters}}`, anthropic
    `{name, description, input_schema}`, mcp `{name, description, inputSchema}`. A tool without description has none.

    UsageError: not one of the formats.
    """
    if form not in list(ExportFormat):
        raise UsageError(f"{shown_name(form)} is not a format of a tool list", hint=f"known: {', '.join(ExportFormat)}")
    return [_exported(tool, ExportFormat(form)) for tool in tools]


def _exported(tool: DeclaredTool, form: ExportFormat) -> dict[str, Any]:
    if form is ExportFormat.PLAIN:
        parameters = {name: _type_name(schema) for name, schema in argument_schemas(tool.schema_).items()}
        return {"name": tool.name, "parameters": parameters}
    shown: dict[str, Any] = {"name": tool.name}
    description = described(tool)
    if description:
        shown["description"] = description
    parameters = _without_comments(closed_schema(tool.schema_))
    if form is ExportFormat.OPENAI:
        return {"type": "function", "function": {**shown, "parameters": parameters}}
    return {**shown, "input_schema" if form is ExportFormat.ANTHROPIC else "inputSchema": parameters}


def described(tool: DeclaredTool) -> str:
    """Return the tool's description, then each invariant's rule that it does not contain, one a line."""
    text = tool.description or ""
    for invariant in tool.invariants:
        if invariant.rule not in text:
            text += f"\n- {invariant.rule}" if text else f"- {invariant.rule}"
    return text


def _type_name(schema: SchemaNode) -> str:
    """Return a word for a type: `number`, `string | null`; `any` where the schema names none."""
    kinds = schema.kinds
    return "any" if kinds is None else " | ".join([*sorted(kinds - {"null"}), *sorted(kinds & {"null"})])


# A `$comment` is for maintainers of the schema.
def _without_comments(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    shown = {key: value for key, value in schema.items() if key != "$comment"}
    return with_parts(shown, lambda part, _: _without_comments(part))
