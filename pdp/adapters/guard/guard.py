"""Decide a call of a framework's tool, let the framework run it, and return the outcome for the model."""

from __future__ import annotations  # the decorator `checked` needs annotations as text

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
_FIX: Final = "correct the tool, or its schema in the manifest; `pdp scan` lists the differences"


class FrameworkCall(NamedTuple):
    """A tool call as a framework describes it. `arguments` are a dict, or the JSON text of an object.

    `context` is the framework's trusted context, which is passed to the session function. `agent` and `run_id` are used
    if the session lacks them. Unless the framework `pauses`, a held call is made again with a new id. Its idempotency
    key is then made of run, tool and arguments, so a call with the same arguments runs once in a run.
    """

    tool: str
    arguments: Any
    call_id: str | None = None
    context: Any = None
    agent: str | None = None
    run_id: str | None = None
    pauses: bool = True


class OutcomeKind(StrEnum):
    """How a call ended. Only `RAN` has a result; the other kinds have a text for the model."""

    RAN = "ran"
    FAILED = "failed"
    DENIED = "denied"
    HELD = "held"
    DROPPED = "dropped"


class CallOutcome(NamedTuple):
    """The outcome of a call. The tool has not run unless `kind` is RAN or FAILED.

    `text` is for the model, and never empty. `own` is the value that the framework's executor returned; None if the
    policy replaced the result. `value` is the result as JSON. `error` is the exception that the tool raised.
    """

    kind: OutcomeKind
    text: str
    own: Any = None
    value: Any = None
    approval: Approval | None = None
    error: BaseException | None = None

    @property
    def is_error(self) -> bool:
        """Whether the model gets an error: true for all kinds except RAN and DROPPED."""
        return self.kind not in (OutcomeKind.RAN, OutcomeKind.DROPPED)

    @property
    def pending(self) -> dict[str, Any] | None:
        """The data of a pause for approval, as JSON: `{approval_id, tool, reasons, approvers, expires_at, url}`."""
        approval = self.approval
        if approval is None:
            return None
        return {
            "approval_id": approval.id,
            "tool": approval.tool,
            "reasons": [*approval.reasons],
            "approvers": [*approval.approvers],
            "expires_at": approval.expires_at,
            "url": approval.url,
        }


UNDECIDED: Final = CallOutcome(
    OutcomeKind.DENIED, "pep.internal_error: the call could not be decided, so the tool did not run"
)
LEFT_OUT: Final = CallOutcome(
    OutcomeKind.DENIED,
    "pdp.usage: the tool cannot run here, so it did not run; see the application's log for the reason",
)
UNKNOWN: Final = CallOutcome(
    OutcomeKind.FAILED, "pep.internal_error: the tool ran, but its result could not be delivered"
)


