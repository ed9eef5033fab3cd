"""The components of an enforcement point: tools, stores and options. Missing stores are created on first use."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from pdp.audit.chain import AuditLog
from pdp.contract.compiled import CompiledManifest, CompiledTool
from pdp.decision import Decision, Verdict
from pdp.documents import nearest, shown_name
from pdp.documents.arguments import named_parameters
from pdp.engine.protocol import Engine
from pdp.errors import UsageError
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.model import Tool
from pdp.manifest.schema.walk import argument_schemas
from pdp.proposal import Proposal
from pdp.session import Session

if TYPE_CHECKING:  # Only some calls need these modules at run time.
    from pdp.approvals.approvals import Approvals
    from pdp.contract.registry.registry import Registry
    from pdp.execution.events import Observer
    from pdp.execution.runner import ToolRunner
    from pdp.execution.telemetry import Telemetry
    from pdp.ledger.ledger import LedgerStore
    from pdp.obligations.handlers import ObligationHandler, Obligations
    from pdp.patterns.run import Deployment, Run, Runs
    from pdp.stores.actions import ActionStore
    from pdp.stores.budgets import BudgetStore
    from pdp.stores.keys import IdempotencyStore
    from pdp.stores.sql.records import SqlRemoteCalls

_IN_MEMORY: Final = {
    "keys": ("pdp.stores.memory", "MemoryIdempotency"),
    "actions": ("pdp.stores.memory", "MemoryActions"),
    "runs": ("pdp.patterns.run", "Runs"),
    "ledger": ("pdp.ledger.ledger", "MemoryLedger"),
    "budgets": ("pdp.stores.budgets", "MemoryBudgets"),
}
"""Module and class of the in-memory version of each store."""


class Stores:
    """The stores of an enforcement point, thread-safe. A store that is not passed is created in memory on first use."""

    keys: IdempotencyStore
    actions: ActionStore
    runs: Runs
    ledger: LedgerStore
    budgets: BudgetStore

    def __init__(self, deployment: Deployment | None, **given: Any) -> None:
        self.deployment = deployment
        self._shared: Mapping[str, Stores] = {}
        vars(self).update({name: store for name, store in given.items() if store is not None})

    def __getattr__(self, name: str) -> Any:
        if name not in _IN_MEMORY:
            raise AttributeError(name)
        if name in self._shared:
            return vars(self).setdefault(name, getattr(self._shared[name], name))
        module, kind = _IN_MEMORY[name]
        factory = getattr(import_module(module), kind)
        # `setdefault` ensures that concurrent threads use the same store.
        return vars(self).setdefault(name, factory(self.deployment) if name == "runs" else factory())

    def replaced_by(self, deployment: Deployment | None, **given: Any) -> Stores:
        """Return a copy with other stores. With a new `deployment` or `actions`, the copy has no open runs."""
        other = Stores(self.deployment if deployment is None else deployment, **given)
        own = {"runs"} if deployment is not None or given["actions"] is not None else set()
        shared = _IN_MEMORY.keys() - vars(other).keys() - own
        # The copy refers to the object that creates the store and not to its own original, so that copies of copies
        # form no chain.
        other._shared = {name: self if name in vars(self) else self._shared.get(name, self) for name in shared}
        return other

    @property
    def blocking(self) -> bool:
        """Whether the stores of idempotency keys or actions wait for a disk or a network."""
        return self.keys.blocking or self.actions.blocking

    @property
    def reads_sources(self) -> bool:
        """Whether opening a run calls functions that read sources, which may be slow."""
        return self.deployment is not None and bool(self.deployment.sources)

    def end_run(self, run_id: str, caller: str, *, labelled: bool) -> None:
        """Delete a run and, if `labelled`, its labels in the ledger. Raise `StoreError` if that fails."""
        self.runs.end(run_id, caller)
        if labelled:
            from pdp.ledger.ledger import run_of  # noqa: PLC0415 - only if the manifest tracks flow

            self.ledger.end(run_of(self.ledger.key, caller, run_id))

    def run_of(self, session: Session) -> Run:
        """Return the session's run, and open it if necessary. Raise `StateError` as `Runs.open` does."""
        return self.runs.open(session.run_id, session.caller)


