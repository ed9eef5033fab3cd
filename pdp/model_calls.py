"""Read tool calls in the formats of model APIs, and write results in the call's format.

The arguments of a call are an object or JSON text. An unknown field makes a call invalid, because the field could
change which tool is meant, for example by naming a toolset. A field with the value null counts as absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from pdp.json import MAX_VALUES, JsonValueError, check_json, parse_json

_LONGEST_ID: Final = 1024


class CallForm(StrEnum):
    """The formats of tool calls, by the API that defines them."""

    OPENAI = "openai"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"
    MCP = "mcp"
    GEMINI = "gemini"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that a model proposes.

    Attributes:
        id: the model's id of the call; may be None.
        tool: the name of the tool.
        arguments: an object, or JSON text.
        form: the format in which the call was written; None for a call that an application made itself.
        source: the original object that the call was read from.
        fault: why `source` is not a valid call of its format; empty if it is valid.

    Examples:
        >>> ToolCall("call-1", "plan_trip", '{"city": "Turin"}').as_proposal()
        {'tool': 'plan_trip', 'arguments': {'city': 'Turin'}}
    """

    id: str | None
    tool: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    form: CallForm | None = None
    source: Any = field(default=None, repr=False, compare=False)
    fault: str = field(default="", repr=False, compare=False)

    def as_proposal(self) -> dict[str, Any]:
        """Return `{tool, arguments}`, which still has to be checked against the manifest.

        Raises:
            JsonValueError: the call is not valid in its format, or its arguments are not valid JSON.
        """
        if self.fault:
            raise JsonValueError(self.fault)
        arguments: Any = self.arguments
        if isinstance(arguments, str):
            try:
                # Some models send an empty text as the arguments of a tool without arguments.
                arguments = parse_json(arguments or "{}", most=MAX_VALUES, named=1)
            except JsonValueError as error:
                raise JsonValueError(f"the text of the arguments: {error}") from None
        elif isinstance(arguments, Mapping):
            arguments = dict(arguments)
        return {"tool": self.tool, "arguments": arguments}


class _Shape(NamedTuple):
    """The fields of a call in one format. The field `mark` with the value `value` (None: any value) shows this format.

    The object `inside` (None: the call) has name and arguments. Fields in `others` do not affect which tool is called.
    """

    form: CallForm
    mark: str
    value: str | None
    inside: str | None
    arguments: str
    call_id: str
    others: tuple[str, ...]


# The formats are tried in this order, because several of them have the field `name`.
_SHAPES: Final = (
    _Shape(
        CallForm.OPENAI, "function", None, "function", "arguments", "id",
        ("type", "index", "extra_content", "parsed_arguments"),
    ),
    _Shape(
        CallForm.OPENAI_RESPONSES, "type", "function_call", None, "arguments", "call_id",
        ("id", "status", "parsed_arguments"),
    ),
    _Shape(CallForm.ANTHROPIC, "type", "tool_use", None, "input", "id", ("caller", "cache_control")),
    _Shape(CallForm.MCP, "method", "tools/call", "params", "arguments", "id", ("jsonrpc", "_meta")),
    _Shape(CallForm.GEMINI, "functionCall", None, "functionCall", "args", "id", ("thought", "thoughtSignature")),
    _Shape(CallForm.GEMINI, "function_call", None, "function_call", "args", "id", ("thought", "thought_signature")),
    _Shape(CallForm.GEMINI, "args", None, None, "args", "id", ()),
    _Shape(CallForm.MCP, "name", None, None, "arguments", "", ("_meta",)),
)  # fmt: skip


def tool_call(value: Any) -> ToolCall | None:
    """Return the tool call in a JSON object, an SDK's object (with `model_dump`) or `ToolCall`; None for other values.

    Raises `JsonValueError` if the SDK's object cannot be converted to JSON.
    """
    if isinstance(value, ToolCall):
        return value
    call = _as_json(value)
    if not isinstance(call, dict):
        return None
    shape = next((shape for shape in _SHAPES if shape.mark in call and shape.value in (None, call[shape.mark])), None)
    if shape is None:
        return None
    inner = call if shape.inside is None else call.get(shape.inside)
    fields = inner if isinstance(inner, dict) else {}
    call_id = call.get(shape.call_id, fields.get(shape.call_id))
    fault = _fault(shape, call, inner, call_id)
    arguments = fields.get(shape.arguments)
    own_id = str(call_id) if _is_id(call_id) else None
    return ToolCall(own_id, fields.get("name", ""), {} if arguments is None else arguments, shape.form, value, fault)


def _as_json(value: Any) -> Any:
    dump = None if isinstance(value, dict | type) else getattr(value, "model_dump", None)
    if dump is None:
        return value
    try:
        return dump(mode="json", by_alias=True)
    except Exception as error:
        raise JsonValueError(f"{type(value).__name__} cannot be written as JSON: {type(error).__name__}") from error


def _fault(shape: _Shape, call: dict[str, Any], inner: Any, call_id: Any) -> str:
    """Return why an object is not a valid call of its format; the empty string if it is valid."""
    parts = {"name", shape.arguments, shape.call_id, *shape.others}
    present = _present_fields(call)
    unknown = present - (parts if shape.inside is None else {shape.inside, shape.call_id, *shape.others}) - {shape.mark}
    if shape.inside is not None:
        if not isinstance(inner, dict):
            return f"{shape.inside} has to be an object in a call of the form {shape.form}"
        unknown |= _present_fields(inner) - parts
    if unknown:
        return f"unknown field {min(unknown)!r:.60} in a call of the form {shape.form}"
    if call_id is not None and not _is_id(call_id):
        return f"{shape.call_id} has to be a string of at most {_LONGEST_ID} characters"
    return ""


def _present_fields(fields: dict[Any, Any]) -> set[str]:
    """Return the names of the fields that are not null; for a name that is not a string, the name of its type."""
    return {
        name if isinstance(name, str) else type(name).__name__ for name, value in fields.items() if value is not None
    }


def _is_id(value: Any) -> bool:
    """Return whether a value can be the id of a call. JSON-RPC also allows numbers."""
    if type(value) not in (str, int):
        return False
    try:
        check_json(value)
    except JsonValueError:
        return False
    return type(value) is int or len(value) <= _LONGEST_ID


def tool_result(form: CallForm, call: ToolCall, content: str, *, is_error: bool, result: Any = None) -> dict[str, Any]:
    """Return the message that shows the model a call's result. `content` is the result as text, or the error's reason.

    `result` is the result as JSON, for formats that accept JSON.
    """
    if form is CallForm.OPENAI:
        return {"role": "tool", "tool_call_id": call.id, "content": content}
    if form is CallForm.OPENAI_RESPONSES:
        return {"type": "function_call_output", "call_id": call.id, "output": content}
    if form is CallForm.ANTHROPIC:
        return {"type": "tool_result", "tool_use_id": call.id, "content": content, "is_error": is_error}
    if form is CallForm.MCP:
        structured = {"structuredContent": result} if isinstance(result, dict) and not is_error else {}
        return {"content": [{"type": "text", "text": content}], **structured, "isError": is_error}
    response = {"error": content} if is_error else {"output": content if result is None else result}
    identified = {} if call.id is None else {"id": call.id}
    return {"functionResponse": {**identified, "name": call.tool, "response": response}}
