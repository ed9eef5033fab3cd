"""Tool calls as the APIs of models spell them, and their results in the same form (docs/application.md).

In each form, arguments are an object or JSON text. The list is closed, and so are the fields of each form: one that is
not known here could say what is meant to be called, such as the toolset that a name belongs to. A field that is null is
not stated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from pdp.json import MAX_VALUES, JsonValueError, check_json, parse_json

_LONGEST_ID: Final = 1024


class CallForm(StrEnum):
    """Whose form of a tool call it is."""

    OPENAI = "openai"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"
    MCP = "mcp"
    GEMINI = "gemini"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model proposes.

    `id` is the model's own; `arguments` are an object or JSON text; `form` is that which it was read from, None for one
    that an application makes; `source` is what it was read from; `fault` says why it is not a call of its form.
    """

    id: str | None
    tool: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    form: CallForm | None = None
    source: Any = field(default=None, repr=False, compare=False)
    fault: str = field(default="", repr=False, compare=False)

    def as_proposal(self) -> dict[str, Any]:
        """Return `{tool, arguments}`, still to be checked; JsonValueError: not a call of its form, or not JSON text."""
        if self.fault:
            raise JsonValueError(self.fault)
        arguments: Any = self.arguments
        if isinstance(arguments, str):
            try:
                # Some models send an empty text for a tool without arguments.
                arguments = parse_json(arguments or "{}", most=MAX_VALUES, named=1)
            except JsonValueError as error:
                raise JsonValueError(f"the text of the arguments: {error}") from None
        elif isinstance(arguments, Mapping):
            arguments = dict(arguments)
        return {"tool": self.tool, "arguments": arguments}


class _Shape(NamedTuple):
    """How a form spells a call.

    It is known by the field `mark`, whose value has to be `value` (None: any). The object `inside` has name and
    arguments; None: the call itself has. The id stands in either. `others` say nothing about what is called.
    """

    form: CallForm
    mark: str
    value: str | None
    inside: str | None
    arguments: str
    call_id: str
    others: tuple[str, ...]


# In the order in which they are looked for: `name` stands in several.
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
    """Return the call that an object in one of the forms stands for; None for anything else.

    The object is one of JSON, a `ToolCall`, which is returned, or an SDK's (`model_dump`): JsonValueError where that
    cannot be written as JSON.
    """
    if isinstance(value, ToolCall):
        return value
    call = _written(value)
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


def _written(value: Any) -> Any:
    dump = None if isinstance(value, dict | type) else getattr(value, "model_dump", None)
    if dump is None:
        return value
    try:
        return dump(mode="json", by_alias=True)
    except Exception as error:
        raise JsonValueError(f"{type(value).__name__} is not JSON: {type(error).__name__}") from error


def _fault(shape: _Shape, call: dict[str, Any], inner: Any, call_id: Any) -> str:
    """Return why an object is not a call of the form that it is marked as; empty where it is."""
    parts = {"name", shape.arguments, shape.call_id, *shape.others}
    stated = _stated(call)
    unknown = stated - (parts if shape.inside is None else {shape.inside, shape.call_id, *shape.others}) - {shape.mark}
    if shape.inside is not None:
        if not isinstance(inner, dict):
            return f"a call of the form {shape.form} has an object as {shape.inside}"
        unknown |= _stated(inner) - parts
    if unknown:
        return f"unknown field {min(unknown)!r:.60} in a call of the form {shape.form}"
    if call_id is not None and not _is_id(call_id):
        return f"{shape.call_id} has to be a string of at most {_LONGEST_ID} characters"
    return ""


def _stated(fields: dict[Any, Any]) -> set[str]:
    """Return the names of the fields that are not null; of one that no JSON has, the type of its name."""
    return {
        name if isinstance(name, str) else type(name).__name__ for name, value in fields.items() if value is not None
    }


def _is_id(value: Any) -> bool:
    """Return whether a value can be the id of a call; that of a request of JSON-RPC may be a number."""
    if type(value) not in (str, int):
        return False
    try:
        check_json(value)
    except JsonValueError:
        return False
    return type(value) is int or len(value) <= _LONGEST_ID


def tool_result(form: CallForm, call: ToolCall, content: str, *, is_error: bool, result: Any = None) -> dict[str, Any]:
    """Return what goes back to the model for a call, in one of the forms.

    `content` is the result as text, or why there is none; `result` is it as JSON, for the forms that take that.
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
