"""What an enforcement point is made of: checked when it is given, and made when it is first needed where it is not."""

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

if TYPE_CHECKING:  # only some calls load these
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
"""By store, where the one in memory is."""


class Stores:
    """What outlives a call: idempotency keys, actions, budgets, what runs of agents remember, and the ledger of it.

    In memory where the application gives none, and made when a call first asks for one. Safe to share between threads.
    """

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
        made = getattr(import_module(module), kind)
        # Of threads that ask at once, all get the same one.
        return vars(self).setdefault(name, made(self.deployment) if name == "runs" else made())

    def replaced_by(self, deployment: Deployment | None, **given: Any) -> Stores:
        """Return the same with other stores; runs of their own where `actions` or `deployment` is another one."""
        other = Stores(self.deployment if deployment is None else deployment, **given)
        own = {"runs"} if deployment is not None or given["actions"] is not None else set()
        shared = _IN_MEMORY.keys() - vars(other).keys() - own
        # Those of a copy of a copy are asked for at once where they are made: no chain gets longer.
        other._shared = {name: self if name in vars(self) else self._shared.get(name, self) for name in shared}
        return other

    @property
    def blocking(self) -> bool:
        """Whether keys or actions wait for a disk or a network."""
        return self.keys.blocking or self.actions.blocking

    @property
    def reads_sources(self) -> bool:
        """Whether opening a run reads sources, which may take a while."""
        return self.deployment is not None and bool(self.deployment.sources)

    def end_run(self, run_id: str, caller: str, *, labelled: bool) -> None:
        """Forget a run and, with labels in use, what the ledger knows of it; StoreError where it cannot be written."""
        self.runs.end(run_id, caller)
        if labelled:
            from pdp.ledger.ledger import run_of  # noqa: PLC0415 - only where labels are in use

            self.ledger.end(run_of(self.ledger.key, caller, run_id))

    def run_of(self, session: Session) -> Run:
        """Return the run that a call belongs to; StateError where it cannot be opened, see `Runs.open`."""
        return self.runs.open(session.run_id, session.caller)


