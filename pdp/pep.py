"""The policy enforcement point: what an application calls. How a call goes stands in pdp/flow."""

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

if TYPE_CHECKING:  # only some calls load these
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


_OF_ENGINES: Final = frozenset({"bundle", "policies", "data", "engine", "opa_url"})
"""The options of `engine_of_files` in `pdp.project.resources`."""


class Pep(Closable):
    """Decides the tool calls of one agent application, and runs those that are allowed.

    Safe to share between threads and tasks. A method that decides a proposal returns an `Evaluation` and never raises
    for what a model proposed or an engine answered. Each has an async variant, `adecide` of `decide`, with the same
    arguments and errors; there, a plain function of a tool runs in a thread. What is absent of `audit`, `keys`,
    `actions` and `ledger` is kept in memory.

    Args:
        tools: the functions to run, by tool name; `tool` adds to them.
        registry: where functions are bound as well, with their state and config; its manifest has to be `manifest`.
        approvals: who may approve what the policy wants a person for. Without it no call is ever approved.
        obligations: the application's own handlers, by the id of the obligation that each fulfils.
        deployment: what holds for all runs of agents: sources to pin, versions, markings.
        observers: functions that take an event when a tool begins and ends.
        keyless: tools whose calls reserve no idempotency key, so that no earlier result is replayed.

    Raises:
        UsageError: an invalid handler, or one for an obligation of the baseline; an invalid observer; a registry with
            another manifest; a function that no tool has.
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
            raise UsageError(
                "the registry has another manifest", hint="pass `registry.manifest`, or use `from_registry`"
            )
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
        """Return an enforcement point for a project file; close it when done. docs/project.md says what it opens.

        Args:
            file: the path of the project file, `pdp.yaml`. What it says of `session` and `scenarios` is for commands.
            engine: instead of the one that the file states: its name, or one that is open, which stays yours to close.
            watch: for development: what the files say from now on decides, once all of it is sound; see `watch`.
            options: the rest, as of the constructor. What is given there is not taken from the store.

        Raises:
            UsageError: a file is missing or faulty, or OPA is needed and not there.
            BundleError, EngineError, StoreError: what they name cannot be used.
        """
        from pdp.project.file import engine_of_project, manifest_of_project, read_project  # noqa: PLC0415 - not always
        from pdp.project.resources import open_stores, stores_of_pep  # noqa: PLC0415 - likewise

        path = Path(file).absolute()
        project = read_project(path)
        if watch and ((engine or project.engine) != "embedded" or "registry" in options):
            raise UsageError("what is watched has the embedded engine, and no registry", hint="leave watch out")
        with ExitStack() as owned:
            stores = stores_of_pep(open_stores(project.store, owned)) if project.store else {}
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
            bundle: path of a bundle; the released baseline when absent.
            policies: instead of a bundle, folders with concerns of your own, compiled with OPA now or before.
            data: the roots `directory` and `settings` of the policy's data, laid over the bundle's; or files with them.
            engine: `embedded`, `sidecar`, or an engine that is open, which stays yours to close.
            opa_url: for `sidecar` an OPA that runs and decides by its own bundle; without it a local one is started.
            store: the URL of the database with keys, actions, approvals, runs and budgets, such as `sqlite:///agent.db`.
            options: the rest, as of the constructor. What is given there is not taken from the store.

        Raises:
            UsageError: a file is missing or faulty, with the place of every fault; arguments that exclude each other.
            BundleError, EngineError, StoreError: what they name cannot be used.
        """
        from pdp.manifest.load import load_effective  # noqa: PLC0415 - only applications that start from files

        effective = load_effective(manifest, governance)
        files = {"bundle": bundle, "policies": policies, "data": data, "engine": engine, "opa_url": opa_url}
        return cls._opened(effective, files, store, options)

    @classmethod
    @checked
    def from_registry(cls, registry: Registry, **options: Any) -> Self:
        """Return an enforcement point for the tools of a registry; options and errors as of `from_files`."""
        files = {name: options.pop(name) for name in _OF_ENGINES & options.keys()}
        return cls._opened(registry.manifest, files, options.pop("store", None), {"registry": registry, **options})

    @staticmethod
    @checked
    def remote(
        url: str, *, token: str | None = None, tools: Mapping[str, Callable[..., Any]] | None = None
    ) -> RemotePep:
        """Return an enforcement point whose decisions a service makes; see `pdp.client.pep`. Needs the extra `client`.

        Args:
            url: `https://HOST[:PORT][/PATH]`; `http` for this machine alone.
            token: a bearer token; else the variable PDP_TOKEN.
            tools: the functions to run, by tool name; `tool` adds to them.

        Raises:
            UsageError: an address, token or function that cannot be used; EngineError: the manifest cannot be read.
        """
        from pdp.client.pep import RemotePep  # noqa: PLC0415 - only applications without an engine

        return RemotePep(url, token=token, tools=tools)

    @classmethod
    def _opened(
        cls, manifest: EffectiveManifest, files: Mapping[str, Any], store: str | None, options: Mapping[str, Any]
    ) -> Self:
        from pdp.project.resources import engine_of_files, open_stores, stores_of_pep  # noqa: PLC0415 - only such

        with ExitStack() as owned:
            stores = stores_of_pep(open_stores(store, owned)) if store else {}
            engine = engine_of_files(manifest, owned, **files)
            pep = cls(manifest, engine, **{**stores, **options})
            pep._owned = owned.pop_all()
        return pep

    def close(self) -> None:
        """Close what was opened for it: engine, store, watching. What it was given stays open."""
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
        """Return another enforcement point that shares manifest and engine; what is not given stays as it is here.

        Runs are shared as well, unless `actions` or `deployment` is given: then it has its own, and none is open.
        With `audit`, its calls and its `approvals` write to that stream, and to no other; approvals are still shared.
        """
        parts, other = self._parts, copy(self)
        other.watch, other._owned = None, ExitStack()  # noqa: SLF001 - one of its own kind
        if approvals is None and audit is not None and parts.approvals is not None:
            approvals = parts.approvals.recorded_in(audit)
        other._parts = replace(  # noqa: SLF001 - likewise
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
        """Who decides."""
        return self._parts.engine

    @property
    def newest(self) -> NewestRelease:
        """The newest release that has decided here."""
        return self._parts.newest

    @property
    def audit(self) -> AuditLog:
        """Where events go."""
        return self._parts.audit

    @property
    def approvals(self) -> Approvals | None:
        """Who may approve; None: nobody."""
        return self._parts.approvals

    @property
    def actions(self) -> ActionStore:
        """The store of actions of calls with effects."""
        return self._parts.stores.actions

    @property
    def remote_calls(self) -> SqlRemoteCalls | None:
        """The store of calls whose tools others run; None: there is none."""
        return self._parts.remote_calls

    def decide(self, proposal: Any, session: Any, *, hold: bool = False, **ids: Unpack[CallIds]) -> Evaluation:
        """Decide one proposal without running it.

        Args:
            proposal: a `Proposal`, JSON text, or the object `{tool, arguments}` or `{tool_name, payload}`; or a call as
                the API of a model spells it, see `pdp.model_calls`. Its id is then the `tool_call_id`.
            session: a `Session`, or the object that it stands for.
            hold: whether a STEP_UP opens the approval that the call waits for, as `call` does.
            ids: `tool_call_id` and `step_name`, for the record; see `CallIds`.
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
        """Decide one proposal and, on ALLOW alone, run its tool with exactly the decided arguments.

        Arguments as in `decide`. What the tool returned is in `Evaluation.result`, a failure in `outcome.failure`.
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
        """Decide a proposal whose tool another enforcement point runs, see `pdp.flow.remote.calls`.

        What comes back is plain JSON; docs/service.md has its form. On ALLOW, all that the run needs is reserved.
        `proposer`: the claims of the token that proposes; whoever they name does not approve the call.
        """
        from pdp.flow.remote.calls import begin  # noqa: PLC0415 - only services

        received = _received(self._parts, to_run=True, **ids)._replace(proposer=proposer or {})
        return await adrive(begin(remote, received, proposal, session, self._parts), self.engine)

    async def afinish(self, remote: CallName, execution: Execution) -> dict[str, Any]:
        """Take what a call that was begun came to, see there."""
        from pdp.flow.remote.calls import finish  # noqa: PLC0415 - only services

        return await adrive(finish(remote, execution, self._parts), self.engine)

    def sweep(self, now: float | None = None) -> int:
        """Record calls that nobody has finished in time, see there, and return how many."""
        from pdp.flow.remote.calls import sweep  # noqa: PLC0415 - only services

        return drive(sweep(time.time() if now is None else now, self._parts), self.engine)

    def compensate(self, action_id: str, arguments: Any, session: Any, **ids: Unpack[CallIds]) -> Evaluation:
        """Take back what an action did: call the tool that its own declares as `compensation`, decided as any other.

        The action was committed, or has failed. It is compensated once, whatever the session's idempotency key.

        Raises:
            UsageError: an action that cannot be compensated, or no session; see `pdp.flow.run.compensate`.
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
        """Check a whole plan before its first call: every step by its tool's rules, all of them by the policy.

        Steps are proposals, each with a `step_name` if it has one. No call runs: each is decided by itself, in a
        session whose `plan` is that of the answer.

        Raises:
            UsageError: no list of at most 100 steps, or no session.
        """
        return drive(*_plan(self._parts, steps, session))

    async def aplan(self, steps: Sequence[Any], session: Any) -> PlanEvaluation:
        """Async variant of `plan`."""
        return await adrive(*_plan(self._parts, steps, session))

    def visible_tools(self, session: Any) -> dict[str, Visibility]:
        """Return each tool with what this session's subject can do with it; see `pdp.flow.preview`.

        Raises:
            UsageError: no session, or one that names nobody.
        """
        return drive(*_visible_tools(self._parts, session))

    async def avisible_tools(self, session: Any) -> dict[str, Visibility]:
        """Async variant of `visible_tools`."""
        return await adrive(*_visible_tools(self._parts, session))

    def end_run(self, run_id: str, session: Any) -> None:
        """Forget a run of the session's caller and all that it remembers; nothing happens when there is none.

        A run begins by itself with its first call. End each run that is over: a limited number is open at once, and
        those closed for others stay closed. UsageError: no session, or no text as `run_id`.
        """
        if not isinstance(run_id, str) or not run_id:
            raise UsageError("a run needs a run_id", hint="pass the `run_id` of its sessions")
        self._parts.stores.end_run(run_id, Session.read(session).caller, labelled=self.manifest.tracks_flow)

    def state_after(self, tool: str, state: Mapping[str, Any], result: Any) -> dict[str, Any]:
        """Return the state after a tool gave `result`, its state effects merged.

        Raises:
            UsageError, StateEffectError: no such tool, or the result is not what its effects declare.
        """
        compiled = self._parts.manifest.tool(tool)
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
        from pdp.flow.guard import guarded  # noqa: PLC0415 - only applications with guarded functions

        return guarded(self.call, self.acall, function, self.manifest, self._parts.tools)

    def using(self, session: Any) -> AbstractContextManager[Session]:
        """Let guarded functions called inside the block take this session, and those of tasks started there.

        A new thread has no session of its own: start it with `contextvars.copy_context().run`. A generator that is
        suspended within the block leaves its session to whoever goes on meanwhile in its thread or task: open no block
        around a `yield`, but for a `@contextmanager` or a fixture that is to do just that.
        """
        from pdp.flow.guard import session_in_use  # noqa: PLC0415 - as above

        return session_in_use(session)

    def _replaced(self, manifest: EffectiveManifest, engine: Engine) -> None:
        """Let calls from now on be decided by these; those that are under way end with what they began with.

        The releases are seen anew: policies that were compiled here have none to compare.
        """
        tools, compiled = self._parts.tools.of_manifest(manifest), CompiledManifest(manifest)
        self._parts = replace(self._parts, manifest=compiled, engine=engine, tools=tools, newest=NewestRelease())


def _received(
    parts: Parts, *, to_run: bool, hold: bool = False, tool_call_id: str | None = None, step_name: str | None = None
) -> Received:
    call_id, step = recordable(tool_call_id), recordable(step_name)
    received = Received(parts.manifest.manifest, to_run, call_id, step, time.time(), time.perf_counter())
    return received._replace(hold=True) if hold else received


def _plan(parts: Parts, steps: Sequence[Any], session: Any) -> tuple[Generator[Step, Any, PlanEvaluation], Engine]:
    from pdp.flow.preview import evaluate_plan  # noqa: PLC0415 - only applications that plan

    return evaluate_plan(steps, Session.read(session), _received(parts, to_run=False), parts), parts.engine


def _visible_tools(parts: Parts, session: Any) -> tuple[Generator[Step, Any, dict[str, Visibility]], Engine]:
    from pdp.flow.preview import visible  # noqa: PLC0415 - only applications that ask for it

    return visible(Session.read(session), parts.manifest, time.time()), parts.engine
