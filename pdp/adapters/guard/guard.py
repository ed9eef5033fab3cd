"""A call of a framework: decided, run by the framework's own executor, and what the model is told of it."""

from __future__ import annotations  # `checked` reads annotations as they are written

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from enum import StrEnum
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from pdp.decision import Verdict
from pdp.documents.arguments import checked
from pdp.errors import UsageError
from pdp.execution.failures import ToolUnavailableError
from pdp.execution.runner import set_within
from pdp.flow.evaluation import Evaluation
from pdp.flow.preview import Visibility
from pdp.json import canonical, digest
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.foreign.dialects import translated
from pdp.pep import Pep
from pdp.session import Session
from pdp.stores.approvals import Approval, ApprovalState

SessionSource = Session | Mapping[str, Any] | Callable[[Any], Session | Mapping[str, Any]]

_log = logging.getLogger("pdp.adapters")

_run: ContextVar[tuple[str, Callable[[dict[str, Any]], Any]]] = ContextVar("pdp_adapter_run")
_SESSIONS: Final = 1024
_FIX: Final = "correct the manifest's schema or the tool; `pdp scan` compares them"


class FrameworkCall(NamedTuple):
    """One call, as a framework has it.

    Attributes:
        arguments: an object, or JSON text of one.
        call_id: the model's id of the call, where there is one.
        context: the framework's trusted context: what the session is made of.
        agent: the name of the agent that calls; it is the session's `agent` where that has none.
        run_id: the framework's id of the run, or thread; likewise.
        pauses: whether a held call is made again with the same id. Where the model has to make it again, its key is
            made of the run and its arguments: the same call runs once in a run.
    """

    tool: str
    arguments: Any
    call_id: str | None = None
    context: Any = None
    agent: str | None = None
    run_id: str | None = None
    pauses: bool = True


class OutcomeKind(StrEnum):
    """What there is to do: give the result (`RAN`), or only tell the model why there is none."""

    RAN = "ran"
    FAILED = "failed"
    DENIED = "denied"
    HELD = "held"
    DROPPED = "dropped"


class CallOutcome(NamedTuple):
    """One call's end. Nothing has run unless its kind is RAN or FAILED.

    Attributes:
        text: what the model is told, never empty: the result as text, or codes and what is missing.
        own: what the framework's executor returned, where that is still the result; else None, and `text` is.
        value: the result as JSON, where it is; None of what did not run.
        approval: what a HELD call waits for.
        error: what the tool raised.
    """

    kind: OutcomeKind
    text: str
    own: Any = None
    value: Any = None
    approval: Approval | None = None
    error: BaseException | None = None

    @property
    def is_error(self) -> bool:
        """Whether the model is told of an error: all but a result and a call that was dropped."""
        return self.kind not in (OutcomeKind.RAN, OutcomeKind.DROPPED)

    @property
    def pending(self) -> dict[str, Any] | None:
        """What a framework's pause carries, as JSON: `{approval_id, tool, reasons, approvers, expires_at}`."""
        approval = self.approval
        if approval is None:
            return None
        return {
            "approval_id": approval.id,
            "tool": approval.tool,
            "reasons": [*approval.reasons],
            "approvers": [*approval.approvers],
            "expires_at": approval.expires_at,
        }


UNDECIDED: Final = CallOutcome(OutcomeKind.DENIED, "pep.internal_error: the call could not be decided, and nothing ran")
LEFT_OUT: Final = CallOutcome(
    OutcomeKind.DENIED, "pdp.usage: the tool cannot run here, and nothing ran; the application's log says why"
)
UNKNOWN: Final = CallOutcome(
    OutcomeKind.FAILED, "pep.internal_error: the tool ran, and its result could not be delivered"
)


def outcome_of(evaluation: Evaluation, own: Any = None, content: Any = None) -> CallOutcome:
    """Return what an evaluation came to; `own` is the executor's, and `content` what the tool gave by it."""
    answer = evaluation.answer
    if evaluation.allowed:
        if evaluation.outcome.failure is not None:
            return CallOutcome(OutcomeKind.FAILED, answer.text, error=evaluation.error)
        same = own is not None and evaluation.result is content
        return CallOutcome(OutcomeKind.RAN, answer.text or "done", own if same else None, answer.result)
    if evaluation.pruned:
        return CallOutcome(OutcomeKind.DROPPED, answer.text)
    approval = evaluation.approval
    if evaluation.verdict is Verdict.STEP_UP and approval is not None and approval.state is ApprovalState.PENDING:
        return CallOutcome(OutcomeKind.HELD, answer.text, approval=approval)
    return CallOutcome(OutcomeKind.DENIED, answer.text)


