"""What goes between a loop and a model, independent of any vendor's form: messages, calls, structured output.

Source: tool layer document (several calls in one response, tool results with `IsError`; specialized loop: tools first,
then structured output without tools).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import orjson

from pdp.json import MAX_VALUES, JsonValueError, canonical, check_json, parse_json

if TYPE_CHECKING:
    from pdp.evaluation import Evaluation
    from pdp.manifest.schema.compile import SchemaValidator


class Role(StrEnum):
    """The author of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model proposes: its own id of it, and the proposal.

    `arguments` may be JSON text. Neither that nor an object: the call is rejected, the others of its turn are not.
    """

    id: str
    tool: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Message:
    """One message. With role `tool`: the outcome of the call `tool_call_id`, and `is_error` when it gave no result."""

    role: Role
    content: str
    calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    tool: str | None = None
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """What a model answers: text, or calls, or both. Without calls it has finished."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What a model is asked: the messages so far, and which tools it may propose.

    `schema`: the JSON Schema of the text that it has to answer with; then there are no tools.
    """

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    schema: Mapping[str, Any] | None = None


Model = Callable[[ModelRequest], Turn | Awaitable[Turn]]
"""A model, as a function: a plain one or a coroutine function."""


def tool_message(call: ToolCall, evaluation: Evaluation) -> Message:
    """Return what the model sees of a call: its result as JSON or text, or why there is none.

    Only the codes and messages that are meant for it: never a traceback, nothing of the request.
    """
    outcome = evaluation.outcome
    if outcome.rejection is not None:
        content, is_error = f"{outcome.rejection.code}: {outcome.rejection.reason}", True
        if evaluation.approval is not None:
            content += f" (approval {evaluation.approval.id} is {evaluation.approval.state})"
    elif outcome.failure is not None:
        content, is_error = f"{outcome.failure.code}: {outcome.failure.message}", True
    else:
        content, is_error = _text(evaluation.result), False
    return Message(Role.TOOL, content, tool_call_id=call.id, tool=call.tool, is_error=is_error)


# The text of another object may contain anything, such as the password of a connection, and be of any length.
def _text(result: Any) -> str:
    if isinstance(result, str):
        return result
    try:
        check_json(result)
        return canonical(result).decode()
    except JsonValueError:
        return "a result that is not JSON"


def proposal_of(call: ToolCall) -> Any:
    """Return the proposal that a call makes, as `Pep.call` takes it."""
    if not isinstance(call.arguments, str):
        # What is not a mapping is left as it is, for the enforcement point to reject.
        mapping = isinstance(call.arguments, Mapping)
        return {"tool": call.tool, "arguments": dict(call.arguments) if mapping else call.arguments}
    try:
        tool = orjson.dumps(call.tool)
    except TypeError:
        return {"tool": call.tool, "arguments": {}}  # rejected as well, whatever the arguments
    # Text goes into text, and is parsed once, with the rest: a parser here could lose what makes it invalid, such as a
    # key that stands twice, and text that ends too early makes a proposal of unknown fields.
    arguments = call.arguments.encode("utf-8", "surrogatepass") or b"{}"
    return b'{"tool":%b,"arguments":%b}' % (tool, arguments)


def answer_of(text: str, validator: SchemaValidator) -> tuple[Any, str]:
    """Return the JSON value of a model's last text, and what is wrong with it: the empty string where nothing is."""
    try:
        value = parse_json(text, most=MAX_VALUES)
    except JsonValueError as error:
        return None, str(error)
    for path, message in validator.faults(value):
        at = "/".join(str(step) for step in path)
        return None, f"{at or 'the whole'}: {message}"
    return value, ""