class Tools:
    """The functions by the name of their tool; each is made ready for running when it is first called.

    Those that `registry` binds count as well. `defaults` are what tools have for arguments that a call leaves out.
    UsageError: no tool of the manifest has the name of a function, or its schema does not admit a default of one.
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
                    hint=nearest(name, manifest.tools) or "name each function as its tool in the manifest",
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
        """Let `function` run the tool `name`; UsageError: as of the class."""
        entry = self._manifest.tools[name]
        try:
            inspect.signature(function).bind(**dict.fromkeys(argument_schemas(entry.schema_)))
        except (TypeError, ValueError) as error:
            problem = f"the function for tool {name}: {error}"
            raise UsageError(problem, hint="give it a parameter for each argument of the manifest's schema") from None
        self._take_of(entry, function)
        self._functions[name] = function

    def take(self, name: str, real: Mapping[str, Any]) -> list[str]:
        """Take the defaults in the real schema of a tool, to be decided on; return where it is not as declared."""
        from pdp.manifest.schema.differences import drift, tool_defaults  # noqa: PLC0415 - only tools with defaults

        declared = self._manifest.tools[name].schema_
        taken = tool_defaults(name, declared, real)
        found, self.defaults[name] = drift(declared, real, taken), taken
        return found

    def filled(self, proposal: Proposal) -> Proposal:
        """Return the proposal with the defaults of its tool; ProposalRejectedError: it is too large by them."""
        name = proposal.tool
        if name not in self.defaults and (function := self._function(name)) is not None:
            self._take_of(self._manifest.tools[name], function)
        arguments = {**self.defaults.get(name, {}), **proposal.arguments}
        same = len(arguments) == len(proposal.arguments)
        return proposal if same else Proposal.read(replace(proposal, arguments=arguments))

    def replaced_by(self, functions: Mapping[str, Callable[..., Any]] | None) -> Tools:
        """Return tools with other functions; with the same ones when there are none."""
        return Tools(self._manifest, self._functions if functions is None else functions, self._registry)

    def of_manifest(self, manifest: EffectiveManifest) -> Tools:
        """Return the same functions for another manifest; a function that is added to one is in both."""
        other = Tools(manifest, self._functions, self._registry)
        other._functions = self._functions
        return other

    def runner(self, entry: Tool) -> ToolRunner | None:
        """Return what runs the tool, None when nothing does; UsageError for an unusable program or result schema."""
        name = entry.name
        function = self._function(name)
        runner = self._runners.get(name)
        if runner is not None and (function is None or runner.function is function):
            return runner
        if function is None and entry.type != "cli":
            return None
        from pdp.execution.runner import ToolRunner  # noqa: PLC0415 - only a tool that runs

        runner = self._runners[name] = ToolRunner(entry, function)
        return runner

    def lacking(self, name: str) -> str:
        """Return why the registry's function for the tool cannot run now; empty where it can."""
        return "" if self._registry is None else self._registry.lacking(name)

    def inputs(self, tool: CompiledTool, session: Session, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the tool's function gets of state and config, by parameter."""
        return {} if self._registry is None else self._registry.inputs(tool.entry.name, session.state, config)

    def _take_of(self, entry: Tool, function: Callable[..., Any]) -> None:
        """Take the defaults of a function's arguments; UsageError: one is not JSON that the entry's schema admits."""
        stated = {each.name: each.default for each in named_parameters(function) if each.default is not each.empty}
        if all(default is None for default in stated.values()):
            self.defaults[entry.name] = {}
            return
        from pdp.manifest.schema.differences import DEFAULT  # noqa: PLC0415 - only tools with defaults

        found = self.take(entry.name, {"properties": {name: {"default": value} for name, value in stated.items()}})
        if refused := [line for line in found if DEFAULT in line]:
            del self.defaults[entry.name]
            problem = f"the function for tool {entry.name} has a default that its manifest does not admit: {refused[0]}"
            raise UsageError(problem, hint="make it None, or what the schema of the argument admits")

    def _function(self, name: str) -> Callable[..., Any] | None:
        function = self._functions.get(name)
        if function is None and self._registry is not None:
            function = self._registry.function(name)
        return function


class NewestRelease:
    """The newest release of the policies that has decided here: an older one must not decide after it.

    Safe to share between threads and enforcement points.
    """

    def __init__(self) -> None:
        self._release = 0
        self._lock = threading.Lock()

    def is_stale(self, decision: Decision) -> bool:
        """Return whether a later release has decided before; otherwise this one is the newest seen."""
        # A policy that names no release counts as older than any. A failure without a policy has no release at all.
        release = decision.release or 0
        if release == self._release or (decision.bundle_revision is None and decision.verdict is Verdict.DENY):
            return False
        with self._lock:
            self._release = max(self._release, release)
            return release < self._release


@dataclass(frozen=True)
class Parts:
    """All that the flow of one enforcement point needs; see `Pep`. Shared between threads and tasks.

    `own_obligations` are the application's handlers beside the baseline's; `ignored_claims` is what was logged of
    claims that were ignored, each once.
    """

    manifest: CompiledManifest
    engine: Engine
    audit: AuditLog
    approvals: Approvals | None
    tools: Tools
    stores: Stores
    own_obligations: Obligations | None
    newest: NewestRelease
    observers: tuple[Observer, ...]
    telemetry: Telemetry | None
    remote_calls: SqlRemoteCalls | None
    ignored_claims: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.approvals is not None:
            self.approvals.attach(self.audit, self.stores.actions)

    def obligations(self) -> Obligations:
        """Return who fulfils the obligations of a decision."""
        from pdp.obligations.handlers import BASELINE  # noqa: PLC0415 - only decisions that have obligations

        return BASELINE if self.own_obligations is None else self.own_obligations


def obligations_of(handlers: Mapping[str, ObligationHandler] | None) -> Obligations | None:
    """Return the application's handlers of obligations, None when it has none; errors as of `Obligations`."""
    if not handlers:
        return None
    from pdp.obligations.handlers import Obligations  # noqa: PLC0415 - only applications with handlers

    return Obligations(handlers)


def observers_of(observers: Iterable[Any]) -> tuple[Observer, ...]:
    """Return the application's observers; UsageError where one is not a plain function, and would never run."""
    functions = tuple(observers)
    if not functions:
        return ()
    from pdp.execution.runner import is_asynchronous  # noqa: PLC0415 - only applications with observers

    for observer in functions:
        if not callable(observer) or is_asynchronous(observer):
            raise UsageError(
                f"observer {observer!r:.80} is not a plain function", hint="give a function that takes one event"
            )
    return functions
