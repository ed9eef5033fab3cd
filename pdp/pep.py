"""The policy enforcement point: the flow on one page.

    proposal -> contract -> request -> engine -> decision -> obligations -> audit -> execution -> audit

Whatever fails on the way is a DENY with a stable code, and whatever happens is in the audit stream: no way through
this module leaves one of them out.

The flow stands once, as a generator: what takes time, it hands out to whoever drives it, waiting or asynchronously.
"""

from __future__ import annotations

import logging
import time
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pdp.audit import MemoryAudit
from pdp.contract.compiled import CompiledManifest
from pdp.decision import Verdict, denied
from pdp.errors import AuditError, UsageError
from pdp.execution.events import Observers
from pdp.flow.approving import find_approval, open_approval
from pdp.flow.binding import check_signature
from pdp.flow.call import Call, Evaluation
from pdp.flow.drive import adrive, drive
from pdp.flow.executing import Executor, Keeping
from pdp.flow.guard import guard, session_in_use
from pdp.flow.planning import planned
from pdp.flow.preparing import prepare
from pdp.flow.recording import log_decision, record_dispatch, record_result
from pdp.flow.release import NewestRelease
from pdp.flow.tools import Tools
from pdp.flow.visibility import visible
from pdp.obligations.fulfilment import transformed
from pdp.obligations.obligation import ObligationError
from pdp.obligations.obligations import Obligations
from pdp.session import Session
from pdp.store.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pdp.approvals.approvals import Approvals
    from pdp.audit import AuditLog
    from pdp.contract.registry import Registry
    from pdp.engine.protocol import Engine
    from pdp.execution.actions import ActionStore
    from pdp.execution.events import Observer
    from pdp.execution.idempotency import IdempotencyStore
    from pdp.execution.telemetry import CallTelemetry, Telemetry
    from pdp.flow.drive import Flow
    from pdp.flow.planning import PlanEvaluation
    from pdp.flow.visibility import Visibility
    from pdp.manifest.effective import EffectiveManifest
    from pdp.obligations.obligation import ObligationHandler
    from pdp.patterns.runs import Deployment

_log = logging.getLogger("pdp.pep")

