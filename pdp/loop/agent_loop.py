"""The agent loop: ask a model, run the allowed calls, and show the model their results, until the model calls no tool.

Every call goes through the enforcement point. The loop itself allows nothing.

Source: tool layer document (tool call loop, `MaxToolIterations`, specialized loop in two phases, available tools only,
    several calls in one response, tool results with `IsError`) and tool contract document (`ToolStateEffect`).
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Final

import orjson

from pdp.contract.compiled import CompiledManifest
from pdp.contract.sensitive import place_of
from pdp.decision import new_id
from pdp.errors import PdpError, StateError, UsageError
from pdp.flow.evaluation import Evaluation
from pdp.flow.preview import Visibility
from pdp.json import MAX_VALUES, JsonValueError, canonical, digest, parse_json
from pdp.manifest.exports import ExportFormat
from pdp.manifest.schema.compile import SchemaValidator, compile_schema
from pdp.model_calls import CallForm, ToolCall, tool_call
from pdp.pep import Pep
from pdp.proposal import Proposal, ProposalRejectedError
from pdp.session import Session

_log = logging.getLogger("pdp.loop")

MAX_TOOL_ITERATIONS: Final = 20  # The default limit of consecutive model turns with tool calls.
MOST_CALLS: Final = 100  # The maximum number of calls that a model may propose in one turn.
MOST_ANSWERS: Final = 3  # The maximum number of attempts of a model to answer with JSON that matches the schema.

_TOGETHER: Final = 16


class Role(StrEnum):
    """The author of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Message:
    """A message between the application, the model and the tools.

    Attributes:
        calls: the calls that the model proposes. `ToolCall.source` is the call as the model's API returned it.
        tool_call_id: the id of the call whose outcome a message of role `tool` contains.
        is_error: whether the call has no result.
        tool_result: the outcome in the format of the model's API, if the call was in such a format.
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
    """The answer of a model: text, calls, or both. A turn without calls ends the loop.

    Attributes:
        text: the text of the answer.
        calls: `ToolCall` objects, or calls in a format of `pdp.model_calls`.
    """

    text: str = ""
    calls: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request to a model.

    Attributes:
        messages: the conversation so far.
        tools: the tools that the model may call: `{name, description, parameters}`.
        schema: the JSON Schema that the answer has to match; None for free text. With a schema, `tools` is empty.
    """

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    schema: Mapping[str, Any] | None = None


Model = Callable[[ModelRequest], Turn | Awaitable[Turn]]
"""A model, as a function or coroutine function that answers a request with a turn."""


def tool_message(call: ToolCall, evaluation: Evaluation) -> Message:
    """Return the message that shows the model the result of a call, or why the call has no result."""
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
    """Parse a model's text as JSON. Return the value and an empty string, or None and the fault of an invalid text."""
    try:
        value = parse_json(text, most=MAX_VALUES)
    except JsonValueError as error:
        return None, str(error)
    lines = validator.lines(value, "value")
    return (None, lines[0]) if lines else (value, "")


class LoopError(PdpError):
    """The loop ended without an answer. `messages` is the conversation until then."""

    def __init__(self, message: str, messages: tuple[Message, ...]) -> None:
        super().__init__(message)
        self.messages = messages


class ToolIterationsExceededError(LoopError):
    """The model proposed calls in more turns than allowed."""

    code: ClassVar[str] = "loop.iterations_exceeded"


class TooManyCallsError(LoopError):
    """The model proposed more calls in one turn than allowed. None of them was decided or run."""

    code: ClassVar[str] = "loop.too_many_calls"


