"""The tools of an application, declared in a manifest or in Python, with their functions. The registry decides nothing.

Source: tool contract document, "the registry became the dispatcher", and tool layer document, "Registry".
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
    """Whether a tool can run. `type` is `python` or `cli`. `reason` says why the tool cannot run; else it is empty."""

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
    """Tools by name, with the functions that run them. Safe to share between threads.

    Register all contracts when the application starts, because no contract can be added after the first use of
    `manifest`. Functions can be bound at any time.

    Args:
        manifest: a manifest that declares tools; None for no manifest.
        governance: the policy author's rules for tools of the manifest and of contracts.
        version: the version of the manifest; by default the version of `manifest`, or `1`.
        capabilities: the capabilities that the deployment grants for `safety.requires`.

    Raises:
        UsageError: a tool is declared twice.

    Examples:
        >>> registry = Registry.from_files("manifest.json", governance="governance.yaml")
        >>> function = registry.bind("lookup_beneficiary", lambda payee_name, invoice_ref: "bene-acme-441")
        >>> [status.name for status in registry.check_availability() if status.available]
        ['lookup_beneficiary']
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
        """Return a registry with the tools of a manifest file.

        Args:
            manifest: the path of the manifest, YAML or JSON.
            governance: the path of the governance file.
            options: `version` and `capabilities`, as for the constructor.

        Raises:
            UsageError: a file is missing or has faults, all of which are listed, or a tool is declared twice.
        """
        from pdp.manifest.load import load_both  # noqa: PLC0415 - only needed to load files

        return cls(*load_both(manifest, governance), **options)

    def register_contract(
        self,
        contract: ToolContract,
        function: Callable[..., Any] | None = None,
        *,
        available: Callable[[], Any] | None = None,
        **fields: Any,
    ) -> None:
        """Add a tool that is declared in Python.

        A tool without scopes is always denied, unless its effect class is `pure`. A warning about this is logged.

        Args:
            contract: the declaration.
            function: runs the tool; can also be bound later.
            available: returns whether the tool can run now; see `bind`.
            fields: other fields of the manifest entry, such as `effect_class="read-external"` and `scopes=["search"]`.

        Raises:
            UsageError: the tool exists already, the entry is faulty, the manifest was already used, or `bind` fails.
        """
        tool = declared_tool(contract, fields, self._governance)
        with self._lock:
            if self._compiled is not None:
                raise UsageError(
                    f"contract {shown_name(contract.name)} cannot be added: the registry has already built its "
                    f"manifest",
                    hint="register every contract before the registry is used",
                )
            self._declare(tool)
            self._contracts[contract.name] = contract
        entry = effective_tool(tool, self._governance.actions.get(tool.action))
        if not entry.scopes and entry.effect_class is not EffectClass.PURE:
            _log.warning(
                "contract %s: every call is denied (decision.nothing_allows) because it has no scopes: set `scopes` "
                "and `effect_class` in `register_contract`, or for action %s in the governance file",
                shown_name(contract.name),
                shown_name(tool.action),
            )
        if function is not None:
            self.bind(contract.name, function, available=available)

    def bind(
        self, name: str, function: Callable[..., Any], *, available: Callable[[], Any] | None = None
    ) -> Callable[..., Any]:
        """Bind a function that runs a tool, and return the function.

        Args:
            name: the name of the tool.
            function: gets the tool's arguments by name. Its other parameters come from state and config; see `Inputs`.
            available: returns whether the tool can run now, or `(available, reason)`. An error means it cannot run.

        Raises:
            UsageError: no tool has this name, the tool has a function already, or the function's parameters do not fit.
        """
        declared = self._declared.get(name)
        if declared is None:
            raise UsageError(
                f"{shown_name(name)} is not a tool of this registry",
                hint=nearest(name, self._declared) or "add it to a manifest, or register its contract",
            )
        if not callable(function):
            raise UsageError(f"the function of {name} is not callable", hint="bind a function")
        binding = _Binding(function, available, Inputs(function, declared))
        with self._lock:
            if name in self._bindings:
                raise UsageError(f"{name} has a function already", hint="bind one function to each tool")
            self._bindings[name] = binding
        return function

    @property
    def manifest(self) -> EffectiveManifest:
        """The effective manifest of all tools, sorted by name. Contracts can be added only before its first use."""
        return self.compiled.manifest

    @property
    def compiled(self) -> CompiledManifest:
        """The compiled manifest. Raises the errors of `CompiledManifest`."""
        with self._lock:
            if self._compiled is None:
                whole = self._whole.model_copy(
                    update={"tools": tuple(tool for _, tool in sorted(self._declared.items()))}
                )
                self._compiled = CompiledManifest(effective_manifest(whole, self._governance), self._contracts)
            return self._compiled

    def function(self, name: str) -> Callable[..., Any] | None:
        """Return the function that runs a tool; None if no function is bound."""
        binding = self._bindings.get(name)
        return binding.function if binding else None

    def inputs(self, name: str, state: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters that a tool's function gets from state and resolved config."""
        binding = self._bindings.get(name)
        return binding.inputs.values(state, config) if binding else {}

    def lacking(self, name: str) -> str:
        """Return the first unmet requirement of a tool, or the empty string if all requirements are met.

        Requirements are the program of a tool of type `cli`, and the entries of `safety.requires`: `binary:NAME` and
        `env:NAME` on this machine, and capabilities of the deployment.
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
        """Check for every tool whether it can run now. Return the results, with reasons, sorted by tool name.

        The results only inform: a call is rejected if `lacking` names a requirement, not if `available` fails.
        """
        reasons = ((entry, self._why_unavailable(entry)) for entry in self.manifest.tools.values())
        return tuple(ToolStatus(entry.name, entry.type, described(entry), not why, why) for entry, why in reasons)

    def definitions(self, form: ExportFormat | str = ExportFormat.OPENAI) -> list[dict[str, Any]]:
        """Return the definitions of the available tools for a model, sorted by name.

        Raises:
            UsageError: `form` is not an `ExportFormat`.
        """
        available = {status.name for status in self.check_availability() if status.available}
        return export_tools((tool for name, tool in self.manifest.tools.items() if name in available), form)

    def all_definitions(self, form: ExportFormat | str = ExportFormat.OPENAI) -> list[dict[str, Any]]:
        """Return the definitions of all tools for a model, available or not. Raises the errors of `definitions`."""
        return export_tools(self.manifest.tools.values(), form)

    def _declare(self, tool: DeclaredTool) -> None:
        if tool.name in self._declared:
            raise UsageError(f"tool {tool.name} is declared twice", hint="rename or remove one of them")
        self._declared[tool.name] = tool

    def _why_unavailable(self, entry: Tool) -> str:
        binding = self._bindings.get(entry.name)
        if binding is None and entry.cli is None:
            return "no function is bound"
        reason = self.lacking(entry.name)
        if not reason and binding is not None and binding.available is not None:
            reason = _probe_failure(entry.name, binding.available)
        return reason


def _probe_failure(name: str, probe: Callable[[], Any]) -> str:
    try:
        result = probe()
    except Exception as error:  # noqa: BLE001 - an application's check may raise anything
        _log.exception("the availability check of %s raised an exception", name)
        return f"the tool's availability check raised {type(error).__name__}"
    match result:
        case True | (True, _):
            return ""
        case False:
            return "not available"
        case (False, str(reason)):
            return reason[:_LONGEST] or "not available"
    end_coroutine(result)
    return f"the tool's availability check returned {type(result).__name__}, not true or false"
