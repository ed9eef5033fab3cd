"""The agent loop: ask the model, decide and run what it proposes, show it the results, until it has finished.

Every call goes through the enforcement point; the loop adds nothing to what may run. The flow stands once, as a
generator, for callers that wait and for asynchronous ones.

Source: tool layer document (tool call loop, `MaxToolIterations`, several calls of one response run together and their
results are appended before the model is asked again, specialized loop in two phases, available tools only) and tool
contract document (`ToolStateEffect`).
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

from pdp.decision import new_id
from pdp.errors import PdpError, UsageError
from pdp.flow.visibility import Visibility
from pdp.json import canonical, digest
from pdp.loop.messages import Message, ModelRequest, OutputSchema, Role, ToolCall, Turn, proposal_of, tool_message
from pdp.manifest.exports import ExportFormat
from pdp.proposal import Proposal, ProposalRejectedError
from pdp.session import Session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable

    from pdp.evaluation import Evaluation
    from pdp.loop.messages import Model
    from pdp.pep import Pep

_log = logging.getLogger("pdp.loop")

MAX_TOOL_ITERATIONS: Final = 20
"""How often a model may come back with calls, unless stated."""

MOST_CALLS: Final = 100
"""How many calls a model may propose in one turn."""

_TOGETHER: Final = 16

_Done = TypeVar("_Done")


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
    """A loop's end.

    Attributes:
        text: the model's last.
        messages: the whole conversation.
        evaluations: every call's, in the order of the proposals.
        state: the session's state after the results of all turns. In the session of the next prompt,
            `Registry.at_turn_start` clears of it what does not outlive this one.
    """

    text: str
    messages: tuple[Message, ...]
    evaluations: tuple[Evaluation, ...]
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Output:
    """The model's answer, as JSON, and the loop that led there."""

    value: Any
    finished: Finished


class _Step(NamedTuple):
    """Something that takes time: `wait` does it, or `start` asynchronously."""

    wait: Callable[[], Any]
    start: Callable[[], Awaitable[Any]]


