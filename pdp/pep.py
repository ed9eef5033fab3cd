"""The policy enforcement point: the flow on one page.

    proposal -> contract -> request -> engine -> decision -> obligations -> audit -> execution -> audit

Whatever fails on the way is a DENY with a stable code, and whatever happens is in the audit stream: no way through
this module leaves one of them out.

The flow stands once, as a generator: what takes time, it hands out to whoever drives it, waiting or asynchronously.
"""

from __future__ import annotations

import logging
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pdp.audit import MemoryAudit
from pdp.contract.compiled import CompiledManifest
from pdp.decision import Verdict, denied
from pdp.errors import AuditError, UsageError
from pdp.execution.running import cut_short, unavailable
from pdp.flow.approving import open_approval, use_approval
from pdp.flow.binding import check_signature
from pdp.flow.call import Call, Evaluation
from pdp.flow.drive import ToolRun, adrive, drive
from pdp.flow.guard import guard, session_in_use
from pdp.flow.preparing import prepare
from pdp.flow.recording import log_decision, record_dispatch, record_result
from pdp.flow.release import NewestRelease
from pdp.obligations.fulfilment import transformed
from pdp.obligations.obligation import ObligationError
from pdp.obligations.obligations import Obligations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from pdp.approvals.approvals import Approvals
    from pdp.audit import AuditLog
    from pdp.engine.protocol import Engine
    from pdp.flow.drive import Flow
    from pdp.manifest.effective import EffectiveManifest
    from pdp.obligations.obligation import ObligationHandler
    from pdp.session import Session

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
        approvals: who may approve what the policy wants a person for. Without it no call is ever approved.
        obligations: the application's own handlers, by the id of the obligation that each fulfils.

    Raises:
        UsageError: a handler that is none, or for an obligation of the baseline.
    """

    def __init__(
        self,
        manifest: EffectiveManifest,
        engine: Engine,
        *,
        audit: AuditLog | None = None,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        approvals: Approvals | None = None,
        obligations: Mapping[str, ObligationHandler] | None = None,
    ) -> None:
        self.manifest = manifest
        self.engine = engine
        self.audit = MemoryAudit() if audit is None else audit
        self.approvals = approvals
        self._compiled = CompiledManifest(manifest)
        self._newest = NewestRelease()
        self._tools = dict(tools or {})
        self._obligations = Obligations(obligations)
        if approvals is not None:
            approvals.record_in(self.audit)

    def with_changes(
        self,
        *,
        audit: AuditLog | None = None,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        approvals: Approvals | None = None,
        obligations: Mapping[str, ObligationHandler] | None = None,
    ) -> Self:
        """Return another enforcement point that shares manifest and engine; what is not given stays as it is here.

        Cheap: nothing is compiled again. Arguments and errors as of the constructor.
        """
        other = copy(self)
        other.audit = self.audit if audit is None else audit
        other._tools = dict(self._tools if tools is None else tools)  # noqa: SLF001 - one of its own kind
        if obligations is not None:
            other._obligations = Obligations(obligations)  # noqa: SLF001 - likewise
        if approvals is not None:
            other.approvals = approvals
            approvals.record_in(other.audit)
        return other

    @classmethod
    def from_files(
        cls,
        manifest: str,
        *,
        governance: str | None = None,
        bundle: str | None = None,
        **options: Any,
    ) -> Self:
        """Return an enforcement point on the embedded engine, from files.

        Args:
            manifest: path of the tool manifest, YAML or JSON.
            governance: path of the governance file.
            bundle: path of a bundle; the released baseline when absent.
            options: `audit`, `tools`, `approvals` and `obligations`, as of the constructor.

        Raises:
            UsageError: a file is missing or faulty; the message names every fault with its place.
            BundleError: the bundle cannot be used.
        """
        from pdp.engine.bundle_file import baseline_bundle_path, read_bundle  # noqa: PLC0415
        from pdp.engine.embedded import EmbeddedEngine  # noqa: PLC0415
        from pdp.manifest.loading import load_effective  # noqa: PLC0415

        effective = load_effective(manifest, governance)
        policies = read_bundle(Path(bundle) if bundle else baseline_bundle_path())
        engine = EmbeddedEngine(policies, manifests={effective.digest: effective.document})
        return cls(effective, engine, **options)

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

    def tool(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Guard a function whose name is a tool of the manifest: whoever calls it is decided upon first.

        The guarded function takes its session from `using`. It returns what the function returns, or raises
        `ToolDeniedError` (also when no session is in use) or `ToolFailedError`.

        Raises:
            UsageError: no such tool, or parameters that the tool's schema does not name.
        """
        name = getattr(function, "__name__", type(function).__name__)
        if name in self._tools:
            raise UsageError(f"{name} has a function already", hint="one function for a tool; rename or remove one")
        entry = self.manifest.tools.get(name)
        if entry is None:
            raise UsageError(f"{name} is not a tool of manifest {self.manifest.version}", hint="name the function so")
        signature = check_signature(function, name, entry.schema_)
        self._tools[name] = function

        return guard(self, name, function, signature)

    def using(self, session: Any) -> AbstractContextManager[Session]:
        """Let guarded functions called inside the block take this session, and those of tasks started there.

        A new thread has no session of its own: start it with `contextvars.copy_context().run`.
        """
        return session_in_use(session)

    def _called(self, call: Call, proposal: Any, session: Any) -> Flow:
        """Decide, and run the tool if that is allowed."""
        yield from self._decided(call, proposal, session)
        function = self._tools.get(call.tool_name)
        if call.allowed and function is not None and self.approvals is not None and call.approval is not None:
            self._use(call, self.approvals)
        if call.allowed:
            call.execution = cut_short()
            try:
                if function is None:
                    call.execution = unavailable(call.tool_name)
                else:
                    execution = yield ToolRun(function, call.arguments(), call.timeout)
                    call.execution, call.delivery = call.duties.delivered(execution)
            finally:
                record_result(call, self.audit)

    def _decided(self, call: Call, proposal: Any, session: Any) -> Flow:
        """Decide, and record that."""
        try:
            body = prepare(call, proposal, session, self._compiled, self.approvals)
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
        body = prepare(call, instead, call.session, self._compiled, self.approvals)
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
            open_approval(call, self.approvals)
        return None

    def _use(self, call: Call, approvals: Approvals) -> None:
        """Use up the approval. If that fails, the tool does not run, and a DENY follows the ALLOW in the audit."""
        try:
            use_approval(call, approvals)
        except Exception as error:  # noqa: BLE001 - whatever fails on the way is a DENY
            self._fail(call, error)
        if not call.allowed:
            record_dispatch(call, self.audit)

    def _fail(self, call: Call, error: Exception) -> None:
        _log.exception("a decision failed, which is a DENY")
        if isinstance(error, AuditError):
            call.deny(denied(error.code, str(error)))
        else:
            call.deny(denied(INTERNAL_ERROR, "the enforcement point failed; its log says how"))
