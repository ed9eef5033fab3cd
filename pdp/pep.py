"""The policy enforcement point: what an application calls. The flow itself stands in pdp/flow/calling.py."""

from __future__ import annotations

import time
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from pdp.audit.file import MemoryAudit
from pdp.contract.compiled import CompiledManifest
from pdp.engine.factory import embedded_engine
from pdp.errors import UsageError
from pdp.execution.events import Observers
from pdp.flow.call import Call, Evaluation
from pdp.flow.calling import CallFlow
from pdp.flow.drive import adrive, drive
from pdp.flow.executing import Executor
from pdp.flow.guard import guarded, session_in_use
from pdp.flow.keeping import Keeping
from pdp.flow.keys import caller_of
from pdp.flow.options import check_options
from pdp.flow.planning import planned
from pdp.flow.release import NewestRelease
from pdp.flow.tools import Tools
from pdp.flow.visibility import visible
from pdp.obligations.obligations import Obligations
from pdp.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pdp.approvals.approvals import Approvals
    from pdp.audit.file import AuditLog
    from pdp.contract.json_object import JsonObject
    from pdp.contract.registry.registry import Registry
    from pdp.engine.protocol import Engine
    from pdp.execution.events import Observer
    from pdp.execution.telemetry import Telemetry
    from pdp.flow.planning import PlanEvaluation
    from pdp.flow.visibility import Visibility
    from pdp.manifest.effective import EffectiveManifest
    from pdp.obligations.obligation import ObligationHandler
    from pdp.patterns.deployment import Deployment
    from pdp.stores.action import ActionStore
    from pdp.stores.key import IdempotencyStore


