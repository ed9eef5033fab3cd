"""`Pep`, the policy enforcement point that applications call. The stages of a call are in `pdp.flow`."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from pdp.audit.chain import AuditLog, MemoryAudit, recordable
from pdp.contract.compiled import CompiledManifest
from pdp.documents.arguments import Closable, checked
from pdp.engine.protocol import Engine, EngineName
from pdp.errors import UsageError
from pdp.flow.decide import decide
from pdp.flow.drive import Step, adrive, drive
from pdp.flow.evaluation import Evaluation
from pdp.flow.parts import NewestRelease, Parts, Stores, Tools, obligations_of, observers_of
from pdp.flow.stages import CallIds, Received
from pdp.manifest.effective import EffectiveManifest
from pdp.proposal import Execution
from pdp.session import Session

if TYPE_CHECKING:  # Most calls do not need these modules, so they are imported only for types.
    from pdp.approvals.approvals import Approvals
    from pdp.client.pep import RemotePep
    from pdp.contract.registry.registry import Registry
    from pdp.execution.events import Observer
    from pdp.execution.telemetry import Telemetry
    from pdp.flow.preview import PlanEvaluation, Visibility
    from pdp.ledger.ledger import LedgerStore
    from pdp.obligations.handlers import ObligationHandler
    from pdp.patterns.run import Deployment
    from pdp.project.watch import ProjectWatch
    from pdp.stores.actions import ActionStore
    from pdp.stores.budgets import BudgetStore
    from pdp.stores.keys import IdempotencyStore
    from pdp.stores.remote_calls import CallName
    from pdp.stores.sql.records import SqlRemoteCalls

_ENGINE_OPTIONS: Final = frozenset({"bundle", "policies", "data", "engine", "opa_url"})


class Pep(Closable):
    """The policy enforcement point: it decides the tool calls of an agent, and runs those that are allowed.

    Threads and tasks can share a `Pep`. Methods that decide return an `Evaluation`, and do not raise for a bad proposal
    or a failed engine. Async variants run plain functions in threads; coroutine functions must never block.

    Args:
        manifest: the effective manifest, as `load_effective` returns it.
        engine: the engine that decides.
        audit: records the events; by default in memory, like `keys`, `actions`, `ledger` and `budgets`.
        tools: the functions that run the tools, by tool name; the method `tool` adds further functions.
        registry: functions with their state and configuration; its manifest must be equal to `manifest`.
        approvals: opens and checks approvals. Without this argument, no call can be approved.
        obligations: handlers of the application, by the id of the obligation.
        keys, actions, ledger, budgets: the stores; see `pdp.SqlIdempotency` for keys in a database.
        remote_calls: the store of calls whose tools other processes run.
        deployment: settings that all runs share: sources to pin, versions and markings.
        observers: functions that get an event when a tool starts and ends.
        telemetry: records spans and metrics with OpenTelemetry.
        keyless: names of tools that never reserve an idempotency key, so that none of their results is replayed.

    Raises:
        UsageError: an invalid handler or observer, a handler for an obligation of the baseline, a registry with
            another manifest, or a function whose name is not a tool of the manifest.

    Examples:
        >>> def lookup_beneficiary(payee_name, invoice_ref):
        ...     return "bene-acme-441"
        >>> call = {"tool": "lookup_beneficiary", "arguments": {"payee_name": "Acme", "invoice_ref": "INV-8842"}}
        >>> session = {"claims": {"sub": "officer-123", "scope": "payments.lookup"}}
        >>> with Pep.from_project("pdp.yaml", tools={"lookup_beneficiary": lookup_beneficiary}) as pep:
        ...     pep.call(call, session).result
        'bene-acme-441'
    """

    @checked
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
        ledger: LedgerStore | None = None,
        budgets: BudgetStore | None = None,
        remote_calls: SqlRemoteCalls | None = None,
        deployment: Deployment | None = None,
        observers: Iterable[Observer] = (),
        telemetry: Telemetry | None = None,
        keyless: Iterable[str] = (),
    ) -> None:
        if registry is not None and registry.manifest.digest != manifest.digest:
            raise UsageError("the registry was created with another manifest", hint="use `Pep.from_registry`")
        self.registry = registry
        self.watch: ProjectWatch | None = None
        self._owned = ExitStack()
        self._parts = Parts(
            manifest=CompiledManifest(manifest) if registry is None else registry.compiled,
            engine=engine,
            audit=MemoryAudit() if audit is None else audit,
            approvals=approvals,
            tools=Tools(manifest, tools or {}, registry),
            stores=Stores(deployment, keys=keys, actions=actions, ledger=ledger, budgets=budgets),
            own_obligations=obligations_of(obligations),
            newest=NewestRelease(),
            observers=observers_of(observers),
            telemetry=telemetry,
            remote_calls=remote_calls,
        )
        for tool in filter(None, map(self._parts.manifest.tool, keyless)):
            tool.reserves_key = False

    @classmethod
    @checked
    def from_project(
        cls, file: str | Path, *, engine: EngineName | Engine | None = None, watch: bool = False, **options: Any
    ) -> Self:
        """Return an enforcement point for a project file; close it when done. `pdp schema project` describes the file.

        Args:
            file: the project file, `pdp.yaml`; only `pdp` commands read its fields `session` and `scenarios`.
            engine: replaces the engine of the file: a name, or an open engine, which the caller closes.
            watch: for development: load changed files again if they have no faults; see the attribute `watch`.
            options: further arguments of the constructor. Stores given here replace those in the project's database.

        Raises:
            UsageError: a file is missing or faulty, or OPA is needed and not installed.
            BundleError, EngineError, StoreError: the bundle, engine or store cannot be used.
        """
        from pdp.project.file import engine_of_project, manifest_of_project, read_project  # noqa: PLC0415 - only with a project file
        from pdp.project.resources import open_stores, stores_of_pep  # noqa: PLC0415 - only with a project file

        path = Path(file).absolute()
        project = read_project(path)
        if watch and ((engine or project.engine) != "embedded" or "registry" in options):
            raise UsageError(
                "`watch` works only with the embedded engine and without a registry", hint="leave `watch` out"
            )
        with ExitStack() as owned:
            stores = stores_of_pep(open_stores(project.store, owned), project.public_url) if project.store else {}
            manifest = manifest_of_project(path, project)
            pep = cls(manifest, engine_of_project(project, manifest, owned, engine), **{**stores, **options})
            if watch:
                from pdp.project.watch import ProjectWatch  # noqa: PLC0415 - only in development

                pep.watch = ProjectWatch(path, project, pep._replaced)
                owned.callback(pep.watch.close)
            pep._owned = owned.pop_all()
        return pep

    @classmethod
    @checked
    def from_files(
        cls,
        manifest: str | Path,
        *,
        governance: str | Path | None = None,
        bundle: str | Path | None = None,
        policies: Sequence[str | Path] = (),
        data: Mapping[str, Any] | Sequence[str | Path] | None = None,
        engine: EngineName | Engine = "embedded",
        opa_url: str | None = None,
        store: str | None = None,
        **options: Any,
    ) -> Self:
        """Return an enforcement point from files; close it when done.

        Args:
            manifest: path of the tool manifest, YAML or JSON.
            governance: path of the governance file.
            bundle: path of a bundle; by default the released baseline.
            policies: folders with your own concerns, instead of a bundle. After any change, OPA compiles all.
            data: the policy's data under `directory` and `settings`, as an object or files. This data is merged over
                the bundle's data.
            engine: `embedded`, `sidecar`, or an open engine, which the caller closes.
            opa_url: with `sidecar`: a running OPA that decides by its own bundle. By default, a local OPA is started.
            store: the URL of the database with keys, actions, approvals, runs and budgets, such as
                `sqlite:///agent.db`.
            options: further arguments of the constructor. Stores given here replace the stores in `store`.

        Raises:
            UsageError: a file is missing or faulty (with the place of every fault), or arguments exclude each other.
            BundleError, EngineError, StoreError: the bundle, engine or store cannot be used.
        """
        from pdp.manifest.load import load_effective  # noqa: PLC0415 - only with files

        effective = load_effective(manifest, governance)
        files = {"bundle": bundle, "policies": policies, "data": data, "engine": engine, "opa_url": opa_url}
        return cls._opened(effective, files, store, options)

    @classmethod
    @checked
    def from_registry(cls, registry: Registry, **options: Any) -> Self:
        """Return an enforcement point for the tools of a registry; options and errors as for `from_files`."""
        files = {name: options.pop(name) for name in _ENGINE_OPTIONS & options.keys()}
        return cls._opened(registry.manifest, files, options.pop("store", None), {"registry": registry, **options})

    @staticmethod
    @checked
    def remote(
        url: str, *, token: str | None = None, tools: Mapping[str, Callable[..., Any]] | None = None
    ) -> RemotePep:
        """Return an enforcement point that asks a decision service; see `pdp.client.pep`. Needs the extra `client`.

        Args:
            url: `https://HOST[:PORT][/PATH]`; `http` is allowed for this machine only.
            token: a bearer token; by default the variable PDP_TOKEN.
            tools: the functions that run the tools, by tool name; the method `tool` adds further functions.

        Raises:
            UsageError, EngineError: an argument cannot be used; or the service's manifest cannot be read.
        """
        from pdp.client.pep import RemotePep  # noqa: PLC0415 - only with a decision service

        return RemotePep(url, token=token, tools=tools)

    @classmethod
    def _opened(
        cls, manifest: EffectiveManifest, files: Mapping[str, Any], store: str | None, options: Mapping[str, Any]
    ) -> Self:
        from pdp.project.resources import engine_of_files, open_stores, stores_of_pep  # noqa: PLC0415 - only with files

        with ExitStack() as owned:
            stores = stores_of_pep(open_stores(store, owned)) if store else {}
            engine = engine_of_files(manifest, owned, **files)
            pep = cls(manifest, engine, **{**stores, **options})
            pep._owned = owned.pop_all()
        return pep

    def close(self) -> None:
        """Close the engine, store and file watcher that this object opened, but not those passed as arguments."""
        self._owned.close()

    @checked
    def with_changes(
        self,
        *,
        audit: AuditLog | None = None,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        approvals: Approvals | None = None,
        obligations: Mapping[str, ObligationHandler] | None = None,
        keys: IdempotencyStore | None = None,
        actions: ActionStore | None = None,
        ledger: LedgerStore | None = None,
        budgets: BudgetStore | None = None,
        deployment: Deployment | None = None,
    ) -> Self:
        """Return a copy with the same manifest and engine, in which the given arguments replace the old arguments.

        Original and copy share the open runs, unless `actions` or `deployment` is given. With `audit`, the copy records
        its calls and approvals in that audit only, but the approvals themselves remain shared.
        """
        parts, other = self._parts, copy(self)
        other.watch, other._owned = None, ExitStack()  # noqa: SLF001 - a copy of this object
        if approvals is None and audit is not None and parts.approvals is not None:
            approvals = parts.approvals.recorded_in(audit)
        other._parts = replace(  # noqa: SLF001 - a copy of this object
            parts,
            audit=parts.audit if audit is None else audit,
            approvals=parts.approvals if approvals is None else approvals,
            tools=parts.tools.replaced_by(tools),
            stores=parts.stores.replaced_by(deployment, keys=keys, actions=actions, ledger=ledger, budgets=budgets),
            own_obligations=parts.own_obligations if obligations is None else obligations_of(obligations),
        )
        return other

    @property
    def manifest(self) -> EffectiveManifest:
        """The effective manifest."""
        return self._parts.manifest.manifest

    @property
    def engine(self) -> Engine:
        """The engine that decides."""
        return self._parts.engine

    @property
    def newest(self) -> NewestRelease:
        """The newest policy release that has decided a call of this enforcement point."""
        return self._parts.newest

    @property
    def audit(self) -> AuditLog:
        """The audit that records the events."""
        return self._parts.audit

    @property
    def approvals(self) -> Approvals | None:
        """The approvals of this enforcement point; may be None."""
        return self._parts.approvals

    @property
    def actions(self) -> ActionStore:
        """The store of actions, which records calls with effects."""
        return self._parts.stores.actions

    @property
    def remote_calls(self) -> SqlRemoteCalls | None:
        """The store of calls whose tools other processes run; may be None."""
        return self._parts.remote_calls

    def decide(self, proposal: Any, session: Any, *, hold: bool = False, **ids: Unpack[CallIds]) -> Evaluation:
        """Decide one proposal without running it.

        Args:
            proposal: a `Proposal`, JSON text, an object `{tool, arguments}` or `{tool_name, payload}`, or a call in a
                format of `pdp.model_calls`, whose id becomes the `tool_call_id`.
            session: a `Session`, or an object with its fields.
            hold: whether to open an approval on STEP_UP, as `call` does.
            ids: `tool_call_id` and `step_name`, which the audit records.
        """
        parts = self._parts
        received = _received(parts, to_run=False, hold=hold, **ids)
        return Evaluation(drive(decide(received, proposal, session, parts), parts.engine))

    async def adecide(self, proposal: Any, session: Any, *, hold: bool = False, **ids: Unpack[CallIds]) -> Evaluation:
        """Async variant of `decide`."""
        parts = self._parts
        received = _received(parts, to_run=False, hold=hold, **ids)
        return Evaluation(await adrive(decide(received, proposal, session, parts), parts.engine))

    def call(self, proposal: Any, session: Any, **ids: Unpack[CallIds]) -> Evaluation:
        """Decide one proposal and, on ALLOW only, run its tool with exactly the decided arguments.

        Arguments are as for `decide`. The evaluation has the tool's `result`, or its failure in `outcome.failure`.
        """
        from pdp.flow.run import call  # noqa: PLC0415 - a decision alone needs no runner

        parts = self._parts
        return drive(call(_received(parts, to_run=True, **ids), proposal, session, parts), parts.engine)

    async def acall(self, proposal: Any, session: Any, **ids: Unpack[CallIds]) -> Evaluation:
        """Async variant of `call`."""
        from pdp.flow.run import call  # noqa: PLC0415 - a decision alone needs no runner

        parts = self._parts
        return await adrive(call(_received(parts, to_run=True, **ids), proposal, session, parts), parts.engine)

    async def abegin(
        self,
        remote: CallName,
        proposal: Any,
        session: Any,
        *,
        proposer: Mapping[str, Any] | None = None,
        **ids: Unpack[CallIds],
    ) -> dict[str, Any]:
        """Decide a proposal whose tool another process runs; see `pdp.flow.remote.calls`.

        On ALLOW, the idempotency key, budgets and approval of the call are reserved. `proposer` has the claims of the
        proposer. That person cannot approve the call. Returns the answer of `POST /v1/proposals` as JSON.
        """
        from pdp.flow.remote.calls import begin  # noqa: PLC0415 - only in a service

        received = _received(self._parts, to_run=True, **ids)._replace(proposer=proposer or {})
        return await adrive(begin(remote, received, proposal, session, self._parts), self.engine)

    async def afinish(self, remote: CallName, execution: Execution) -> dict[str, Any]:
        """Record the outcome of a call that `abegin` began, and return the answer of the service as JSON."""
        from pdp.flow.remote.calls import finish  # noqa: PLC0415 - only in a service

        return await adrive(finish(remote, execution, self._parts), self.engine)

    def sweep(self, now: float | None = None) -> int:
        """Record as `unknown` the calls whose outcome was not reported in time, and return their number."""
        from pdp.flow.remote.calls import sweep  # noqa: PLC0415 - only in a service

        return drive(sweep(time.time() if now is None else now, self._parts), self.engine)

    def compensate(self, action_id: str, arguments: Any, session: Any, **ids: Unpack[CallIds]) -> Evaluation:
        """Undo an action: call the tool that the action's tool declares as `compensation`, decided like any other call.

        The action must be committed or failed. It is compensated at most once, even with another idempotency key.

        Raises:
            UsageError: the action cannot be compensated, or there is no session.
        """
        from pdp.flow.run import compensate  # noqa: PLC0415 - a decision alone needs no runner

        parts = self._parts
        received = _received(parts, to_run=True, **ids)
        return drive(compensate(received, action_id, arguments, session, parts), parts.engine)

    async def acompensate(self, action_id: str, arguments: Any, session: Any, **ids: Unpack[CallIds]) -> Evaluation:
        """Async variant of `compensate`."""
        from pdp.flow.run import compensate  # noqa: PLC0415 - a decision alone needs no runner

        parts = self._parts
        received = _received(parts, to_run=True, **ids)
        return await adrive(compensate(received, action_id, arguments, session, parts), parts.engine)

    def plan(self, steps: Sequence[Any], session: Any) -> PlanEvaluation:
        """Check a whole plan before its first call: each step against its tool, and all steps against the policy.

        No call runs. Each is decided again later, in a session with the result's `plan`. Steps may have a `step_name`.

        Raises:
            UsageError: `steps` is not a list of at most 100 steps, or there is no session.
        """
        return drive(*_plan(self._parts, steps, session))

    async def aplan(self, steps: Sequence[Any], session: Any) -> PlanEvaluation:
        """Async variant of `plan`."""
        return await adrive(*_plan(self._parts, steps, session))

    def visible_tools(self, session: Any) -> dict[str, Visibility]:
        """Return for each tool whether the session's subject may call it: always, never, or depending on the arguments.

        Raises:
            UsageError: no session, or a session without a subject.
        """
        return drive(*_visible_tools(self._parts, session))

    async def avisible_tools(self, session: Any) -> dict[str, Visibility]:
        """Async variant of `visible_tools`."""
        return await adrive(*_visible_tools(self._parts, session))

    def end_run(self, run_id: str, session: Any) -> None:
        """End a run of the session's caller and delete its records; do nothing if the run does not exist.

        A run begins with its first call. End each run, because the number of open runs is limited.

        Raises:
            UsageError, AuditError: no session, or `run_id` is not a non-empty text; or the end could not be recorded.
        """
        if not isinstance(run_id, str) or not run_id:
            raise UsageError("run_id has to be a non-empty text", hint="pass the `run_id` of the sessions")
        self._parts.end_run(run_id, Session.read(session))

    def state_after(self, tool: str, state: Mapping[str, Any], result: Any) -> dict[str, Any]:
        """Return the state after `tool` returned `result`, with the tool's state effects applied to `state`.

        Raises:
            UsageError, StateEffectError: no tool has this name; or the result does not fit its state effects.
        """
        compiled = self._parts.manifest.tool(tool)
        if compiled is None:
            raise UsageError(f"{tool:.128} is not a tool of manifest {self.manifest.version}", hint="check the name")
        return compiled.state_after(state, result)

    def tool(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Guard a function that has the name of a tool in the manifest: decide each call before the function runs.

        The guarded function uses the session of `using`. It returns the function's result, or raises `ToolDeniedError`
        (also without a session) or `ToolFailedError`.

        Raises:
            UsageError: no tool has this name, or the parameters are not those of the tool's schema.
        """
        from pdp.flow.guard import guarded  # noqa: PLC0415 - only with guarded functions

        return guarded(self.call, self.acall, function, self.manifest, self._parts.tools)

    def using(self, session: Any) -> AbstractContextManager[Session]:
        """Use this session for guarded functions that are called in the `with` block, and in tasks started there.

        A new thread has no session: start it with `contextvars.copy_context().run`. Do not `yield` inside the block,
        because the generator's caller would use the session until the generator continues. A `@contextmanager` or
        fixture may `yield`.
        """
        from pdp.flow.guard import session_in_use  # noqa: PLC0415 - only with guarded functions

        return session_in_use(session)

    def _replaced(self, manifest: EffectiveManifest, engine: Engine) -> None:
        """Use another manifest and engine from now on; calls in progress finish with the old manifest and engine."""
        # Policies compiled from files have no release number, so the check that rejects older releases starts again.
        tools, compiled = self._parts.tools.of_manifest(manifest), CompiledManifest(manifest)
        self._parts = replace(self._parts, manifest=compiled, engine=engine, tools=tools, newest=NewestRelease())


def _received(
    parts: Parts, *, to_run: bool, hold: bool = False, tool_call_id: str | None = None, step_name: str | None = None
) -> Received:
    call_id, step = recordable(tool_call_id), recordable(step_name)
    received = Received(parts.manifest.manifest, to_run, call_id, step, time.time(), time.perf_counter())
    return received._replace(hold=True) if hold else received


def _plan(parts: Parts, steps: Sequence[Any], session: Any) -> tuple[Generator[Step, Any, PlanEvaluation], Engine]:
    from pdp.flow.preview import evaluate_plan  # noqa: PLC0415 - only for plans

    return evaluate_plan(steps, Session.read(session), _received(parts, to_run=False), parts), parts.engine


def _visible_tools(parts: Parts, session: Any) -> tuple[Generator[Step, Any, dict[str, Visibility]], Engine]:
    from pdp.flow.preview import visible  # noqa: PLC0415 - only for visible tools

    return visible(Session.read(session), parts.manifest, time.time()), parts.engine
