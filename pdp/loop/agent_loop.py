"""The agent loop: ask the model, decide and run what it proposes, show it the results, until it has finished.

Every call goes through the enforcement point; the loop adds nothing to what may run.

Source: tool layer document (tool call loop, `MaxToolIterations`, specialized loop in two phases, available tools only,
several calls in one response, tool results with `IsError`)
and tool contract document (`ToolStateEffect`).
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

MAX_TOOL_ITERATIONS: Final = 20  # how often a model may come back with calls, unless stated
MOST_CALLS: Final = 100  # how many calls a model may propose in one turn
MOST_ANSWERS: Final = 3  # how often a model may try to answer as JSON of a schema

_TOGETHER: Final = 16


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


class LoopError(PdpError):
    """The loop ended without an answer. `messages` is the conversation until then."""

    def __init__(self, message: str, messages: tuple[Message, ...]) -> None:
        super().__init__(message)
        self.messages = messages


class ToolIterationsExceededError(LoopError):
    """A model proposed calls more often than it may."""

    code: ClassVar[str] = "loop.iterations_exceeded"


class TooManyCallsError(LoopError):
    """A model proposed more calls in one turn than it may; none of them was made."""

    code: ClassVar[str] = "loop.too_many_calls"


class OutputInvalidError(LoopError):
    """No answer of the model was JSON of the schema."""

    code: ClassVar[str] = "loop.output_invalid"


@dataclass(frozen=True, slots=True)
class Finished:
    """A loop's end: the model's last text, and the whole conversation.

    Attributes:
        evaluations: every call's, in the order of the proposals.
        state: the session's state after the results of all turns.
        output: the JSON that `text` is, where a schema was given.
    """

    text: str
    messages: tuple[Message, ...]
    evaluations: tuple[Evaluation, ...]
    state: dict[str, Any]
    output: Any = None


@dataclass(slots=True)
class _Prompt:
    """One prompt as far as it has come; the session has the state of then."""

    id: str
    step_name: str | None
    session: Session
    messages: list[Message]
    evaluations: list[Evaluation] = field(default_factory=list)


class AgentLoop:
    """Lets a model use the tools of an enforcement point until it answers in words.

    It is shown the tools of the registry that are available at that turn and that the policy does not keep from this
    session's subject whatever the arguments. Where the enforcement point has no registry, it is shown none.

    The prompts of one loop are turns of one conversation: each begins with the state that the one before it left,
    without what tools write and do not preserve (`preserve_across_turns`). Prompts that run at the same time do not see
    each other's state.

    Args:
        pep: who decides and runs the calls.
        model: a function, or a coroutine function.
        session: whose calls these are. Without a run id each prompt is a run of its own, which ends with the prompt,
            however that ends; where labels are in use and the state of a tool outlives the prompt, all are one run,
            which expires, so that what a stranger wrote into the state stays a stranger's. A call for which it states
            no idempotency key gets one of run, prompt, tool and arguments: within one prompt the same call is one call,
            however often the model proposes it, and equal calls that are meant twice need keys of the session's.
        system_prompt: the first message, if any. Whenever the model is asked, each `{{VAR}}` in it that a state effect
            names (`prompt_template_var`) is replaced by that field of the state.
        max_tool_iterations: how often the model may come back with calls; 0: 20 times.
        on_tool_result: gets each call and its evaluation as soon as the call has ended. What it raises is logged.

    UsageError: the session or an option is invalid.
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
        """Run the loop in an event loop of its own; as of `arun`, but not where one runs already, as in a notebook."""
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise UsageError("an event loop runs in this thread already", hint="use `await loop.arun(...)`")
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
        """Run the loop. Calls of one turn run together, 16 of them at a time.

        Where the session has no request id, the calls of one turn have one of their own, which is that turn's.

        Args:
            prompt: what the model is asked.
            schema: the JSON Schema of the answer. With it, the model that has finished is asked once more, without
                tools, for JSON of it; it may try three times, and is shown what is wrong each time.
            prompt_id: names this prompt within the session's run. The same prompt run again under its id, as after a
                crash, makes no call a second time.
            step_name: the step of a plan that the prompt is, recorded with each of its calls.
            own_words: what of it the user wrote, and no document; it is added to the session's `prompt` for the run.

        Raises:
            ToolIterationsExceededError: the model does not come to an end.
            TooManyCallsError: the model proposed more than 100 calls in one turn.
            OutputInvalidError: no answer matches the schema.
            UsageError: prompt, schema or prompt_id is invalid, or the model's answer is not a `Turn` of calls.
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
        asked = _Prompt(prompt_id, step_name, session, messages)
        try:
            await self._call_tools(asked)
            if schema is not None and validator is not None:
                output = await self._answer(asked, schema, validator)
        finally:
            self._left = asked.session.state
            if own_run:
                try:
                    self._pep.end_run(session.run_id or "", session)
                except StateError as error:  # the answer is there all the same
                    _log.warning("a run could not be ended, and expires by itself: %s", error)
        return Finished(messages[-1].content, tuple(messages), tuple(asked.evaluations), asked.session.state, output)

    async def _call_tools(self, prompt: _Prompt) -> None:
        """Ask the model, and make the calls that it proposes, until a turn has none."""
        iterations = 0
        while calls := await self._ask(prompt, tools=await self._tools(prompt.session)):
            iterations += 1
            if iterations > self._limit:
                message = f"the model proposed tool calls more than {self._limit} times in a row"
                raise ToolIterationsExceededError(message, tuple(prompt.messages))
            if len(calls) > MOST_CALLS:
                message = f"the model proposed {len(calls)} tool calls in one turn, at most {MOST_CALLS} are admitted"
                raise TooManyCallsError(message, tuple(prompt.messages))
            results = await self._make(calls, prompt)
            prompt.session = self._state_after(prompt.session, results)
            prompt.messages += map(tool_message, calls, results)
            prompt.evaluations += results

    async def _answer(self, prompt: _Prompt, schema: dict[str, Any], validator: SchemaValidator) -> Any:
        for _ in range(MOST_ANSWERS):
            calls = await self._ask(prompt, schema=schema)
            # Its tools are gone: a call now is not an answer, and is not run.
            if calls:
                fault = "no tools are to be called any more"
            else:
                value, fault = answer_of(prompt.messages[-1].content, validator)
                if not fault:
                    return value
            prompt.messages.append(Message(Role.USER, f"Answer as JSON of the schema: {fault}"))
        raise OutputInvalidError(f"the model's answer does not match the schema: {fault}", tuple(prompt.messages))

    async def _ask(
        self, prompt: _Prompt, tools: tuple[dict[str, Any], ...] = (), schema: dict[str, Any] | None = None
    ) -> tuple[ToolCall, ...]:
        """Ask the model, add its turn to the messages, and return the calls that it proposes."""
        if self._system_prompt is not None:
            shown = self._fields.render_prompt(self._system_prompt, prompt.session.state)
            prompt.messages[0] = Message(Role.SYSTEM, shown)
        answer = self._model(ModelRequest(tuple(prompt.messages), tools, schema))
        turn = await answer if inspect.isawaitable(answer) else answer
        if not isinstance(turn, Turn):
            raise UsageError(f"the model answered {type(turn).__name__}", hint="return a `Turn`")
        calls = tuple(map(_read_call, turn.calls))
        prompt.messages.append(Message(Role.ASSISTANT, turn.text, calls=calls))
        return calls

    async def _tools(self, session: Session) -> tuple[dict[str, Any], ...]:
        """Return `{name, description, parameters}` of each tool that may be proposed now."""
        registry = self._pep.registry
        if registry is None:
            return ()
        visible = await self._pep.avisible_tools(session)
        tools = (definition["function"] for definition in registry.definitions(ExportFormat.OPENAI))
        return tuple(tool for tool in tools if visible.get(tool["name"], Visibility.NEVER) is not Visibility.NEVER)

    async def _make(self, calls: tuple[ToolCall, ...], prompt: _Prompt) -> list[Evaluation]:
        places, beginning = asyncio.Semaphore(_TOGETHER), asyncio.Lock()
        session = prompt.session
        if session.request_id is None:
            session = session.with_changes(request_id=new_id())

        async def make(call: ToolCall) -> Evaluation:
            async with places:
                # To read a proposal, and to decide it, hold the event loop: each has a round of the loop to itself.
                async with beginning:
                    await asyncio.sleep(0)
                    with_key = self._session_of(session, call, prompt.id)
                await asyncio.sleep(0)
                evaluation = await self._pep.acall(call, with_key, step_name=prompt.step_name)
                self._notify(call, evaluation)
                return evaluation

        return await asyncio.gather(*map(make, calls))

    def _session_of(self, session: Session, call: ToolCall, prompt_id: str) -> Session:
        """Return the session of one call, with the same key when a model proposes the same call again."""
        entry = self._pep.manifest.tools.get(call.tool) if isinstance(call.tool, str) else None
        # A key that the entry derives already states which calls are the same.
        needed = entry is not None and entry.idempotency.required and entry.idempotency.key is None
        if not needed or session.idempotency_key is not None:
            return session
        try:
            arguments = orjson.Fragment(Proposal.read(call).text)
        except ProposalRejectedError:
            # The enforcement point rejects it as well: no key is needed.
            return session
        same = digest(canonical([session.run_id, prompt_id, call.tool, arguments]))
        return session.with_changes(idempotency_key=f"loop:{same}")

    def _state_after(self, session: Session, evaluations: Iterable[Evaluation]) -> Session:
        """Return the session with the state effects of one turn's results; what cannot be merged changes nothing."""
        for evaluation in evaluations:
            tool = evaluation.trace.tool_name
            if evaluation.state is None or tool is None:
                continue
            try:
                state = self._pep.state_after(tool, session.state, evaluation.result)
                session = session.with_changes(state=state)
            except PdpError:
                _log.exception("the state effects of %s do not go with those of the calls before it", tool)
        return session

    def _notify(self, call: ToolCall, evaluation: Evaluation) -> None:
        if self._on_tool_result is None:
            return
        try:
            self._on_tool_result(call, evaluation)
        except Exception as error:  # noqa: BLE001 - an observer stops nothing
            # Not its text, which may quote what is sensitive in the call.
            _log.error("on_tool_result failed, which changes nothing: %s", place_of(error))


def _read_call(value: Any) -> ToolCall:
    try:
        call = tool_call(value)
    except JsonValueError as error:
        raise UsageError(f"the model's turn has a call that is not JSON: {error}") from error
    if call is None:
        hint = f"give a `ToolCall`, or a call as the API of a model spells it: {', '.join(CallForm)}"
        raise UsageError(f"the model's turn has a call that is {type(value).__name__} of no known form", hint=hint)
    return call


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise UsageError(f"{name}: expected text but got {type(value).__name__}")