class AgentLoop:
    """Lets a model use the tools of an enforcement point until it answers in words.

    Args:
        pep: who decides and runs the calls.
        model: a function from `ModelRequest` to `Turn`; a coroutine function for `arun`.
        session: whose calls these are. Without a run id it gets one. A call for which it states no idempotency key gets
            one of run, prompt, tool and arguments: within one prompt the same call is one call, however often the model
            proposes it, and equal calls that are meant twice need keys of the session's. The state effects of one
            turn's results, merged in the order of the proposals, are in the state of the next turn's calls.
        tools: what the model may propose, asked before each turn, as `{name, description, parameters}`. When absent,
            the tools of the enforcement point's registry that are available and that the policy does not keep from
            this session's subject whatever the arguments; without a registry, nothing.
        system_prompt: the first message, if any.
        max_tool_iterations: how often the model may come back with calls.
        on_tool_result: gets each call and its evaluation, in the order of the proposals. What it raises is logged.

    Raises:
        UsageError: `max_tool_iterations` is not a whole number of at least 1, or the session is invalid.
    """

    def __init__(
        self,
        pep: Pep,
        model: Model,
        session: Any,
        *,
        tools: Callable[[], Iterable[dict[str, Any]]] | None = None,
        system_prompt: str | None = None,
        max_tool_iterations: int = MAX_TOOL_ITERATIONS,
        on_tool_result: Callable[[ToolCall, Evaluation], object] | None = None,
    ) -> None:
        _check_number("max_tool_iterations", max_tool_iterations)
        read = Session.read(session)
        self._session = read if read.run_id is not None else read.model_copy(update={"run_id": new_id()})
        self._pep = pep
        self._model = model
        self._tools = tools
        self._system_prompt = system_prompt
        self._limit = max_tool_iterations
        self._on_tool_result = on_tool_result

    def run(self, prompt: str, *, prompt_id: str | None = None) -> Finished:
        """Run the loop, waiting for each step. Calls of one turn run in threads, 16 of them at a time.

        Args:
            prompt: what the model is asked.
            prompt_id: names this prompt within the session's run. The same prompt run again under its id, as after a
                crash, makes no call a second time. When absent, every prompt is one of its own.

        Raises:
            ToolIterationsExceededError: the model does not come to an end.
            TooManyCallsError: the model proposed more than 100 calls in one turn.
            UsageError: the prompt or its id is not a text, or the model's answer is not a `Turn`.
        """
        return _drive(self._flow(prompt, prompt_id))

    async def arun(self, prompt: str, *, prompt_id: str | None = None) -> Finished:
        """Async variant of `run`: calls of one turn run as tasks, 16 of them at a time."""
        return await _adrive(self._flow(prompt, prompt_id))

    def run_with_output(
        self, prompt: str, schema: dict[str, Any], *, attempts: int = 3, prompt_id: str | None = None
    ) -> Output:
        """Run the loop, and have the model answer once more, without tools, as JSON of a schema.

        Args:
            prompt: what it is asked.
            schema: the JSON Schema (draft 2020-12) of the answer.
            attempts: how often it may try; each further time it is shown what is wrong with its answer.
            prompt_id: as of `run`.

        Raises:
            ToolIterationsExceededError: as of `run`.
            TooManyCallsError: likewise.
            OutputInvalidError: no answer matches the schema.
            UsageError: the schema is invalid, or `attempts` not a whole number of at least 1; and as of `run`.
        """
        return _drive(self._output_flow(prompt, prompt_id, OutputSchema(schema), attempts))

    async def arun_with_output(
        self, prompt: str, schema: dict[str, Any], *, attempts: int = 3, prompt_id: str | None = None
    ) -> Output:
        """Async variant of `run_with_output`."""
        return await _adrive(self._output_flow(prompt, prompt_id, OutputSchema(schema), attempts))

    def _flow(self, prompt: str, prompt_id: str | None) -> Generator[_Step, Any, Finished]:
        named = new_id() if prompt_id is None else prompt_id
        for what, text in (("the prompt", prompt), ("prompt_id", named)):
            if not isinstance(text, str):
                raise UsageError(f"{what} is {type(text).__name__}", hint="hand in a text")
        messages = [Message(Role.SYSTEM, self._system_prompt)] if self._system_prompt is not None else []
        messages.append(Message(Role.USER, prompt))
        evaluations: list[Evaluation] = []
        session = self._session
        for turn_number in range(1, self._limit + 2):
            tools = yield from self._listed(session)
            turn: Turn = yield self._question(ModelRequest(tuple(messages), tools))
            messages.append(Message(Role.ASSISTANT, turn.text, calls=turn.calls))
            if not turn.calls:
                return Finished(turn.text, tuple(messages), tuple(evaluations), session.state)
            if turn_number > self._limit:
                break
            if len(turn.calls) > MOST_CALLS:
                raise TooManyCallsError(
                    f"the model proposed {len(turn.calls)} tool calls in one turn, at most {MOST_CALLS} are admitted",
                    tuple(messages),
                )
            sessions = [self._session_of(session, call, named) for call in turn.calls]
            results: list[Evaluation] = yield self._calls(turn.calls, sessions)
            session = self._state_after(session, results)
            for call, evaluation in zip(turn.calls, results, strict=True):
                messages.append(tool_message(call, evaluation))
                evaluations.append(evaluation)
                self._notify(call, evaluation)
        raise ToolIterationsExceededError(
            f"the model proposed tool calls more than {self._limit} times in a row", tuple(messages)
        )

    def _output_flow(
        self, prompt: str, prompt_id: str | None, schema: OutputSchema, attempts: int
    ) -> Generator[_Step, Any, Output]:
        _check_number("attempts", attempts)
        finished = yield from self._flow(prompt, prompt_id)
        messages, faults = list(finished.messages), ""
        for _ in range(attempts):
            turn: Turn = yield self._question(ModelRequest(tuple(messages), schema=schema.document))
            messages.append(Message(Role.ASSISTANT, turn.text, calls=turn.calls))
            # Its tools are gone: a call now is not an answer, and is not run.
            value, faults = (None, "no tools are to be called any more") if turn.calls else schema.read(turn.text)
            if not faults:
                return Output(value, replace(finished, text=turn.text, messages=tuple(messages)))
            messages.append(Message(Role.USER, f"Answer as JSON of the schema: {faults}"))
        raise OutputInvalidError(f"the model's answer does not match the schema: {faults}", tuple(messages))

    def _listed(self, session: Session) -> Generator[_Step, Any, tuple[dict[str, Any], ...]]:
        """Return `{name, description, parameters}` of each tool that may be proposed now."""
        pep, registry = self._pep, self._pep.registry
        if self._tools is not None:
            return tuple(self._tools())
        if registry is None:
            return ()
        visible = yield _Step(lambda: pep.visible_tools(session), lambda: pep.avisible_tools(session))
        tools = (definition["function"] for definition in registry.definitions(ExportFormat.OPENAI))
        return tuple(tool for tool in tools if visible.get(tool["name"], Visibility.NEVER) is not Visibility.NEVER)

    def _question(self, request: ModelRequest) -> _Step:
        """Return the step that asks the model."""

        async def asked() -> Turn:
            answer = self._model(request)
            return _turn(await answer if inspect.isawaitable(answer) else answer)

        return _Step(lambda: _turn(self._model(request)), asked)

    def _calls(self, calls: tuple[ToolCall, ...], sessions: list[Session]) -> _Step:
        """Return the step that makes the calls of one turn, together."""

        def call(proposed: ToolCall, session: Session) -> Evaluation:
            return self._pep.call(proposal_of(proposed), session, tool_call_id=proposed.id)

        def made() -> list[Evaluation]:
            if len(calls) == 1:
                return [call(calls[0], sessions[0])]
            with ThreadPoolExecutor(min(len(calls), _TOGETHER), thread_name_prefix="pdp-loop") as threads:
                running = [
                    threads.submit(contextvars.copy_context().run, call, proposed, session)
                    for proposed, session in zip(calls, sessions, strict=True)
                ]
                return [future.result() for future in running]

        async def amade() -> list[Evaluation]:
            places = asyncio.Semaphore(_TOGETHER)

            async def acall(proposed: ToolCall, session: Session) -> Evaluation:
                async with places:
                    return await self._pep.acall(proposal_of(proposed), session, tool_call_id=proposed.id)

            return await asyncio.gather(*map(acall, calls, sessions))

        return _Step(made, amade)

    def _session_of(self, session: Session, call: ToolCall, prompt_id: str) -> Session:
        """Return the session of one call, with the same key when a model proposes the same call again."""
        entry = self._pep.manifest.tools.get(call.tool) if isinstance(call.tool, str) else None
        idempotency = entry.idempotency if entry is not None else None
        # A key that the entry derives already states which calls are the same.
        needed = idempotency is not None and idempotency.required and idempotency.key is None
        if not needed or session.idempotency_key is not None:
            return session
        try:
            arguments = Proposal.read(proposal_of(call)).arguments
        except ProposalRejectedError:
            # The enforcement point rejects it as well: no key is needed.
            return session
        same = digest(canonical([session.run_id, prompt_id, call.tool, arguments]))
        return session.with_changes(idempotency_key=f"loop:{same}")

    def _state_after(self, session: Session, evaluations: Iterable[Evaluation]) -> Session:
        """Return the session with the state effects of one turn's results, merged in their order.

        A result that cannot be merged with those before it is logged, and changes nothing.
        """
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
        except Exception:  # noqa: BLE001 - an observer stops nothing
            _log.exception("on_tool_result failed, which changes nothing")


def _drive(flow: Generator[_Step, Any, _Done]) -> _Done:
    try:
        step = next(flow)
        while True:
            step = flow.send(step.wait())
    except StopIteration as end:
        done: _Done = end.value
        return done


async def _adrive(flow: Generator[_Step, Any, _Done]) -> _Done:
    try:
        step = next(flow)
        while True:
            step = flow.send(await step.start())
    except StopIteration as end:
        done: _Done = end.value
        return done


def _check_number(name: str, number: object) -> None:
    if type(number) is not int or number < 1:
        raise UsageError(f"{name}: {number!r:.40} is out of range", hint="a whole number, at least 1")


def _turn(answer: object) -> Turn:
    if isinstance(answer, Turn):
        return answer
    if inspect.iscoroutine(answer):
        answer.close()
        raise UsageError("the model is asynchronous", hint="run the loop with `arun`")
    raise UsageError(f"the model answered {type(answer).__name__}", hint="return a `Turn`")
