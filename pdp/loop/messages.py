"""What goes between a loop and a model, whatever form the model's API has: messages, turns, structured output.

Source: tool layer document (several calls in one response, tool results with `IsError`).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pdp.flow.evaluation import Evaluation
from pdp.json import MAX_VALUES, JsonValueError, parse_json
from pdp.manifest.schema.compile import SchemaValidator
from pdp.model_calls import ToolCall


class Role(StrEnum):
    """The author of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    With role `tool`: the outcome of the call `tool_call_id`, and `is_error` when it gave no result; `tool_result` is
    the same in the form that the call had. What a call of `calls` was read from, as a model's API takes it back, is its
    `source`.
    """

    role: Role
    content: str
    calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    tool: str | None = None
    is_error: bool = False
    tool_result: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """What a model answers: text, or calls, or both. Without calls it has finished.

    Each call is a `ToolCall`, or one as a model's API spells it; see `pdp.model_calls`.
    """

    text: str = ""
    calls: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What a model is asked. `schema`: of the text that it has to answer with; then there are no tools."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    schema: Mapping[str, Any] | None = None


Model = Callable[[ModelRequest], Turn | Awaitable[Turn]]
"""A model, as a function: a plain one or a coroutine function."""


def tool_message(call: ToolCall, evaluation: Evaluation) -> Message:
    """Return what the model sees of a call: its result as JSON or text, or why there is none."""
    answer = evaluation.answer
    tool_result = None if call.form is None else evaluation.as_tool_result()
    return Message(
        Role.TOOL,
        answer.text,
        tool_call_id=call.id,
        tool=call.tool,
        is_error=answer.is_error,
        tool_result=tool_result,
    )


def answer_of(text: str, validator: SchemaValidator) -> tuple[Any, str]:
    """Return the JSON value of a model's last text, and what is wrong with it: the empty string where nothing is."""
    try:
        value = parse_json(text, most=MAX_VALUES)
    except JsonValueError as error:
        return None, str(error)
    lines = validator.lines(value, "value")
    return (None, lines[0]) if lines else (value, "")
