"""A manifest entry made ready for calls: schema, invariants, config, state and mappings compiled once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from pdp.contract.config import Config
from pdp.contract.invariants import Invariants
from pdp.contract.state import StateFields, state_after, state_read
from pdp.manifest.expressions.expression import Expression, compile_expression
from pdp.manifest.fields import duration_seconds
from pdp.manifest.schema.compile import argument_schemas, closed_schema, compile_schema
from pdp.request import Action

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdp.contract.json_object import JsonObject
    from pdp.contract.registry.tool_contract import ToolContract
    from pdp.manifest.effective import EffectiveManifest
    from pdp.manifest.model import Tool
    from pdp.manifest.records import StateEffect


class CompiledTool:
    """One effective entry, ready for calls.

    Attributes:
        entry: the effective entry.
        action: the request's action, the same for every call of the tool.
        validator: of the arguments; closed against unknown ones.
        invariants: the structural rules.
        config: what it needs at run time, to be resolved for a session.
        reads: the keys of the state that it is handed; effects: those that it writes.
        resource, context: the mappings, by the field that each fills; without one, empty.
        timeout: seconds that the tool may take, or None.
    """

    def __init__(self, entry: Tool, manifest: EffectiveManifest, contract: ToolContract | None = None) -> None:
        self.entry = entry
        self.action = Action(
            name=entry.pdp_action,
            properties={"tool": entry.name, "manifest_version": manifest.version, "manifest_digest": manifest.digest},
        )
        self.validator = compile_schema(closed_schema(entry.schema_))
        # A contract in Python is in the entry as far as plain data can say it; its functions count.
        self.invariants = Invariants(
            entry.invariants, contract.invariants if contract else (), frozenset(argument_schemas(entry.schema_))
        )
        self.config = Config(params=contract.config_params) if contract else Config(entry.config)
        self.reads = entry.state.reads if entry.state else ()
        self.effects: tuple[StateEffect, ...] = entry.state.effects if entry.state else ()
        self.resource = _compiled(entry.resource)
        self.context = _compiled(entry.context)
        self.timeout = duration_seconds(entry.timeout) if entry.timeout else None

    def state_read(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return what of the state the tool is handed, as copies."""
        return state_read(state, self.reads)

    def state_after(self, state: Mapping[str, Any], result: Any) -> JsonObject:
        """Return the state after the tool gave `result`.

        Raises:
            StateEffectError: the result is not what the state effects declare.
        """
        return state_after(state, self.effects, result)


def _compiled(mapping: Mapping[str, Any] | None) -> dict[str, Expression]:
    return {name: compile_expression(value) for name, value in (mapping or {}).items()}


class CompiledManifest:
    """The tools of one effective manifest, each compiled when it is first called.

    Compiling all at once would make a manifest of 10,000 tools slow to start with, for tools that nobody calls.

    Args:
        manifest: the effective manifest.
        contracts: contracts in Python, by the name of the tool; their entries are in the manifest.

    Raises:
        UsageError: the tools contradict each other about a field of the state.
    """

    def __init__(self, manifest: EffectiveManifest, contracts: Mapping[str, ToolContract] | None = None) -> None:
        self.manifest = manifest
        self.state = StateFields({name: one.state.effects for name, one in manifest.tools.items() if one.state})
        self._contracts = dict(contracts or {})
        self._tools: dict[str, CompiledTool] = {}
        self._lock = threading.Lock()

    def tool(self, name: str) -> CompiledTool | None:
        """Return the tool of that exact name, or None when the manifest has none."""
        found = self._tools.get(name)
        if found is None:
            entry = self.manifest.tools.get(name)
            if entry is None:
                return None
            with self._lock:
                found = self._tools.get(name)
                if found is None:
                    found = self._tools[name] = CompiledTool(entry, self.manifest, self._contracts.get(name))
        return found