class ToolGuard:
    """Decides the calls of a framework's tools. Safe to share between threads and tasks.

    Args:
        pep: who decides; its own functions are not used, as the framework runs the tools.
        session: whose calls these are: one session for all, or a function that makes it of the framework's context
            for each call. It never comes from the model.

    Raises:
        UsageError: a session that cannot be read, or an enforcement point with a registry.
    """

    @checked
    def __init__(self, pep: Pep, session: SessionSource) -> None:
        if pep.registry is not None:
            raise UsageError(
                "an adapter's framework runs the tools, and this enforcement point has a registry that does",
                hint="open another one, with Pep.from_project or Pep.from_files",
            )
        names = pep.manifest.tools
        self._pep = pep.with_changes(tools={name: partial(_body, name) for name in names})
        self._apep = pep.with_changes(tools={name: partial(_abody, name) for name in names})
        self._tools = self._pep._parts.tools  # noqa: SLF001 - made here, as the next one is
        self._apep._parts.tools.defaults = self._tools.defaults  # noqa: SLF001
        self._source = session if callable(session) else None
        self._fixed = None if callable(session) else Session.read(session)
        self._filled = lru_cache(_SESSIONS)(self._fixed_with)
        self._checked: dict[str, bytes] = {}
        self._left_out: set[str] = set()
        self._say = lru_cache(_SESSIONS)(partial(_log.error, "tool %s is left out: %s"))

    @property
    def manifest(self) -> EffectiveManifest:
        """What the tools are held against."""
        return self._pep.manifest

    def check(self, schemas: Mapping[str, Mapping[str, Any]], *, in_run: bool = False) -> None:
        """Compare the framework's tools with the manifest: by name, the JSON Schema of their arguments.

        A default that a tool has and its entry admits is decided with each call that leaves the argument out. A tool
        that the manifest lacks is listed to nobody, and its calls are denied. In a run, so is one that is not as
        declared, as an error would end the run under the framework's own frames.

        Raises:
            UsageError: outside of a run, a tool is not as declared; the message has every difference.
        """
        faults: list[str] = []
        for name, schema in schemas.items():
            shown = canonical(schema)
            if name not in self.manifest.tools or self._checked.get(name) == shown:
                continue
            try:
                found = self._tools.take(name, translated(schema).schema)
            except UsageError as error:
                self._tools.defaults[name], found = {}, [error.message]
            faults += (found := [f"{name}: {line}" for line in found])
            self._left_out.discard(name)
            if not found:
                self._checked[name] = shown
            elif in_run:
                self.leave_out(
                    name, f"it is not as manifest {self.manifest.version} declares it: {'; '.join(found)}. {_FIX}"
                )
        if faults and not in_run:
            raise UsageError(
                f"tools are not as manifest {self.manifest.version} declares them: {'; '.join(faults)}", hint=_FIX
            )

    def leave_out(self, name: str, why: str) -> None:
        """List a tool to nobody and deny its calls, until it is checked again; say why in the log, once."""
        self._checked.pop(name, None)
        self._left_out.add(name)
        self._say(name, why)

    def call(
        self,
        call: FrameworkCall,
        run: Callable[[dict[str, Any]], Any],
        content: Callable[[Any], Any] | None = None,
    ) -> CallOutcome:
        """Decide a call and, on ALLOW alone, run it with `run`, which takes the decided arguments.

        `content` returns, of what `run` returns, the part that is the tool's result as JSON; by itself, all of it.
        Whatever fails is a DENY. What `run` raises is the outcome's `error`.
        """
        own: list[Any] = []

        def running(arguments: dict[str, Any]) -> Any:
            own[:] = (result := run(arguments), result if content is None else content(result))
            return own[1]

        try:
            proposal, session = self._asked(call)
            with set_within(_run, (call.tool, running)):
                evaluation = self._pep.call(proposal, session, tool_call_id=call.call_id)
            return outcome_of(evaluation, *own)
        except Exception as error:  # noqa: BLE001 - whatever fails is a DENY
            return _undecided(call, error, has_run=bool(own))

    async def acall(
        self,
        call: FrameworkCall,
        run: Callable[[dict[str, Any]], Awaitable[Any]],
        content: Callable[[Any], Any] | None = None,
    ) -> CallOutcome:
        """Async variant of `call`."""
        own: list[Any] = []

        async def running(arguments: dict[str, Any]) -> Any:
            result = await run(arguments)
            own[:] = (result, result if content is None else content(result))
            return own[1]

        try:
            proposal, session = self._asked(call)
            with set_within(_run, (call.tool, running)):
                evaluation = await self._apep.acall(proposal, session, tool_call_id=call.call_id)
            return outcome_of(evaluation, *own)
        except Exception as error:  # noqa: BLE001 - as above
            return _undecided(call, error, has_run=bool(own))

    async def aask(self, call: FrameworkCall) -> CallOutcome:
        """Decide a call that the framework would make later, and run nothing; one to be HELD has its approval opened.

        The kind is RAN where it would be allowed. To make the call is to decide it again.
        """
        try:
            return outcome_of(await self._apep.adecide(*self._asked(call), tool_call_id=call.call_id, hold=True))
        except Exception as error:  # noqa: BLE001 - as above
            return _undecided(call, error)

    def reject(self, call: FrameworkCall, answers: Iterable[Any]) -> CallOutcome | None:
        """Take a call back that the application rejects as it resumes the run: its approval is withdrawn; nothing runs.

        Of `answers` counts `{"type": "reject", "approval_id": ID}`, perhaps with a `message`. None: no such one is for
        this very call.
        """
        try:
            for answer in answers:
                if not isinstance(answer, dict) or answer.get("type") != "reject" or "approval_id" not in answer:
                    continue
                proposal, session = self._asked(call)
                held = self._pep.decide(proposal, session, tool_call_id=call.call_id, hold=True).approval
                approvals = self._pep.approvals
                if held and approvals and approvals.get(answer["approval_id"]).call_digest == held.call_digest:
                    person = {name: claim for name, claim in session.claims.items() if name != "act"}
                    approvals.withdraw(held.id, person)
                    why = answer.get("message") or "no reason is given"
                    return CallOutcome(OutcomeKind.DENIED, f"rejected, and nothing ran: {why}")
        except Exception as error:  # noqa: BLE001 - as above
            return _undecided(call, error)
        return None

    def visible(
        self, names: Collection[str], context: Any = None, agent: str | None = None, run_id: str | None = None
    ) -> set[str]:
        """Return which of these tools the caller can ever use; none where that cannot be told."""
        try:
            session = self._session(FrameworkCall("", {}, None, context, agent, run_id))
            return _shown({*names} - self._left_out, self._pep.visible_tools(session))
        except Exception:  # noqa: BLE001 - as above
            _log.exception("tools could not be listed, and none is shown")
            return set()

    async def avisible(
        self, names: Collection[str], context: Any = None, agent: str | None = None, run_id: str | None = None
    ) -> set[str]:
        """Async variant of `visible`."""
        try:
            session = self._session(FrameworkCall("", {}, None, context, agent, run_id))
            return _shown({*names} - self._left_out, await self._apep.avisible_tools(session))
        except Exception:  # noqa: BLE001 - as above
            _log.exception("tools could not be listed, and none is shown")
            return set()

    def _asked(self, call: FrameworkCall) -> tuple[dict[str, Any], Session]:
        if call.tool in self._left_out:
            raise _LeftOutError
        if isinstance(call.arguments, str):
            proposal = {
                "type": "function_call",
                "call_id": call.call_id,
                "name": call.tool,
                "arguments": call.arguments,
            }
        else:
            proposal = {"tool": call.tool, "arguments": call.arguments}
        return proposal, self._session(call)

    def _session(self, call: FrameworkCall) -> Session:
        given: Any = self._fixed if self._source is None else self._source(call.context)
        given = given if isinstance(given, Mapping) else Session.read(given)
        stated = given.run_id if isinstance(given, Session) else given.get("run_id")
        key = self._key(call, stated or call.run_id)
        if self._source is None:
            return self._filled(call.agent, call.run_id, key)
        if isinstance(given, Session):
            return _with(given, call.agent, call.run_id, key)
        known = {"agent": call.agent, "run_id": call.run_id, "idempotency_key": key}
        return Session.read({**known, **{name: value for name, value in given.items() if value is not None}})

    def _key(self, call: FrameworkCall, run_id: str | None) -> str | None:
        """Return what names this call where its tool needs a key and derives none: a replay is the same call."""
        entry = self.manifest.tools.get(call.tool)
        named = call.call_id if call.pauses else [call.tool, call.arguments]
        if entry is None or not entry.idempotency.required or entry.derives_key or run_id is None or named is None:
            return None
        return digest(canonical([run_id, named]))

    def _fixed_with(self, agent: str | None, run_id: str | None, key: str | None) -> Session:
        return _with(Session.read(self._fixed), agent, run_id, key)


