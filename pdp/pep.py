"""The policy enforcement point: the flow on one page.

    proposal -> contract -> request -> engine -> decision -> obligations -> audit -> execution -> audit

Whatever fails on the way is a DENY with a stable code, and whatever happens is in the audit stream: no way through
this module leaves one of them out.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Self

from pdp.audit import MemoryAudit
from pdp.binding import check_signature
from pdp.call import Call, Evaluation
from pdp.canonical import JsonValueError, canonical
from pdp.contract.checks import check
from pdp.contract.compiled import CompiledManifest
from pdp.contract.mapping import MappingError, build_request
from pdp.decision import Verdict, denied, new_id
from pdp.engine.protocol import REQUEST_INVALID
from pdp.errors import AuditError, UsageError
from pdp.execution import arun, cut_short, run, unavailable, unrecorded
from pdp.guard import guard, session_in_use
from pdp.manifest.expressions import ExpressionError
from pdp.proposal import Proposal, ProposalRejectedError, RejectionCode
from pdp.recording import dispatch_event, result_event
from pdp.request import bounded
from pdp.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from pdp.audit import AuditLog
    from pdp.decision import Decision
    from pdp.engine.protocol import Engine
    from pdp.manifest.effective import EffectiveManifest

_log = logging.getLogger("pdp.pep")

INTERNAL_ERROR = "pep.internal_error"
STALE = "bundle.stale"
UNFULFILLABLE = "obligations.unfulfillable"


class Pep:
    """Decides the tool calls of one agent application, and runs those that are allowed.

    Safe to share between threads and tasks. Every method that decides returns an `Evaluation` and never raises for
    what a model proposed or an engine answered.

    Args:
        manifest: the effective manifest.
        engine: who decides.
        audit: where events go; a stream in memory when absent.
        tools: the functions to run, by tool name; `tool` adds to them.
    """

    def __init__(
        self,
        manifest: EffectiveManifest,
        engine: Engine,
        *,
        audit: AuditLog | None = None,
        tools: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self.manifest = manifest
        self.engine = engine
        self.audit = MemoryAudit() if audit is None else audit
        self._compiled = CompiledManifest(manifest)
        self._tools = dict(tools or {})
        self._release = 0
        self._release_lock = threading.Lock()

    @classmethod
    def from_files(
        cls,
        manifest: str,
        *,
        governance: str | None = None,
        bundle: str | None = None,
        audit: AuditLog | None = None,
        tools: Mapping[str, Callable[..., Any]] | None = None,
    ) -> Self:
        """Return an enforcement point on the embedded engine, from files.

        Args:
            manifest: path of the tool manifest, YAML or JSON.
            governance: path of the governance file.
            bundle: path of a bundle; the released baseline when absent.
            audit: where events go.
            tools: the functions to run, by tool name.

        Raises:
            UsageError: a file is missing or faulty; the message names every fault with its place.
            BundleError: the bundle cannot be used.
        """
        from pathlib import Path  # noqa: PLC0415

        from pdp.engine.bundle_file import baseline_bundle_path, read_bundle  # noqa: PLC0415
        from pdp.engine.embedded import EmbeddedEngine  # noqa: PLC0415
        from pdp.manifest.loading import load_effective  # noqa: PLC0415

        effective = load_effective(manifest, governance)
        engine = EmbeddedEngine(
            read_bundle(Path(bundle) if bundle else baseline_bundle_path()),
            manifests={effective.digest: effective.document},
        )
        return cls(effective, engine, audit=audit, tools=tools)

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
        return Evaluation(self._decided(proposal, session, tool_call_id, step_name, runs=False))

    async def adecide(
        self, proposal: Any, session: Any, *, tool_call_id: str | None = None, step_name: str | None = None
    ) -> Evaluation:
        """Decide one proposal without running it, asynchronously; arguments as in `decide`."""
        return Evaluation(await self._adecided(proposal, session, tool_call_id, step_name, runs=False))

    def call(
        self, proposal: Any, session: Any, *, tool_call_id: str | None = None, step_name: str | None = None
    ) -> Evaluation:
        """Decide one proposal and, on ALLOW alone, run its tool with exactly the decided arguments.

        Arguments as in `decide`. What the tool returned is in `Evaluation.result`, a failure in `outcome.failure`.
        """
        call = self._decided(proposal, session, tool_call_id, step_name, runs=True)
        if call.allowed:
            function = self._tools.get(call.tool_name)
            call.execution = cut_short()
            try:
                call.execution = (
                    run(function, call.arguments(), call.timeout) if function else unavailable(call.tool_name)
                )
            finally:
                self._record_result(call)
        return Evaluation(call)

    async def acall(
        self, proposal: Any, session: Any, *, tool_call_id: str | None = None, step_name: str | None = None
    ) -> Evaluation:
        """Do as `call`, asynchronously. A plain function runs in a thread."""
        call = await self._adecided(proposal, session, tool_call_id, step_name, runs=True)
        if call.allowed:
            function = self._tools.get(call.tool_name)
            call.execution = cut_short()
            try:
                call.execution = (
                    await arun(function, call.arguments(), call.timeout) if function else unavailable(call.tool_name)
                )
            finally:
                self._record_result(call)
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

    def _decided(
        self, proposal: Any, session: Any, tool_call_id: str | None, step_name: str | None, *, runs: bool
    ) -> Call:
        call = Call(self.manifest, tool_call_id, step_name, runs=runs)
        try:
            body = self._prepare(call, proposal, session)
            if body is not None:
                call.decision = self.engine.decide_body(body)
            self._conclude(call)
        except Exception:  # noqa: BLE001 - whatever fails on the way is a DENY
            self._fail(call)
        except BaseException:
            self._interrupt(call)
            raise
        self._record_dispatch(call)
        return call

    async def _adecided(
        self, proposal: Any, session: Any, tool_call_id: str | None, step_name: str | None, *, runs: bool
    ) -> Call:
        call = Call(self.manifest, tool_call_id, step_name, runs=runs)
        try:
            body = self._prepare(call, proposal, session)
            if body is not None:
                call.decision = await self.engine.adecide_body(body)
            self._conclude(call)
        except Exception:  # noqa: BLE001 - whatever fails on the way is a DENY
            self._fail(call)
        except BaseException:
            self._interrupt(call)
            raise
        self._record_dispatch(call)
        return call

    def _prepare(self, call: Call, proposal: Any, session: Any) -> bytes | None:
        """Check the proposal and return the request to ask the engine with; None when there is nothing to ask."""
        try:
            call.session = Session.read(session)
            call.request_id = call.session.request_id or new_id()
            call.proposal = Proposal.read(proposal)
            tool = check(call.proposal, call.session, self._compiled, call.checked)
            request = build_request(
                tool,
                call.proposal,
                call.session,
                call.checked.idempotency_key,
                request_id=call.request_id,
                now=call.now,
            )
            # Not `Request.canonical`, which would walk the whole request once more: claims and facts were checked with
            # the session, the arguments with the proposal, and what expressions compute by `Expression.evaluate`.
            call.body = bounded(canonical(request.as_json()))
        except ProposalRejectedError as error:
            call.reject(error.rejection, error.message)
        except (MappingError, ExpressionError) as error:
            call.reject(RejectionCode.INVALID_PAYLOAD, error.message)
        except (UsageError, JsonValueError) as error:
            call.decision = denied(REQUEST_INVALID, str(error))
        return call.body

    def _conclude(self, call: Call) -> None:
        """Hold the engine's decision against what only the enforcement point knows."""
        decision = call.decision
        if decision is None:
            return
        if self._is_stale(decision):
            call.decision = denied(STALE, f"release {decision.release} decided, and a later one has decided before")
        elif decision.verdict is Verdict.ALLOW and decision.obligations:
            # No obligation has a handler yet, and one that nobody fulfils must not be ignored.
            names = ", ".join(sorted({obligation.id for obligation in decision.obligations}))
            call.decision = denied(UNFULFILLABLE, f"nobody here can fulfil: {names}")

    def _is_stale(self, decision: Decision) -> bool:
        # A policy that names no release counts as older than any; a failure that no policy took part in is none.
        release = decision.release or 0
        if release == self._release or (decision.bundle_revision is None and decision.verdict is Verdict.DENY):
            return False
        with self._release_lock:
            self._release = max(self._release, release)
            return release < self._release

    def _fail(self, call: Call) -> None:
        _log.exception("a decision failed, which is a DENY")
        call.deny(denied(INTERNAL_ERROR, "the enforcement point failed; its log says how"))

    def _interrupt(self, call: Call) -> None:
        """Record an attempt whose caller was cancelled or interrupted before it was decided."""
        call.deny(denied(INTERNAL_ERROR, "the caller was cancelled or interrupted"))
        self._record_dispatch(call)

    def _record_dispatch(self, call: Call) -> None:
        try:
            self.audit.append(dispatch_event(call, self.audit))
        except Exception as error:  # noqa: BLE001 - whoever was about to execute must not
            _log.exception("an audit event could not be written, which is a DENY")
            call.deny(denied(AuditError.code, str(error) if isinstance(error, AuditError) else "audit failed"))

    def _record_result(self, call: Call) -> None:
        try:
            self.audit.append(result_event(call, self.audit))
        except Exception:  # noqa: BLE001 - the tool ran; its caller has to know that much
            _log.critical("a tool ran and its result could not be recorded: the outcome is unknown", exc_info=True)
            call.execution = unrecorded()