class OutputInvalidError(LoopError):
    """No answer of the model matched the schema."""

    code: ClassVar[str] = "loop.output_invalid"


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of a loop: the model's last text and the whole conversation.

    Attributes:
        evaluations: the evaluation of each call, in the order of the proposals.
        state: the session's state after the results of all turns.
        output: the parsed JSON of `text` if a schema was given.
    """

    text: str
    messages: tuple[Message, ...]
    evaluations: tuple[Evaluation, ...]
    state: dict[str, Any]
    output: Any = None


@dataclass(slots=True)
class _PromptState:
    id: str
    step_name: str | None
    session: Session
    messages: list[Message]
    evaluations: list[Evaluation] = field(default_factory=list)


class AgentLoop:
    """Lets a model use the tools of an enforcement point until the model answers without calls.

    The model sees the tools of the registry that are available in this turn, except those that the policy denies for
    any arguments. Without a registry, the model sees no tools.

    The prompts of a loop share state, so each prompt starts with the state that the previous prompt left, without
    fields that are not preserved (`preserve_across_turns`). Prompts that run at the same time do not share state.

    Args:
        pep: the enforcement point that decides and runs the calls.
        model: a function or coroutine function from a `ModelRequest` to a `Turn`.
        session: the session of all calls. Without a `run_id`, each prompt is a run that ends with the prompt. But if
            tools have labels and preserve state, all prompts are one run, which later expires, so that the state keeps
            its labels. Without an `idempotency_key`, a call's key is derived from run, prompt, tool and arguments, so a
            call with the same arguments runs only once in a prompt. To run it again, use another prompt.
        system_prompt: the first message. Each `{{VAR}}` that a state effect names (`prompt_template_var`) is replaced
            by the field that the effect writes.
        max_tool_iterations: the number of turns of a prompt that may propose calls; 0 means the default of 20.
        on_tool_result: called with each call and its evaluation when the call has ended; its errors are logged.

    Raises:
        UsageError: the session or an option is invalid.

    Examples:
        >>> from pdp import Pep
        >>> from pdp.loop import ToolCall, Turn
        >>> def model(request):
        ...     if request.messages[-1].role == "tool":
        ...         return Turn(f"The payee is {request.messages[-1].content}.")
        ...     return Turn(calls=[ToolCall("c1", "lookup_beneficiary", {"payee_name": "Acme", "invoice_ref": "I1"})])
        >>> tools = {"lookup_beneficiary": lambda payee_name, invoice_ref: "bene-acme-441"}
        >>> session = {"claims": {"sub": "officer-123", "scope": "payments.lookup"}}
        >>> with Pep.from_project("pdp.yaml", tools=tools) as pep:
        ...     AgentLoop(pep, model, session).run("Who is the payee?").text
        'The payee is bene-acme-441.'
    """

    def __init__(
        self,
        pep: Pep,
        model: Model,
        session: Any,
        *,
        system_prompt: str | None = None,
        max_tool_iterations: int = MAX_TOOL_ITERATIONS,
        on_tool_result: Callable[[ToolCall, Evaluation], object] | None = None,
    ) -> None:
        if type(max_tool_iterations) is not int or max_tool_iterations < 0:
            raise UsageError(f"max_tool_iterations: {max_tool_iterations!r:.40} is out of range", hint="at least 0")
        _check_text("system_prompt", "" if system_prompt is None else system_prompt)
        self._session = Session.read(session)
        self._left: dict[str, Any] | None = None
        self._fields = CompiledManifest(pep.manifest).state
        tools = pep.manifest.tools.values()
        preserves = any(effect.preserve_across_turns for tool in tools if tool.state for effect in tool.state.effects)
        self._is_one_run = preserves and any(tool.flow for tool in tools)
        self._id = new_id()
        self._pep = pep
        self._model = model
        self._system_prompt = system_prompt
        self._limit = max_tool_iterations or MAX_TOOL_ITERATIONS
        self._on_tool_result = on_tool_result

    def run(
        self,
        prompt: str,
        *,
        schema: dict[str, Any] | None = None,
        prompt_id: str | None = None,
        step_name: str | None = None,
        own_words: str | None = None,
    ) -> Finished:
        """Run the loop for one prompt in a new event loop. Where an event loop already runs, use `arun`."""
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise UsageError("an event loop already runs in this thread", hint="use `await loop.arun(...)`")
        return asyncio.run(
            self.arun(prompt, schema=schema, prompt_id=prompt_id, step_name=step_name, own_words=own_words)
        )

    async def arun(
        self,
        prompt: str,
        *,
        schema: dict[str, Any] | None = None,
        prompt_id: str | None = None,
        step_name: str | None = None,
        own_words: str | None = None,
    ) -> Finished:
        """Run the loop for one prompt. Up to 16 calls of a turn run at the same time.

        If the session has no `request_id`, the calls of a turn share a new one.

        Args:
            prompt: the prompt for the model.
            schema: the JSON Schema of the answer. After its calls, the model has to answer with JSON that matches the
                schema. The model has three attempts, and sees the fault of each attempt.
            prompt_id: identifies this prompt in the session's run. If the same prompt runs again with this id, as after
                a crash, no call runs twice.
            step_name: the step of a plan that this prompt belongs to; it is recorded with each call.
            own_words: the part of the prompt that the user wrote; it is added to the session's `prompt`.

        Returns:
            The last text of the model, the conversation, the evaluations of all calls, and the state.

        Raises:
            ToolIterationsExceededError: the model proposed calls in too many turns.
            TooManyCallsError: the model proposed more than 100 calls in one turn.
            OutputInvalidError: no answer matches the schema.
            UsageError: an argument is invalid, or the model's answer is not a `Turn`.
        """
        _check_text("prompt", prompt)
        _check_text("prompt_id", "" if prompt_id is None else prompt_id)
        validator = None if schema is None else compile_schema(schema)
        messages = [Message(Role.SYSTEM, self._system_prompt)] if self._system_prompt is not None else []
        messages.append(Message(Role.USER, prompt))
        session, output, prompt_id = self._session, None, prompt_id or new_id()
        own_run = session.run_id is None and not self._is_one_run
        if own_words is not None:
            session = session.with_changes(prompt=[*session.prompt, own_words])
            self._session = self._session if own_run else session
        if session.run_id is None:
            run = [self._id] if self._is_one_run else [self._id, prompt_id]
            session = session.with_changes(run_id=digest(canonical(run)))
        if self._left is not None:
            session = session.with_changes(state=self._fields.at_turn_start(self._left))
        progress = _PromptState(prompt_id, step_name, session, messages)
        try:
            await self._call_tools(progress)
            if schema is not None and validator is not None:
                output = await self._answer(progress, schema, validator)
        finally:
            self._left = progress.session.state
            if own_run:
                try:
                    self._pep.end_run(session.run_id or "", session)
                except StateError as error:  # The model's answer is returned even if the run cannot be ended.
                    _log.warning("could not end the run, which expires instead: %s", error)
        return Finished(
            messages[-1].content, tuple(messages), tuple(progress.evaluations), progress.session.state, output
        )

    async def _call_tools(self, prompt: _PromptState) -> None:
        iterations = 0
        while calls := await self._ask(prompt, tools=await self._tools(prompt.session)):
            iterations += 1
            if iterations > self._limit:
                message = f"the model proposed tool calls in more than {self._limit} turns in a row"
                raise ToolIterationsExceededError(message, tuple(prompt.messages))
            if len(calls) > MOST_CALLS:
                message = (
                    f"the model proposed {len(calls)} tool calls in one turn, but at most {MOST_CALLS} are allowed"
                )
                raise TooManyCallsError(message, tuple(prompt.messages))
            results = await self._run_calls(calls, prompt)
            prompt.session = self._state_after(prompt.session, results)
            prompt.messages += map(tool_message, calls, results)
            prompt.evaluations += results

    async def _answer(self, prompt: _PromptState, schema: dict[str, Any], validator: SchemaValidator) -> Any:
        for _ in range(MOST_ANSWERS):
            calls = await self._ask(prompt, schema=schema)
            # The model was offered no tools in this turn, so a tool call counts as no answer and does not run.
            if calls:
                fault = "tools can no longer be called"
            else:
                value, fault = answer_of(prompt.messages[-1].content, validator)
                if not fault:
                    return value
            prompt.messages.append(Message(Role.USER, f"Answer with JSON that matches the schema: {fault}"))
        raise OutputInvalidError(f"the model's answer does not match the schema: {fault}", tuple(prompt.messages))

    async def _ask(
        self, prompt: _PromptState, tools: tuple[dict[str, Any], ...] = (), schema: dict[str, Any] | None = None
    ) -> tuple[ToolCall, ...]:
        if self._system_prompt is not None:
            shown = self._fields.render_prompt(self._system_prompt, prompt.session.state)
            prompt.messages[0] = Message(Role.SYSTEM, shown)
        answer = self._model(ModelRequest(tuple(prompt.messages), tools, schema))
        turn = await answer if inspect.isawaitable(answer) else answer
        if not isinstance(turn, Turn):
            raise UsageError(f"the model function returned {type(turn).__name__}", hint="return a `Turn`")
        calls = tuple(map(_read_call, turn.calls))
        prompt.messages.append(Message(Role.ASSISTANT, turn.text, calls=calls))
        return calls

    async def _tools(self, session: Session) -> tuple[dict[str, Any], ...]:
        """Return `{name, description, parameters}` of each tool that the model may propose now."""
        registry = self._pep.registry
        if registry is None:
            return ()
        visible = await self._pep.avisible_tools(session)
        tools = (definition["function"] for definition in registry.definitions(ExportFormat.OPENAI))
        return tuple(tool for tool in tools if visible.get(tool["name"], Visibility.NEVER) is not Visibility.NEVER)

    async def _run_calls(self, calls: tuple[ToolCall, ...], prompt: _PromptState) -> list[Evaluation]:
        places, beginning = asyncio.Semaphore(_TOGETHER), asyncio.Lock()
        session = prompt.session
        if session.request_id is None:
            session = session.with_changes(request_id=new_id())

        async def run(call: ToolCall) -> Evaluation:
            async with places:
                # Each proposal is handled in a separate iteration of the event loop, because parsing and deciding block
                # the loop.
                async with beginning:
                    await asyncio.sleep(0)
                    with_key = self._session_of(session, call, prompt.id)
                await asyncio.sleep(0)
                evaluation = await self._pep.acall(call, with_key, step_name=prompt.step_name)
                self._notify(call, evaluation)
                return evaluation

        return await asyncio.gather(*map(run, calls))

    def _session_of(self, session: Session, call: ToolCall, prompt_id: str) -> Session:
        """Return the session of one call. Repeated proposals of the same call get the same idempotency key."""
        entry = self._pep.manifest.tools.get(call.tool) if isinstance(call.tool, str) else None
        # If the manifest entry derives the key, repeated calls already have the same key.
        needed = entry is not None and entry.idempotency.required and entry.idempotency.key is None
        if not needed or session.idempotency_key is not None:
            return session
        try:
            arguments = orjson.Fragment(Proposal.read(call).text)
        except ProposalRejectedError:
            # The enforcement point rejects this proposal too, so the call needs no key.
            return session
        same = digest(canonical([session.run_id, prompt_id, call.tool, arguments]))
        return session.with_changes(idempotency_key=f"loop:{same}")

    def _state_after(self, session: Session, evaluations: Iterable[Evaluation]) -> Session:
        """Return the session with the state effects of one turn. Effects that cannot be merged are only logged."""
        for evaluation in evaluations:
            tool = evaluation.trace.tool_name
            if evaluation.state is None or tool is None:
                continue
            try:
                state = self._pep.state_after(tool, session.state, evaluation.result)
                session = session.with_changes(state=state)
            except PdpError:
                _log.exception("could not merge the state effects of %s with those of earlier calls", tool)
        return session

    def _notify(self, call: ToolCall, evaluation: Evaluation) -> None:
        if self._on_tool_result is None:
            return
        try:
            self._on_tool_result(call, evaluation)
        except Exception as error:  # noqa: BLE001 - a failing callback must not end the loop
            # The error's text is not logged, because it may quote sensitive arguments.
            _log.error("on_tool_result failed, but the loop continues: %s", place_of(error))


def _read_call(value: Any) -> ToolCall:
    try:
        call = tool_call(value)
    except JsonValueError as error:
        raise UsageError(f"the model proposed a call that is not JSON: {error}") from error
    if call is None:
        hint = f"return a `ToolCall`, or a call in the format of one of these APIs: {', '.join(CallForm)}"
        raise UsageError(f"the model proposed a call of unsupported type {type(value).__name__}", hint=hint)
    return call


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise UsageError(f"{name}: expected text but got {type(value).__name__}")