def _with(session: Session, agent: str | None, run_id: str | None, key: str | None) -> Session:
    """Return the session with what it does not state itself."""
    known = {"agent": agent, "run_id": run_id, "idempotency_key": key}
    changes = {name: value for name, value in known.items() if value is not None and getattr(session, name) is None}
    return session.with_changes(**changes) if changes else session


def _body(tool: str, /, **arguments: Any) -> Any:
    return _run_of(tool)(arguments)


async def _abody(tool: str, /, **arguments: Any) -> Any:
    return await _run_of(tool)(arguments)


def _run_of(tool: str) -> Callable[[dict[str, Any]], Any]:
    """Return what runs the tool. The framework runs the one that it asked for, whatever a policy puts in its place."""
    asked, run = _run.get()
    if asked != tool:
        message = f"the policy has {tool} run in place of {asked}, and the framework runs {asked} alone"
        raise ToolUnavailableError(message, details={"effect": "none"})
    return run


def _shown(names: Collection[str], visible: Mapping[str, Visibility]) -> set[str]:
    return {name for name in names if visible.get(name, Visibility.NEVER) is not Visibility.NEVER}


class _LeftOutError(Exception):
    """The tool of a call is left out."""


def _undecided(call: FrameworkCall, error: Exception, *, has_run: bool = False) -> CallOutcome:
    if isinstance(error, _LeftOutError):
        return LEFT_OUT
    _log.exception("a call of %.128r has failed in its enforcement point", call.tool)
    return UNKNOWN if has_run else UNDECIDED