def outcome_of(evaluation: Evaluation, own: Any = None, content: Any = None) -> CallOutcome:
    """Return the outcome of an evaluation. `own` is the executor's return value, `content` the result as JSON."""
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
        pep: decides the calls. The functions of `pep` are not used, because the framework runs the tools.
        session: one session for all calls, or a function that returns the session for the framework's context of a
            call. The session must never come from the model.

    Raises:
        UsageError: the session cannot be read, or `pep` has a registry.
    """

    @checked
    def __init__(self, pep: Pep, session: SessionSource) -> None:
        if pep.registry is not None:
            raise UsageError(
                "`pep` has a registry that runs the tools, but with an adapter the framework must run them",
                hint="pass a Pep without a registry, from Pep.from_project or Pep.from_files",
            )
        names = pep.manifest.tools
        self._pep = pep.with_changes(tools={name: partial(_body, name) for name in names})
        self._apep = pep.with_changes(tools={name: partial(_abody, name) for name in names})
        self._tools = self._pep._parts.tools  # noqa: SLF001 - this Pep was just made here
        self._apep._parts.tools.defaults = self._tools.defaults  # noqa: SLF001
        self._source = session if callable(session) else None
        self._fixed = None if callable(session) else Session.read(session)
        self._filled = lru_cache(_SESSIONS)(self._fixed_with)
        self._checked: dict[str, bytes] = {}
        self._left_out: set[str] = set()
        self._say = lru_cache(_SESSIONS)(partial(_log.error, "tool %s is left out: %s"))

    @property
    def manifest(self) -> EffectiveManifest:
        """The manifest that the tools are compared with."""
        return self._pep.manifest

    def check(self, schemas: Mapping[str, Mapping[str, Any]], *, in_run: bool = False) -> None:
        """Compare the framework's tools with the manifest. `schemas` has the JSON Schema of each tool's arguments.

        An omitted argument gets the tool's default before the decision, if the manifest's schema accepts it. Tools that
        the manifest lacks are hidden, and their calls are denied. With `in_run`, differing tools are hidden and denied,
        too, because an error would end the framework's run. Otherwise, a UsageError lists all differences.
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
                    name, f"the tool differs from manifest {self.manifest.version}: {'; '.join(found)}. {_FIX}"
                )
        if faults and not in_run:
            raise UsageError(f"tools differ from manifest {self.manifest.version}: {'; '.join(faults)}", hint=_FIX)

    def leave_out(self, name: str, why: str) -> None:
        """Hide a tool and deny its calls until it is checked again. Log the reason once."""
        self._checked.pop(name, None)
        self._left_out.add(name)
        self._say(name, why)

    def call(
        self,
        call: FrameworkCall,
        run: Callable[[dict[str, Any]], Any],
        content: Callable[[Any], Any] | None = None,
    ) -> CallOutcome:
        """Decide a call and, on ALLOW, run it with the decided arguments. Any failure to decide is a DENY.

        An exception of the framework's executor `run` is the outcome's `error`. `content` makes JSON of a result.
        """
        results: list[Any] = []

        def running(arguments: dict[str, Any]) -> Any:
            results[:] = (result := run(arguments), result if content is None else content(result))
            return results[1]

        try:
            proposal, session = self._prepared(call)
            with set_within(_run, (call.tool, running)):
                evaluation = self._pep.call(proposal, session, tool_call_id=call.call_id)
            return outcome_of(evaluation, *results)
        except Exception as error:  # noqa: BLE001 - any failure is a DENY
            return _undecided(call, error, has_run=bool(results))

    async def acall(
        self,
        call: FrameworkCall,
        run: Callable[[dict[str, Any]], Awaitable[Any]],
        content: Callable[[Any], Any] | None = None,
    ) -> CallOutcome:
        """Async variant of `call`."""
        results: list[Any] = []

        async def running(arguments: dict[str, Any]) -> Any:
            result = await run(arguments)
            results[:] = (result, result if content is None else content(result))
            return results[1]

        try:
            proposal, session = self._prepared(call)
            with set_within(_run, (call.tool, running)):
                evaluation = await self._apep.acall(proposal, session, tool_call_id=call.call_id)
            return outcome_of(evaluation, *results)
        except Exception as error:  # noqa: BLE001 - any failure is a DENY
            return _undecided(call, error, has_run=bool(results))

    async def aask(self, call: FrameworkCall) -> CallOutcome:
        """Decide a call that the framework may make later, and open the approval that the call needs, if any.

        The outcome's kind is RAN if the call would be allowed. The call is decided again when the framework makes it.
        """
        try:
            return outcome_of(await self._apep.adecide(*self._prepared(call), tool_call_id=call.call_id, hold=True))
        except Exception as error:  # noqa: BLE001 - any failure is a DENY
            return _undecided(call, error)

    def reject(self, call: FrameworkCall, answers: Iterable[Any]) -> CallOutcome | None:
        """If an answer rejects the call, withdraw the call's approval and return the denial; otherwise return None.

        Only answers `{"type": "reject", "approval_id": ID}` count, with an optional `message`.
        """
        try:
            for answer in answers:
                if not isinstance(answer, dict) or answer.get("type") != "reject" or "approval_id" not in answer:
                    continue
                proposal, session = self._prepared(call)
                held = self._pep.decide(proposal, session, tool_call_id=call.call_id, hold=True).approval
                approvals = self._pep.approvals
                if held and approvals and approvals.get(answer["approval_id"]).call_digest == held.call_digest:
                    person = {name: claim for name, claim in session.claims.items() if name != "act"}
                    approvals.withdraw(held.id, person)
                    why = answer.get("message") or "no reason given"
                    return CallOutcome(OutcomeKind.DENIED, f"rejected, so the tool did not run: {why}")
        except Exception as error:  # noqa: BLE001 - any failure is a DENY
            return _undecided(call, error)
        return None

    def visible(
        self, names: Collection[str], context: Any = None, agent: str | None = None, run_id: str | None = None
    ) -> set[str]:
        """Return the names of tools that the caller can ever use, or an empty set after an error."""
        try:
            session = self._session(FrameworkCall("", {}, None, context, agent, run_id))
            return _shown({*names} - self._left_out, self._pep.visible_tools(session))
        except Exception:  # noqa: BLE001 - any failure hides the tools
            _log.exception("could not list the tools, so no tool is shown")
            return set()

    async def avisible(
        self, names: Collection[str], context: Any = None, agent: str | None = None, run_id: str | None = None
    ) -> set[str]:
        """Async variant of `visible`."""
        try:
            session = self._session(FrameworkCall("", {}, None, context, agent, run_id))
            return _shown({*names} - self._left_out, await self._apep.avisible_tools(session))
        except Exception:  # noqa: BLE001 - any failure hides the tools
            _log.exception("could not list the tools, so no tool is shown")
            return set()

    def _prepared(self, call: FrameworkCall) -> tuple[dict[str, Any], Session]:
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
        defaults = {"agent": call.agent, "run_id": call.run_id, "idempotency_key": key}
        return Session.read({**defaults, **{name: value for name, value in given.items() if value is not None}})

    def _key(self, call: FrameworkCall, run_id: str | None) -> str | None:
        """Return an idempotency key if the tool needs one, the manifest derives none and ids are known; else None."""
        entry = self.manifest.tools.get(call.tool)
        named = call.call_id if call.pauses else [call.tool, call.arguments]
        if entry is None or not entry.idempotency.required or entry.derives_key or run_id is None or named is None:
            return None
        return digest(canonical([run_id, named]))

    def _fixed_with(self, agent: str | None, run_id: str | None, key: str | None) -> Session:
        return _with(Session.read(self._fixed), agent, run_id, key)