INTERNAL_ERROR = "pep.internal_error"
STALE = "bundle.stale"


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
            with another manifest.
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
        self.manifest = manifest
        self.engine = engine
        self.audit = MemoryAudit() if audit is None else audit
        self.approvals = approvals
        self.registry = registry
        self._compiled = CompiledManifest(manifest) if registry is None else registry.compiled
        self._newest = NewestRelease()
        self._obligations = Obligations(obligations)
        self._executor = Executor(
            Tools(tools or {}, registry), Keeping.of(keys, actions, deployment), Observers(observers), telemetry
        )
        self._join(approvals)

    def with_changes(
        self,
        *,
        audit: AuditLog | None = None,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        approvals: Approvals | None = None,
        obligations: Mapping[str, ObligationHandler] | None = None,
        keys: IdempotencyStore | None = None,
        actions: ActionStore | None = None,
    ) -> Self:
        """Return another enforcement point that shares manifest and engine; what is not given stays as it is here.

        Cheap: nothing is compiled again. Arguments and errors as of the constructor.
        """
        other = copy(self)
        other.audit = self.audit if audit is None else audit
        other._executor = self._executor.replaced_by(tools, keys, actions)  # noqa: SLF001 - one of its own kind
        if obligations is not None:
            other._obligations = Obligations(obligations)  # noqa: SLF001 - likewise
        if approvals is not None:
            other.approvals = approvals
        other._join(other.approvals)  # noqa: SLF001 - likewise
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
        from pdp.manifest.loading import load_effective  # noqa: PLC0415

        effective = load_effective(manifest, governance)
        return cls(effective, _embedded(effective, bundle, data), **options)

    @classmethod
    def from_registry(
        cls, registry: Registry, *, bundle: str | None = None, data: Mapping[str, Any] | None = None, **options: Any
    ) -> Self:
        """Return an enforcement point on the embedded engine for the tools of a registry; see `from_files`.

        Raises:
            BundleError: the bundle cannot be used.
        """
        return cls(registry.manifest, _embedded(registry.manifest, bundle, data), registry=registry, **options)

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
        drive(self._decided(call, proposal, session), self.engine)
        return Evaluation(call)

    async def adecide(
        self, proposal: Any, session: Any, *, tool_call_id: str | None = None, step_name: str | None = None
    ) -> Evaluation:
        """Decide one proposal without running it, asynchronously; arguments as in `decide`."""
        call = Call(self.manifest, tool_call_id, step_name, runs=False)
        await adrive(self._decided(call, proposal, session), self.engine)
        return Evaluation(call)

    def call(
        self, proposal: Any, session: Any, *, tool_call_id: str | None = None, step_name: str | None = None
    ) -> Evaluation:
        """Decide one proposal and, on ALLOW alone, run its tool with exactly the decided arguments.

        Arguments as in `decide`. What the tool returned is in `Evaluation.result`, a failure in `outcome.failure`.
        """
        call = Call(self.manifest, tool_call_id, step_name, runs=True)
        drive(self._called(call, proposal, session), self.engine)
        return Evaluation(call)

    async def acall(
        self, proposal: Any, session: Any, *, tool_call_id: str | None = None, step_name: str | None = None
    ) -> Evaluation:
        """Do as `call`, asynchronously. A plain function runs in a thread."""
        call = Call(self.manifest, tool_call_id, step_name, runs=True)
        await adrive(self._called(call, proposal, session), self.engine)
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
        evaluated: PlanEvaluation = drive(planned(steps, Session.read(session), self._compiled), self.engine)
        return evaluated

    async def aplan(self, steps: Sequence[Any], session: Any) -> PlanEvaluation:
        """Do as `plan`, asynchronously."""
        evaluated: PlanEvaluation = await adrive(planned(steps, Session.read(session), self._compiled), self.engine)
        return evaluated

    def visible_tools(self, session: Any) -> dict[str, Visibility]:
        """Return each tool with what this session's subject can do with it; see `pdp.flow.visibility`.

        Raises:
            UsageError: no session, or one that names nobody.
        """
        seen: dict[str, Visibility] = drive(visible(Session.read(session), self._compiled, time.time()), self.engine)
        return seen

    def tool(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Guard a function whose name is a tool of the manifest: whoever calls it is decided upon first.

        The guarded function takes its session from `using`. It returns what the function returns, or raises
        `ToolDeniedError` (also when no session is in use) or `ToolFailedError`.

        Raises:
            UsageError: no such tool, or parameters that the tool's schema does not name.
        """
        name = getattr(function, "__name__", type(function).__name__)
        if name in self._executor.tools:
            raise UsageError(f"{name} has a function already", hint="one function for a tool; rename or remove one")
        entry = self.manifest.tools.get(name)
        if entry is None:
            raise UsageError(f"{name} is not a tool of manifest {self.manifest.version}", hint="name the function so")
        signature = check_signature(function, name, entry.schema_)
        self._executor.tools.add(name, function)

        return guard(self, name, function, signature)

    def using(self, session: Any) -> AbstractContextManager[Session]:
        """Let guarded functions called inside the block take this session, and those of tasks started there.

        A new thread has no session of its own: start it with `contextvars.copy_context().run`.
        """
        return session_in_use(session)

    def _called(self, call: Call, proposal: Any, session: Any) -> Flow:
        """Decide, and run the tool if that is allowed."""
        yield from self._decided(call, proposal, session)
        telemetry = self._executor.dispatched(call, self.audit)
        try:
            if call.allowed:
                yield from self._executed(call, telemetry)
        finally:
            if telemetry is not None:
                telemetry.ended()

    def _executed(self, call: Call, telemetry: CallTelemetry | None) -> Flow:
        """Run the tool. If what it needs cannot be had, it does not run, and a DENY follows the ALLOW in the audit."""
        try:
            yield from self._executor.executed(call, self.approvals, telemetry)
        except Exception as error:  # noqa: BLE001 - whatever fails on the way is a DENY, or the outcome is unknown
            if call.execution is None:
                self._fail(call, error)
            else:
                _log.exception("a run failed")
        finally:
            if call.execution is not None and call.allowed:
                record_result(call, self.audit)
        if not call.allowed:
            record_dispatch(call, self.audit)

    def _decided(self, call: Call, proposal: Any, session: Any) -> Flow:
        """Decide, and record that."""
        try:
            body = prepare(call, proposal, session, self._compiled, self._find)
            if body is not None:
                call.decision = yield body
                instead = self._conclude(call)
                if instead is not None:
                    yield from self._decided_again(call, instead)
        except Exception as error:  # noqa: BLE001 - whatever fails on the way is a DENY
            self._fail(call, error)
        except BaseException:
            # The caller was cancelled or interrupted before it was decided; the attempt is recorded.
            call.deny(denied(INTERNAL_ERROR, "the caller was cancelled or interrupted"))
            record_dispatch(call, self.audit)
            raise
        record_dispatch(call, self.audit)
        if call.duties.log_level is not None:
            log_decision(call)

    def _decided_again(self, call: Call, instead: Any) -> Flow:
        """Decide on the proposal that the policy puts in the place of the one made: by all checks, and once only."""
        record_dispatch(call, self.audit, superseded=True)
        if not call.allowed:
            raise AuditError("the decision on the proposal that was made could not be recorded")
        call.restart()
        call.transformed = True
        body = prepare(call, instead, call.session, self._compiled, self._find)
        if body is not None:
            call.decision = yield body
            self._conclude(call)

    def _conclude(self, call: Call) -> dict[str, Any] | None:
        """Hold the decision against what only the enforcement point knows; return a proposal to decide on instead."""
        decision = call.decision
        if decision is None:
            return None
        if self._newest.is_stale(decision):
            call.deny(denied(STALE, f"release {decision.release} decided, and a later one has decided before"))
            return None
        if decision.obligations:
            try:
                call.duties = self._obligations.duties(decision, transformed=call.transformed)
                if call.duties.transform is not None and call.proposal is not None:
                    return transformed(call.proposal, call.duties.transform)
                if call.allowed and call.runs and call.body is not None:
                    call.duties.before(call.body)
            except ObligationError as error:
                call.deny(denied(error.code, error.message))
        if decision.verdict is Verdict.STEP_UP and call.runs and self.approvals is not None:
            open_approval(call, self.approvals, self._executor.keeping.actions)
        return None

    def _find(self, call: Call, context: dict[str, Any]) -> None:
        if self.approvals is not None:
            find_approval(call, self.approvals, self._executor.keeping.keys, context)

    def _fail(self, call: Call, error: Exception) -> None:
        _log.exception("a decision failed, which is a DENY")
        if isinstance(error, AuditError | StoreError):
            call.deny(denied(error.code, str(error)))
        else:
            call.deny(denied(INTERNAL_ERROR, "the enforcement point failed; its log says how"))

    def _join(self, approvals: Approvals | None) -> None:
        if approvals is not None:
            approvals.record_in(self.audit)
            approvals.act_on(self._executor.keeping.actions)


def _embedded(manifest: EffectiveManifest, bundle: str | None, data: Mapping[str, Any] | None) -> Engine:
    from pdp.engine.bundle_file import baseline_bundle_path, read_bundle  # noqa: PLC0415
    from pdp.engine.embedded import EmbeddedEngine  # noqa: PLC0415

    policies = read_bundle(Path(bundle) if bundle else baseline_bundle_path())
    return EmbeddedEngine(policies, manifests={manifest.digest: manifest.document}, data=data)
