"""The part of a manifest that a model sees: names, descriptions and parameters.

Governance fields are never shown to the model (tool registry document, "Manifest → LLM → PEP").
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
    """The format of an exported tool list."""

    PLAIN = "plain"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    MCP = "mcp"


def export_tools(tools: Iterable[DeclaredTool], form: ExportFormat | str) -> list[dict[str, Any]]:
    """Return the tools as a model sees them, in order, as plain JSON. Raise `UsageError` if the format is unknown.

    `plain` is the format of the tool registry document: `{name, parameters: {argument: type name}}`. The other formats
    include the JSON Schema that validates the arguments, and the description of the tool, if any (see `described`).
    """
    if form not in list(ExportFormat):
        raise UsageError(f"{shown_name(form)} is not a tool list format", hint=f"known: {', '.join(ExportFormat)}")
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
    """Return the tool's description, with a line added for each invariant whose `rule` text is not part of it."""
    text = tool.description or ""
    for invariant in tool.invariants:
        if invariant.rule not in text:
            text += f"\n- {invariant.rule}" if text else f"- {invariant.rule}"
    return text


def _type_name(schema: SchemaNode) -> str:
    kinds = schema.kinds
    return "any" if kinds is None else " | ".join([*sorted(kinds - {"null"}), *sorted(kinds & {"null"})])


# A `$comment` is for the schema's maintainers, not for the model.
def _without_comments(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    shown = {key: value for key, value in schema.items() if key != "$comment"}
    return with_parts(shown, lambda part, _: _without_comments(part))