def _with(session: Session, agent: str | None, run_id: str | None, key: str | None) -> Session:
    defaults = {"agent": agent, "run_id": run_id, "idempotency_key": key}
    changes = {name: value for name, value in defaults.items() if value is not None and getattr(session, name) is None}
    return session.with_changes(**changes) if changes else session


def _body(tool: str, /, **arguments: Any) -> Any:
    return _run_of(tool)(arguments)


async def _abody(tool: str, /, **arguments: Any) -> Any:
    return await _run_of(tool)(arguments)


def _run_of(tool: str) -> Callable[[dict[str, Any]], Any]:
    """Return the framework's executor. Raise `ToolUnavailableError` if the policy has replaced the tool."""
    proposed, run = _run.get()
    if proposed != tool:
        message = f"the policy replaced {proposed} with {tool}, but the framework can only run {proposed}"
        raise ToolUnavailableError(message, details={"effect": "none"})
    return run


def _shown(names: Collection[str], visible: Mapping[str, Visibility]) -> set[str]:
    return {name for name in names if visible.get(name, Visibility.NEVER) is not Visibility.NEVER}


class _LeftOutError(Exception):
    """The called tool was left out, so it is hidden and its calls are denied."""


def _undecided(call: FrameworkCall, error: Exception, *, has_run: bool = False) -> CallOutcome:
    if isinstance(error, _LeftOutError):
        return LEFT_OUT
    _log.exception("could not decide or deliver a call of tool %.128r", call.tool)
    return UNKNOWN if has_run else UNDECIDED
