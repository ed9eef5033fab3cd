"""The loop itself: ask the model, decide and run what it proposes, show it what came, until it has finished.

Every call goes through the enforcement point; the loop adds nothing to what may run. The flow stands once, as a
generator, for those who wait and for those who do not.

Source: tool layer document (tool call loop, `MaxToolIterations`, several calls of one response run together and their
results are appended before the model is asked again, specialized loop in two phases).
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from pdp.contract.json_object import JsonObject
from pdp.decision import new_id
from pdp.errors import PdpError, UsageError
from pdp.json import canonical, digest
from pdp.loop.messages import Message, ModelRequest, Role, ToolCall, Turn, proposal_of, tool_message
from pdp.loop.output import Output, OutputInvalidError, OutputSchema
from pdp.loop.tools import Listing, Tools, state_after
from pdp.proposal import Proposal, ProposalRejectedError
from pdp.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from pdp.evaluation import Evaluation
    from pdp.loop.messages import Model
    from pdp.pep import Pep

_log = logging.getLogger("pdp.loop")

MAX_TOOL_ITERATIONS: Final = 20
"""How often a model may come back with calls, unless stated."""

MOST_CALLS: Final = 100
"""How many calls a model may propose in one turn."""

_TOGETHER: Final = 16


class ToolIterationsExceededError(PdpError):
    """A model proposed calls more often than it may. `messages` is what was said until then."""

    code: ClassVar[str] = "loop.iterations_exceeded"

    def __init__(self, limit: int, messages: tuple[Message, ...]) -> None:
        super().__init__(f"the model proposed tool calls more than {limit} times in a row")
        self.messages = messages


class TooManyCallsError(PdpError):
    """A model proposed more calls in one turn than it may; none of them was made. `messages` is what was said."""

    code: ClassVar[str] = "loop.too_many_calls"

    def __init__(self, calls: int, messages: tuple[Message, ...]) -> None:
        super().__init__(f"the model proposed {calls} tool calls in one turn, at most {MOST_CALLS} are admitted")
        self.messages = messages


@dataclass(frozen=True, slots=True)
class Finished:
    """A loop's end.

    Attributes:
        text: the model's last.
        messages: all that was said.
        evaluations: every call's, in the order of the proposals.
        state: the session's state, with what the results of all turns have made of it. In the session of the next
            prompt, `Registry.at_turn_start` clears of it what does not outlive this one.
    """

    text: str
    messages: tuple[Message, ...]
    evaluations: tuple[Evaluation, ...]
    state: JsonObject


@dataclass(frozen=True, slots=True)
class _Calls:
    calls: tuple[ToolCall, ...]
    sessions: tuple[Session, ...]


_Step = ModelRequest | _Calls | Listing
_Done = TypeVar("_Done")


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
        on_tool_result: told of each call and its evaluation, in the order of the proposals. What it raises is logged.

    Raises:
        UsageError: `max_tool_iterations` is no whole number of at least 1, or the session is none.
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
        self._tools = Tools(pep, tools)
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
            UsageError: the prompt or its id is no text, or the model's answer is no `Turn`.
        """
        return self._drive(self._flow(prompt, prompt_id))

    async def arun(self, prompt: str, *, prompt_id: str | None = None) -> Finished:
        """Do as `run`, asynchronously. Calls of one turn run together, 16 of them at a time."""
        return await self._adrive(self._flow(prompt, prompt_id))

    def run_with_output(
        self, prompt: str, schema: dict[str, Any], *, attempts: int = 3, prompt_id: str | None = None
    ) -> Output:
        """Run the loop, and have the model answer once more, without tools, as JSON of a schema.

        Args:
            prompt: what it is asked.
            schema: the JSON Schema (draft 2020-12) of the answer.
            attempts: how often it may try; what is wrong with an answer is told to it.
            prompt_id: as of `run`.

        Raises:
            ToolIterationsExceededError: as of `run`.
            TooManyCallsError: likewise.
            OutputInvalidError: no answer keeps to the schema.
            UsageError: the schema is none, or `attempts` no whole number of at least 1; and as of `run`.
        """
        return self._drive(self._output_flow(prompt, prompt_id, OutputSchema(schema), attempts))

    async def arun_with_output(
        self, prompt: str, schema: dict[str, Any], *, attempts: int = 3, prompt_id: str | None = None
    ) -> Output:
        """Do as `run_with_output`, asynchronously."""
        return await self._adrive(self._output_flow(prompt, prompt_id, OutputSchema(schema), attempts))

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
            tools: tuple[dict[str, Any], ...] = yield Listing(session)
            turn: Turn = yield ModelRequest(tuple(messages), tools)
            messages.append(Message(Role.ASSISTANT, turn.text, calls=turn.calls))
            if not turn.calls:
                return Finished(turn.text, tuple(messages), tuple(evaluations), JsonObject.read(session.state))
            if turn_number > self._limit:
                break
            if len(turn.calls) > MOST_CALLS:
                raise TooManyCallsError(len(turn.calls), tuple(messages))
            sessions = tuple(self._session_of(session, call, named) for call in turn.calls)
            came: list[Evaluation] = yield _Calls(turn.calls, sessions)
            session = state_after(self._pep, session, came)
            for call, evaluation in zip(turn.calls, came, strict=True):
                messages.append(tool_message(call, evaluation))
                evaluations.append(evaluation)
                self._tell(call, evaluation)
        raise ToolIterationsExceededError(self._limit, tuple(messages))

    def _output_flow(
        self, prompt: str, prompt_id: str | None, schema: OutputSchema, attempts: int
    ) -> Generator[_Step, Any, Output]:
        _check_number("attempts", attempts)
        finished = yield from self._flow(prompt, prompt_id)
        messages, faults = list(finished.messages), ""
        for _ in range(attempts):
            turn: Turn = yield ModelRequest(tuple(messages), schema=schema.document)
            messages.append(Message(Role.ASSISTANT, turn.text, calls=turn.calls))
            # Its tools are gone: a call now is no answer, and is not run.
            value, faults = (None, "no tools are to be called any more") if turn.calls else schema.read(turn.text)
            if not faults:
                return Output(value, replace(finished, text=turn.text, messages=tuple(messages)))
            messages.append(Message(Role.USER, f"Answer as JSON of the schema: {faults}"))
        raise OutputInvalidError(faults, tuple(messages))

    def _session_of(self, session: Session, call: ToolCall, prompt_id: str) -> Session:
        """Return the session of one call, with a key that a model which proposes the call again gets again."""
        entry = self._pep.manifest.tools.get(call.tool) if isinstance(call.tool, str) else None
        idempotency = entry.idempotency if entry is not None else None
        # A key that the entry derives is the application's own word for what is the same call.
        needed = idempotency is not None and idempotency.required and idempotency.key is None
        if not needed or session.idempotency_key is not None:
            return session
        try:
            arguments = Proposal.read(proposal_of(call)).arguments
        except ProposalRejectedError:
            # The enforcement point says so, too: no key is needed for what is rejected.
            return session
        same = digest(canonical([session.run_id, prompt_id, call.tool, arguments]))
        return session.with_changes(idempotency_key=f"loop:{same}")

    def _tell(self, call: ToolCall, evaluation: Evaluation) -> None:
        if self._on_tool_result is None:
            return
        try:
            self._on_tool_result(call, evaluation)
        except Exception:  # noqa: BLE001 - whoever only watches, stops nothing
            _log.exception("on_tool_result failed, which changes nothing")

    def _drive(self, flow: Generator[_Step, Any, _Done]) -> _Done:
        try:
            step = next(flow)
            while True:
                if isinstance(step, ModelRequest):
                    step = flow.send(_turn(self._model(step)))
                elif isinstance(step, Listing):
                    step = flow.send(self._tools.listed(step.session))
                else:
                    step = flow.send(self._call_all(step))
        except StopIteration as end:
            done: _Done = end.value
            return done

    async def _adrive(self, flow: Generator[_Step, Any, _Done]) -> _Done:
        try:
            step = next(flow)
            while True:
                if isinstance(step, ModelRequest):
                    answered = self._model(step)
                    step = flow.send(_turn(await answered if inspect.isawaitable(answered) else answered))
                elif isinstance(step, Listing):
                    step = flow.send(await self._tools.alisted(step.session))
                else:
                    step = flow.send(await self._acall_all(step))
        except StopIteration as end:
            done: _Done = end.value
            return done

    def _call_all(self, step: _Calls) -> list[Evaluation]:
        if len(step.calls) == 1:
            return [self._call(step.calls[0], step.sessions[0])]
        with ThreadPoolExecutor(min(len(step.calls), _TOGETHER), thread_name_prefix="pdp-loop") as threads:
            running = [
                threads.submit(contextvars.copy_context().run, self._call, call, session)
                for call, session in zip(step.calls, step.sessions, strict=True)
            ]
            return [one.result() for one in running]

    async def _acall_all(self, step: _Calls) -> list[Evaluation]:
        places = asyncio.Semaphore(_TOGETHER)

        async def called(call: ToolCall, session: Session) -> Evaluation:
            async with places:
                return await self._pep.acall(proposal_of(call), session, tool_call_id=call.id)

        return await asyncio.gather(*map(called, step.calls, step.sessions))

    def _call(self, call: ToolCall, session: Session) -> Evaluation:
        return self._pep.call(proposal_of(call), session, tool_call_id=call.id)


def _check_number(name: str, number: object) -> None:
    if type(number) is not int or number < 1:
        raise UsageError(f"{name}: {number!r:.40} is out of range", hint="a whole number, at least 1")


def _turn(answered: object) -> Turn:
    if isinstance(answered, Turn):
        return answered
    if inspect.iscoroutine(answered):
        answered.close()
        raise UsageError("the model is asynchronous", hint="run the loop with `arun`")
    raise UsageError(f"the model answered {type(answered).__name__}", hint="return a `Turn`")
