"""What runs the tools of a registry: their functions, what each gets beside its arguments, and whether it can run now.

Source: tool layer document, "Registry" and "Available".
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdp.contract.registry.availability import why_lacking, why_unavailable
from pdp.contract.registry.inputs import Inputs
from pdp.errors import UsageError
from pdp.manifest.programs.command_line import template_findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pdp.contract.registry.availability import ToolCircuit
    from pdp.manifest.model import DeclaredTool, Tool


@dataclass(frozen=True, slots=True)
class _Bound:
    function: Callable[..., Any]
    available: Callable[[], Any] | None
    inputs: Inputs


class Bindings:
    """One function a tool, by the tool's name. Safe to share between threads.

    Args:
        capabilities: what the deployment grants of `safety.requires`.
        circuit: makes the circuit breaker of each tool.
    """

    def __init__(self, capabilities: Iterable[str], circuit: Callable[[], ToolCircuit]) -> None:
        self._lock = threading.RLock()
        self._capabilities = frozenset(capabilities)
        self._new_circuit = circuit
        self._bound: dict[str, _Bound] = {}
        self._circuits: dict[str, ToolCircuit] = {}

    def bind(self, tool: DeclaredTool, function: Callable[..., Any], available: Callable[[], Any] | None) -> None:
        """Let `function` run the tool; `available` is its own check, see `pdp.contract.registry.availability`.

        Raises:
            UsageError: the tool has a function already, or the function asks for what nobody gives.
        """
        with self._lock:
            if tool.name in self._bound:
                raise UsageError(f"{tool.name} has a function already", hint="one function for a tool; remove one")
            if not callable(function):
                raise UsageError(f"what is bound to {tool.name} cannot be called", hint="bind a function")
            self._bound[tool.name] = _Bound(function, available, Inputs(function, tool))

    def function(self, name: str) -> Callable[..., Any] | None:
        """Return the function of a tool, whether or not it is available; None when none is bound."""
        bound = self._bound.get(name)
        return bound.function if bound else None

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Return the functions, by tool."""
        with self._lock:
            return {name: bound.function for name, bound in self._bound.items()}

    def inputs(self, name: str, state: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the tool's function gets beside its arguments, from state and resolved config."""
        bound = self._bound.get(name)
        return bound.inputs.values(state, config) if bound else {}

    def note_run(self, name: str, *, failed: bool) -> None:
        """Note how a run of a tool ended."""
        with self._lock:
            circuit = self._circuits.setdefault(name, self._new_circuit())
        circuit.note(failed=failed)

    def lacking(self, entry: Tool) -> str:
        """Return what the tool needs and is not there; empty: nothing."""
        return why_lacking(entry, self._capabilities)

    def unavailable(self, entry: Tool) -> str:
        """Return why the tool cannot run right now; empty when it can."""
        bound, circuit = self._bound.get(entry.name), self._circuits.get(entry.name)
        # Found when a manifest is loaded, too; an entry may have been made without a file.
        fault = next(template_findings(entry), None)
        if fault is not None:
            reason = fault.message
        elif bound is None and entry.cli is None:
            reason = "no function is bound"
        else:
            reason = why_unavailable(entry, self._capabilities, bound.available if bound else None)
        return reason or (circuit.why_open() if circuit else "")
