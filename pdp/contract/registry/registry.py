"""The registry: every tool of an application, declared in a manifest or in Python, with the function that runs it.

Source: tool contract document, "the registry became the dispatcher", and tool layer document, "Registry". It holds what
is declared and decides nothing: whoever runs a tool asks the enforcement point, which takes the registry.
"""

import logging
import os
import pathlib
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from pdp.contract.compiled import CompiledManifest
from pdp.contract.inputs import Inputs
from pdp.contract.registry.entry import declared_tool
from pdp.contract.registry.tool_contract import ToolContract
from pdp.documents import nearest, shown_name
from pdp.documents.arguments import end_coroutine
from pdp.errors import UsageError
from pdp.manifest.effective import EffectiveManifest, effective_manifest, effective_tool
from pdp.manifest.exports import ExportFormat, described, export_tools
from pdp.manifest.fields import EffectClass
from pdp.manifest.model import DeclaredTool, Governance, Manifest, Tool
from pdp.manifest.programs import program_path

_log = logging.getLogger("pdp.contract")

_LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class ToolStatus:
    """Whether one tool can run. `type` is `python` or `cli`; `reason` says why it cannot, and is empty when it can."""

    name: str
    type: str
    description: str
    available: bool
    reason: str


@dataclass(frozen=True, slots=True)
class _Binding:
    function: Callable[..., Any]
    available: Callable[[], Any] | None
    inputs: Inputs