class Tools:
    """The functions that implement the tools, by tool name. The `registry`, if any, supplies functions for other tools.

    Raises `UsageError` if the manifest has no tool of a function's name, or the schema forbids a function's default.
    """

    def __init__(
        self,
        manifest: EffectiveManifest,
        functions: Mapping[str, Callable[..., Any]],
        registry: Registry | None = None,
    ) -> None:
        for name in functions:
            if name not in manifest.tools:
                raise UsageError(
                    f"tools: {shown_name(name)} is not a tool of manifest {manifest.version}",
                    hint=nearest(name, manifest.tools) or "give each function the name of its tool",
                )
        self._manifest = manifest
        self._functions: dict[str, Callable[..., Any]] = {}
        self._registry = registry
        self.defaults: dict[str, Mapping[str, Any]] = {}
        for name, function in functions.items():
            self.add(name, function)
        self._runners: dict[str, ToolRunner] = {}

    def __contains__(self, name: str) -> bool:
        return self._function(name) is not None

    def add(self, name: str, function: Callable[..., Any]) -> None:
        """Register a tool's function. Raise `UsageError` if the tool's schema rejects its parameters or defaults."""
        entry = self._manifest.tools[name]
        try:
            inspect.signature(function).bind(**dict.fromkeys(argument_schemas(entry.schema_)))
        except (TypeError, ValueError) as error:
            problem = f"the function for tool {name}: {error}"
            raise UsageError(problem, hint="add a parameter for each argument of the manifest's schema") from None
        self._read_defaults(entry, function)
        self._functions[name] = function

    def take(self, name: str, real: Mapping[str, Any]) -> list[str]:
        """Store the defaults of the tool's actual schema. Return how this schema differs from the manifest's schema."""
        from pdp.manifest.schema.differences import drift, tool_defaults  # noqa: PLC0415 - only for tools with defaults

        declared = self._manifest.tools[name].schema_
        taken = tool_defaults(name, declared, real)
        problems, self.defaults[name] = drift(declared, real, taken), taken
        return problems

    def filled(self, proposal: Proposal) -> Proposal:
        """Add the tool's default arguments to the proposal. Raise `ProposalRejectedError` if it becomes too large."""
        name = proposal.tool
        if name not in self.defaults and (function := self._function(name)) is not None:
            self._read_defaults(self._manifest.tools[name], function)
        arguments = {**self.defaults.get(name, {}), **proposal.arguments}
        same = len(arguments) == len(proposal.arguments)
        return proposal if same else Proposal.read(replace(proposal, arguments=arguments))

    def replaced_by(self, functions: Mapping[str, Callable[..., Any]] | None) -> Tools:
        """Return a copy with other functions, or with the same functions if `functions` is None."""
        return Tools(self._manifest, self._functions if functions is None else functions, self._registry)

    def of_manifest(self, manifest: EffectiveManifest) -> Tools:
        """Return the tools for another manifest. A function that is added to either object is in both objects."""
        other = Tools(manifest, self._functions, self._registry)
        other._functions = self._functions
        return other

    def runner(self, entry: Tool) -> ToolRunner | None:
        """Return a tool's runner; None without an implementation. Raise `UsageError` for an unusable implementation."""
        name = entry.name
        function = self._function(name)
        runner = self._runners.get(name)
        if runner is not None and (function is None or runner.function is function):
            return runner
        if function is None and entry.type != "cli":
            return None
        from pdp.execution.runner import ToolRunner  # noqa: PLC0415 - only if a tool runs

        runner = self._runners[name] = ToolRunner(entry, function)
        return runner

    def lacking(self, name: str) -> str:
        """Return the reason why the registry's function for the tool cannot run now, or an empty text."""
        return "" if self._registry is None else self._registry.lacking(name)

    def inputs(self, tool: CompiledTool, session: Session, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the function parameters that the registry fills from session state and config, by name."""
        return {} if self._registry is None else self._registry.inputs(tool.entry.name, session.state, config)

    def _read_defaults(self, entry: Tool, function: Callable[..., Any]) -> None:
        """Store the default arguments of a function. Raise `UsageError` if the tool's schema forbids a default."""
        defaults = {each.name: each.default for each in named_parameters(function) if each.default is not each.empty}
        if all(default is None for default in defaults.values()):
            self.defaults[entry.name] = {}
            return
        from pdp.manifest.schema.differences import DEFAULT  # noqa: PLC0415 - only for tools with defaults

        problems = self.take(entry.name, {"properties": {name: {"default": value} for name, value in defaults.items()}})
        if refused := [line for line in problems if DEFAULT in line]:
            del self.defaults[entry.name]
            problem = f"the function for tool {entry.name} has a default that the manifest does not allow: {refused[0]}"
            raise UsageError(problem, hint="use None, or a value that the schema of the argument allows")

    def _function(self, name: str) -> Callable[..., Any] | None:
        function = self._functions.get(name)
        if function is None and self._registry is not None:
            function = self._registry.function(name)
        return function


class NewestRelease:
    """The newest policy release that decided a call of an enforcement point. Calls of older releases are denied."""

    def __init__(self) -> None:
        self._release = 0
        self._lock = threading.Lock()

    def is_stale(self, decision: Decision) -> bool:
        """Return whether a newer policy release has decided a call; if not, remember this release as the newest."""
        # A bundle without a release number counts as the oldest. A failure that names no bundle is not compared.
        release = decision.release or 0
        if release == self._release or (decision.bundle_revision is None and decision.verdict is Verdict.DENY):
            return False
        with self._lock:
            self._release = max(self._release, release)
            return release < self._release


@dataclass(frozen=True)
class Parts:
    """The components of one enforcement point (`Pep`), shared between threads and tasks."""

    manifest: CompiledManifest
    engine: Engine
    audit: AuditLog
    approvals: Approvals | None
    tools: Tools
    stores: Stores
    own_obligations: Obligations | None  # The application's own handlers of obligations.
    newest: NewestRelease
    observers: tuple[Observer, ...]
    telemetry: Telemetry | None
    remote_calls: SqlRemoteCalls | None
    ignored_claims: set[str] = field(default_factory=set)  # The ignored claims that the log has already named.

    def __post_init__(self) -> None:
        if self.approvals is not None:
            self.approvals.attach(self.audit, self.stores.actions)

    def end_run(self, run_id: str, session: Session) -> None:
        """End a run of the session's caller, with its lasting grants, and delete its records."""
        self.stores.end_run(run_id, session.caller, labelled=self.manifest.manifest.tracks_flow)
        if self.approvals is not None:
            self.approvals.lasting.end_run(run_id, session.claims)

    def obligations(self) -> Obligations:
        """Return the application's obligation handlers, or only the baseline's handlers if the application has none."""
        from pdp.obligations.handlers import BASELINE  # noqa: PLC0415 - only for decisions that have obligations

        return BASELINE if self.own_obligations is None else self.own_obligations


def obligations_of(handlers: Mapping[str, ObligationHandler] | None) -> Obligations | None:
    """Return the application's obligation handlers, or None without handlers. Raises the errors of `Obligations`."""
    if not handlers:
        return None
    from pdp.obligations.handlers import Obligations  # noqa: PLC0415 - only for applications with handlers

    return Obligations(handlers)


def observers_of(observers: Iterable[Any]) -> tuple[Observer, ...]:
    """Return the observers as a tuple. Raise `UsageError` if an observer is a coroutine function or not callable."""
    functions = tuple(observers)
    if not functions:
        return ()
    from pdp.execution.runner import is_asynchronous  # noqa: PLC0415 - only for applications with observers

    for observer in functions:
        if not callable(observer) or is_asynchronous(observer):
            raise UsageError(
                f"observer {observer!r:.80} is not a plain function", hint="pass a function that takes one event"
            )
    return functions