class Pep:
    """Decides the tool calls of one agent application, and runs those that are allowed.

    Safe to share between threads and tasks. Every method that decides returns an `Evaluation` and never raises for
    what a model proposed or an engine answered.

    Args:
        manifest: the effective manifest.
        engine: who decides.
        audit: where events go; a stream in memory when absent.
        tools: the functions to run, by tool name; `tool` adds to them.
        registry: where functions are bound as well, with their state and config; its manifest has to be `manifest`.
        approvals: who may approve what the policy wants a person for. Without it no call is ever approved.
        obligations: the application's own handlers, by the id of the obligation that each fulfils.
        keys: where idempotency keys are kept, and what their calls came to; in memory when absent.
        actions: where the actions of calls with effects are kept; in memory when absent.
        deployment: what runs of agents are told: sources to pin, versions, markings.
        observers: functions that are told when a tool begins and ends.
        telemetry: makes spans and metrics; none when absent.

    Raises:
        UsageError: a handler that is none, or for an obligation of the baseline; an observer that is none; a registry
            with another manifest; a function that no tool has; any other option that is not what it should be.
    """

    def __init__(
        self,
        manifest: EffectiveManifest,
        engine: Engine,
        *,
        audit: AuditLog | None = None,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        registry: Registry | None = None,
        approvals: Approvals | None = None,
        obligations: Mapping[str, ObligationHandler] | None = None,
        keys: IdempotencyStore | None = None,
        actions: ActionStore | None = None,
        deployment: Deployment | None = None,
        observers: Iterable[Observer] = (),
        telemetry: Telemetry | None = None,
    ) -> None:
        if registry is not None and registry.manifest.digest != manifest.digest:
            raise UsageError(
                "the registry has another manifest", hint="pass `registry.manifest`, or use `from_registry`"
            )
        check_options(
            manifest, tools=tools, audit=audit, approvals=approvals, keys=keys, actions=actions, deployment=deployment
        )
        self.manifest = manifest
        self.engine = engine
        self.registry = registry
        keeping = Keeping.of(keys, actions, deployment)
        self._flow = CallFlow(
            manifest=CompiledManifest(manifest) if registry is None else registry.compiled,
            audit=MemoryAudit() if audit is None else audit,
            approvals=approvals,
            executor=Executor(Tools(tools or {}, registry), keeping, Observers(observers), telemetry),
            obligations=Obligations(obligations),
            newest=NewestRelease(),
        )

    @property
    def audit(self) -> AuditLog:
        """Where events go."""
        return self._flow.audit

    @property
    def approvals(self) -> Approvals | None:
        """Who may approve; None: nobody."""
        return self._flow.approvals

    @property
    def actions(self) -> ActionStore:
        """Where the actions of calls with effects are kept."""
        return self._flow.executor.keeping.actions

    def with_changes(
        self,
        *,
        audit: AuditLog | None = None,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        approvals: Approvals | None = None,
        obligations: Mapping[str, ObligationHandler] | None = None,
        keys: IdempotencyStore | None = None,
        actions: ActionStore | None = None,
        deployment: Deployment | None = None,
    ) -> Self:
        """Return another enforcement point that shares manifest and engine; what is not given stays as it is here.

        Runs are shared as well, unless `actions` or `deployment` is given: then it has its own, and none is open.
        Cheap: nothing is compiled again. Arguments and errors as of the constructor.
        """
        check_options(
            self.manifest,
            tools=tools,
            audit=audit,
            approvals=approvals,
            keys=keys,
            actions=actions,
            deployment=deployment,
        )
        flow, other = self._flow, copy(self)
        other._flow = replace(  # noqa: SLF001 - one of its own kind
            flow,
            audit=flow.audit if audit is None else audit,
            approvals=flow.approvals if approvals is None else approvals,
            executor=flow.executor.replaced_by(tools, keys, actions, deployment),
            obligations=flow.obligations if obligations is None else Obligations(obligations),
        )
        return other

    @classmethod
    def from_files(
        cls,
        manifest: str,
        *,
        governance: str | None = None,
        bundle: str | None = None,
        data: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """Return an enforcement point on the embedded engine, from files.

        Args:
            manifest: path of the tool manifest, YAML or JSON.
            governance: path of the governance file.
            bundle: path of a bundle; the released baseline when absent.
            data: the roots `directory` and `settings` of the policy's data, laid over the bundle's.
            options: the rest, as of the constructor.

        Raises:
            UsageError: a file is missing or faulty; the message names every fault with its place.
            BundleError: the bundle cannot be used.
        """
        from pdp.manifest.load import load_effective  # noqa: PLC0415

        effective = load_effective(manifest, governance)
        return cls(effective, embedded_engine(effective, bundle, data), **options)

    @classmethod
    def from_registry(
        cls, registry: Registry, *, bundle: str | None = None, data: Mapping[str, Any] | None = None, **options: Any
    ) -> Self:
        """Return an enforcement point on the embedded engine for the tools of a registry; see `from_files`.

        Raises:
            BundleError: the bundle cannot be used.
        """
        return cls(registry.manifest, embedded_engine(registry.manifest, bundle, data), registry=registry, **options)

    def decide(
        self, proposal: Any, session: Any, *, tool_call_id: str | None = None, step_name: str | None = None
    ) -> Evaluation:
        """Decide one proposal without running it.

        Args:
            proposal: a `Proposal`, JSON text, or the object `{tool, arguments}` or `{tool_name, payload}`.
            session: a `Session`, or the object that it stands for.
            tool_call_id: the model's id of this call, for the record.
            step_name: the plan step that the call belongs to, for the record.
        """
        call = Call(self.manifest, tool_call_id, step_name, runs=False)
        drive(self._flow.decided(call, proposal, session), self.engine)
        return Evaluation(call)

    async def adecide(
        self, proposal: Any, session: Any, *, tool_call_id: str | None = None, step_name: str | None = None
    ) -> Evaluation:
        """Decide one proposal without running it, asynchronously; arguments as in `decide`."""
        call = Call(self.manifest, tool_call_id, step_name, runs=False)
        await adrive(self._flow.decided(call, proposal, session), self.engine)
        return Evaluation(call)

    def call(
        self, proposal: Any, session: Any, *, tool_call_id: str | None = None, step_name: str | None = None
    ) -> Evaluation:
        """Decide one proposal and, on ALLOW alone, run its tool with exactly the decided arguments.

        Arguments as in `decide`. What the tool returned is in `Evaluation.result`, a failure in `outcome.failure`.
        """
        call = Call(self.manifest, tool_call_id, step_name, runs=True)
        drive(self._flow.called(call, proposal, session), self.engine)
        return Evaluation(call)

    async def acall(
        self, proposal: Any, session: Any, *, tool_call_id: str | None = None, step_name: str | None = None
    ) -> Evaluation:
        """Do as `call`, asynchronously. A plain function runs in a thread."""
        call = Call(self.manifest, tool_call_id, step_name, runs=True)
        await adrive(self._flow.called(call, proposal, session), self.engine)
        return Evaluation(call)

    def compensate(
        self,
        action_id: str,
        arguments: Any,
        session: Any,
        *,
        tool_call_id: str | None = None,
        step_name: str | None = None,
    ) -> Evaluation:
        """Take back what an action did: call the tool that its own declares as `compensation`, decided as any other.

        When that has succeeded, the action is compensated. It succeeds once, whatever the session's idempotency key.

        Args:
            action_id: of an action that was committed or has failed, as in `Evaluation.action`.
            arguments: those of the compensating tool.
            session: who takes it back.
            tool_call_id: as in `decide`.
            step_name: likewise.

        Raises:
            UsageError: an action that cannot be compensated, or no session; see `pdp.flow.compensating`.
        """
        call = Call(self.manifest, tool_call_id, step_name, runs=True)
        drive(self._flow.compensated(call, action_id, arguments, session), self.engine)
        return Evaluation(call)

    async def acompensate(
        self,
        action_id: str,
        arguments: Any,
        session: Any,
        *,
        tool_call_id: str | None = None,
        step_name: str | None = None,
    ) -> Evaluation:
        """Do as `compensate`, asynchronously."""
        call = Call(self.manifest, tool_call_id, step_name, runs=True)
        await adrive(self._flow.compensated(call, action_id, arguments, session), self.engine)
        return Evaluation(call)

    def plan(self, steps: Sequence[Any], session: Any) -> PlanEvaluation:
        """Check a whole plan before its first call: every step by its tool's rules, all of them by the policy.

        Args:
            steps: proposals, each with a `step_name` if it has one.
            session: a `Session`, or the object that it stands for; its own plan is not looked at.

        It lets no call run: each is decided by itself, in a session whose `plan` is that of the answer.

        Raises:
            UsageError: no list of at most 100 steps, or no session.
        """
        evaluated: PlanEvaluation = drive(planned(steps, Session.read(session), self._flow.manifest), self.engine)
        return evaluated

    async def aplan(self, steps: Sequence[Any], session: Any) -> PlanEvaluation:
        """Do as `plan`, asynchronously."""
        evaluated: PlanEvaluation = await adrive(
            planned(steps, Session.read(session), self._flow.manifest), self.engine
        )
        return evaluated

    def open_run(self, run_id: str, session: Any, *, pins: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Begin a run of the session's caller, before its first call, and return its pins: keep them to replay it.

        A run begins by itself with its first call. This reads the deployment's sources, and waits for them.

        Args:
            run_id: the `run_id` of the sessions whose calls belong to it.
            session: whose run it is; its own `run_id` is not looked at.
            pins: for a replay: what this returned, `{source: {version, value}}`; no source is read then.

        Raises:
            UsageError: no session, no text as `run_id`, or `pins` of another form or for a run that has begun with
                others.
            RunClosedError: it was closed to make room for others; end it first. See `pdp.patterns.runs`.
            RunsFullError: too many runs are open or closed; end those that are over.
        """
        run = self._flow.executor.keeping.runs.open(*_run_of(run_id, session), pins=pins)
        return run.recorded_pins()

    def end_run(self, run_id: str, session: Any) -> None:
        """Forget a run of the session's caller and all that it remembers; nothing happens when there is none.

        End each run that is over: only so many are open at once, and those closed for others stay closed.

        Raises:
            UsageError: no session, or no text as `run_id`.
        """
        self._flow.executor.keeping.runs.end(*_run_of(run_id, session))

    def visible_tools(self, session: Any) -> dict[str, Visibility]:
        """Return each tool with what this session's subject can do with it; see `pdp.flow.visibility`.

        Raises:
            UsageError: no session, or one that names nobody.
        """
        flow = visible(Session.read(session), self._flow.manifest, time.time())
        seen: dict[str, Visibility] = drive(flow, self.engine)
        return seen

    async def avisible_tools(self, session: Any) -> dict[str, Visibility]:
        """Do as `visible_tools`, asynchronously."""
        flow = visible(Session.read(session), self._flow.manifest, time.time())
        seen: dict[str, Visibility] = await adrive(flow, self.engine)
        return seen

    def state_after(self, tool: str, state: Mapping[str, Any], result: Any) -> JsonObject:
        """Return the state after a tool gave `result`, its state effects merged.

        Raises:
            UsageError: no such tool.
            StateEffectError: the result is not what the effects declare.
        """
        compiled = self._flow.manifest.tool(tool)
        if compiled is None:
            raise UsageError(f"{tool:.128} is not a tool of manifest {self.manifest.version}", hint="check the name")
        return compiled.state_after(state, result)

    def tool(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Guard a function whose name is a tool of the manifest: whoever calls it is decided upon first.

        The guarded function takes its session from `using`. It returns what the function returns, or raises
        `ToolDeniedError` (also when no session is in use) or `ToolFailedError`.

        Raises:
            UsageError: no such tool, or parameters that the tool's schema does not name.
        """
        return guarded(self, function, self.manifest, self._flow.executor.tools)

    def using(self, session: Any) -> AbstractContextManager[Session]:
        """Let guarded functions called inside the block take this session, and those of tasks started there.

        A new thread has no session of its own: start it with `contextvars.copy_context().run`.
        """
        return session_in_use(session)


def _run_of(run_id: str, session: Any) -> tuple[str, str]:
    """Return the key of a run: its id, and whose it is."""
    if not isinstance(run_id, str) or not run_id:
        raise UsageError("a run needs a run_id", hint="pass the `run_id` of its sessions")
    return run_id, caller_of(Session.read(session))