class Registry:
    """Tools by name. Contracts are registered when the application starts; functions may be bound at any time.

    The manifest is made when it is first asked for, and then no contract can be added: the policy engine knows the
    manifest by its digest. Safe to share between threads.

    Args:
        governance: the policy author's half, for the tools of the manifest file and of contracts alike.
        version: the version of all tools together; when absent that of the manifest file, or `1` without one.
        capabilities: what the deployment grants of `safety.requires`.

    UsageError: a tool is declared twice.
    """

    def __init__(
        self,
        manifest: Manifest | None = None,
        governance: Governance | None = None,
        *,
        version: str | None = None,
        capabilities: Iterable[str] = (),
    ) -> None:
        self._lock = threading.RLock()
        self._governance = governance or Governance.model_construct(actions={})
        self._capabilities = frozenset(capabilities)
        self._bindings: dict[str, _Binding] = {}
        self._declared: dict[str, DeclaredTool] = {}
        self._contracts: dict[str, ToolContract] = {}
        self._compiled: CompiledManifest | None = None
        self._whole = manifest or Manifest.model_construct(manifest_version="1", agents=None, tools=())
        if version is not None:
            self._whole = self._whole.model_copy(update={"manifest_version": version})
        for tool in self._whole.tools:
            self._declare(tool)

    @classmethod
    def from_files(
        cls, manifest: pathlib.Path | str, *, governance: pathlib.Path | str | None = None, **options: Any
    ) -> Self:
        """Return a registry of a manifest file; `options` are `version` and `capabilities`.

        UsageError: a file is missing or faulty, with every fault and its place; or as of the constructor.
        """
        from pdp.manifest.load import load_both  # noqa: PLC0415 - files only

        return cls(*load_both(manifest, governance), **options)

    def register_contract(
        self,
        contract: ToolContract,
        function: Callable[..., Any] | None = None,
        *,
        available: Callable[[], Any] | None = None,
        **fields: Any,
    ) -> None:
        """Add a contract in Python, and the function that runs it, which may also be bound later.

        `fields` are what else its manifest entry states, such as `effect_class="read-external"`, `scopes=["search"]`.
        What no policy can allow as it stands, since neither the contract nor the governance file names a scope, is
        registered all the same, with a warning in the log.

        Raises:
            UsageError: a tool of that name is there; the entry is faulty; the manifest is in use already; or as of
                `bind`.
        """
        tool = declared_tool(contract, fields, self._governance)
        with self._lock:
            if self._compiled is not None:
                raise UsageError(
                    f"contract {shown_name(contract.name)} comes after the manifest was made",
                    hint="register every contract before the registry is used",
                )
            self._declare(tool)
            self._contracts[contract.name] = contract
        entry = effective_tool(tool, self._governance.actions.get(tool.action))
        if not entry.scopes and entry.effect_class is not EffectClass.PURE:
            _log.warning(
                "contract %s: every call is a DENY (decision.nothing_allows), as no scope is stated: state `scopes` "
                "and `effect_class` with `register_contract`, or for action %s in the governance file",
                shown_name(contract.name),
                shown_name(tool.action),
            )
        if function is not None:
            self.bind(contract.name, function, available=available)

    def bind(
        self, name: str, function: Callable[..., Any], *, available: Callable[[], Any] | None = None
    ) -> Callable[..., Any]:
        """Let `function` run the tool, and return it.

        It takes the arguments by name; other parameters are filled from state and config, see `Inputs`. `available`
        says whether it can run now: it returns true or false, or `(available, reason)`. Where it raises or returns
        anything else, the tool cannot.

        Raises:
            UsageError: no such tool, it has a function already, or the function cannot be called, or asks for what
                nobody gives.
        """
        declared = self._declared.get(name)
        if declared is None:
            raise UsageError(
                f"{shown_name(name)} is not a tool of this registry",
                hint=nearest(name, self._declared) or "add it to a manifest, or register its contract",
            )
        if not callable(function):
            raise UsageError(f"the function of {name} cannot be called", hint="bind a function")
        binding = _Binding(function, available, Inputs(function, declared))
        with self._lock:
            if name in self._bindings:
                raise UsageError(f"{name} has a function already", hint="one function for a tool; remove one")
            self._bindings[name] = binding
        return function

    @property
    def manifest(self) -> EffectiveManifest:
        """The effective manifest of all tools, sorted by name; making it closes the registry to further contracts."""
        return self.compiled.manifest

    @property
    def compiled(self) -> CompiledManifest:
        """The same, its tools ready for calls; errors as of `CompiledManifest`."""
        with self._lock:
            if self._compiled is None:
                whole = self._whole.model_copy(
                    update={"tools": tuple(tool for _, tool in sorted(self._declared.items()))}
                )
                self._compiled = CompiledManifest(effective_manifest(whole, self._governance), self._contracts)
            return self._compiled

    def function(self, name: str) -> Callable[..., Any] | None:
        """Return the function that runs a tool, whether or not it is available; None when none is bound."""
        binding = self._bindings.get(name)
        return binding.function if binding else None

    def inputs(self, name: str, state: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the tool's function gets beside its arguments, from state and resolved config."""
        binding = self._bindings.get(name)
        return binding.inputs.values(state, config) if binding else {}

    def lacking(self, name: str) -> str:
        """Return what a tool needs and does not have; empty: nothing.

        Those are the program of a tool of type `cli`, and what `safety.requires` names: `binary:NAME` and `env:NAME` on
        this machine, everything else among what the deployment grants.
        """
        entry = self.manifest.tools.get(name)
        return next(self._lacks(entry), "") if entry else ""

    def _lacks(self, entry: Tool) -> Iterator[str]:
        if entry.cli is not None and entry.program is not None:
            try:
                if program_path(entry.cli.argv[0], entry.program) is None:
                    yield f"program {entry.cli.argv[0]} is not found"
            except UsageError as error:
                yield error.message
        for need in entry.safety.requires if entry.safety else ():
            kind, _, wanted = need.partition(":")
            if kind == "binary" and shutil.which(wanted) is None:
                yield f"program {wanted} is not found"
            if kind == "env" and not os.environ.get(wanted):
                yield f"environment variable {wanted} is not set"
            if kind not in ("binary", "env") and need not in self._capabilities:
                yield f"capability {need} is not granted"

    def check_availability(self) -> tuple[ToolStatus, ...]:
        """Return for every tool whether it can run right now, and why not, sorted by name. Asked anew each time.

        A call that the model has made already is refused for what `lacking` names; the tool's own check is not asked.
        """
        reasons = ((entry, self._why_unavailable(entry)) for entry in self.manifest.tools.values())
        return tuple(ToolStatus(entry.name, entry.type, described(entry), not why, why) for entry, why in reasons)

    def definitions(self, form: ExportFormat | str = ExportFormat.OPENAI) -> list[dict[str, Any]]:
        """Return what a model is told of the tools that are available right now, sorted by name.

        UsageError: not one of the formats.
        """
        available = {status.name for status in self.check_availability() if status.available}
        return export_tools((tool for name, tool in self.manifest.tools.items() if name in available), form)

    def all_definitions(self, form: ExportFormat | str = ExportFormat.OPENAI) -> list[dict[str, Any]]:
        """Return what a model is told of every tool, available or not; form and errors as of `definitions`."""
        return export_tools(self.manifest.tools.values(), form)

    def _declare(self, tool: DeclaredTool) -> None:
        if tool.name in self._declared:
            raise UsageError(f"tool {tool.name} is declared twice", hint="names are unique: rename or remove one")
        self._declared[tool.name] = tool

    def _why_unavailable(self, entry: Tool) -> str:
        binding = self._bindings.get(entry.name)
        if binding is None and entry.cli is None:
            return "no function is bound"
        reason = self.lacking(entry.name)
        if not reason and binding is not None and binding.available is not None:
            reason = _why_not(entry.name, binding.available)
        return reason


def _why_not(name: str, probe: Callable[[], Any]) -> str:
    try:
        answer = probe()
    except Exception as error:  # noqa: BLE001 - an application's own check may raise anything: not available
        _log.exception("the availability check of %s raised", name)
        return f"its availability check raised {type(error).__name__}"
    match answer:
        case True | (True, _):
            return ""
        case False:
            return "not available"
        case (False, str(reason)):
            return reason[:_LONGEST] or "not available"
    end_coroutine(answer)
    return f"its availability check gives {type(answer).__name__}, not true or false"
