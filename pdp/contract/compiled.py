"""Manifest entries, compiled once for all calls: schema, invariants, config, state and mappings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pdp.json import FrozenObject
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.expressions.path import Expression
from pdp.manifest.fields import EffectClass, Pattern, duration_seconds
from pdp.manifest.model import MAX_ARGUMENTS, StateEffect, Tool
from pdp.manifest.schema.compile import closed_schema, compile_schema
from pdp.manifest.schema.references import property_names
from pdp.manifest.schema.walk import argument_schemas
from pdp.request import RequestedAction

if TYPE_CHECKING:  # Only some tools need this module at run time.
    from pdp.contract.inputs import Config, StateFields
    from pdp.contract.invariants import Invariants
    from pdp.contract.registry.tool_contract import ToolContract
    from pdp.ledger.summary import Tracker

_COMMITS: Final = (EffectClass.COMMIT_LOW, EffectClass.COMMIT_HIGH)


class CompiledTool:
    """One effective manifest entry, compiled once for all calls of the tool.

    `validator` does not require sources, because a missing source has its own rejection code. Arguments of up to
    `free_bytes` are always cheap to validate. `timeout` and `key_ttl` are in seconds; without `key_ttl`, results are
    stored forever. `reserves_key` is false if the tool stages actions, because its calls use the keys of the actions.
    `derives_key` is false for `commit-high`, where two calls with equal arguments may both be intended.

    If `has_action`, a call that needs approval creates an action. If `commits`, calls run only as part of an action.
    If `commits_staged`, calls need no approval, but can commit only actions that were staged in the same run.
    `follows_pattern` is true if a call must follow the rules of a pattern or match a staged action.
    """

    def __init__(self, entry: Tool, manifest: EffectiveManifest, contract: ToolContract | None = None) -> None:
        self.entry = entry
        self.requested_action = RequestedAction(
            name=entry.pdp_action,
            properties=FrozenObject(
                tool=entry.name, manifest_version=manifest.version, manifest_digest=manifest.digest
            ),
        )
        required = [name for name in entry.schema_.get("required", ()) if name not in entry.provenance.required]
        self.validator = compile_schema(closed_schema({**entry.schema_, "required": required}))
        self.max_bytes = entry.max_bytes or MAX_ARGUMENTS
        self.free_bytes = min(self.max_bytes, self.validator.free_bytes)
        self.invariants: Invariants | None = None
        # The contract's plain data is part of the manifest entry, so only the contract's functions are used here.
        functions = contract.invariants if contract else ()
        if entry.invariants or functions:
            from pdp.contract.invariants import Invariants  # noqa: PLC0415 - only needed with invariants

            self.invariants = Invariants(entry.invariants, functions, frozenset(argument_schemas(entry.schema_)))
        self.config: Config | None = None
        parameters = contract.config_params if contract else entry.config
        if parameters:
            from pdp.contract.inputs import Config  # noqa: PLC0415 - only needed with config

            self.config = Config(parameters)
        self.reads = entry.state.reads if entry.state else ()
        self.state_effects: tuple[StateEffect, ...] = entry.state.effects if entry.state else ()
        # A mapping without an id results in the tool's name as id, as if there were no mapping.
        self.resource = _compiled(entry.resource and {"id": entry.name, **entry.resource})
        self.context = _compiled(entry.context)
        self.timeout = duration_seconds(entry.timeout) if entry.timeout else None
        self.key_ttl = duration_seconds(entry.idempotency.ttl) if entry.idempotency.ttl else None
        self.derives_key = entry.derives_key
        self.stages_actions = entry.pattern is Pattern.ACTION_STAGING
        self.spends = any(limit.per for limit in entry.limits)
        self.reserves_key = entry.idempotency.required and not self.stages_actions
        self.has_action = entry.has_effects and entry.effect_class is not EffectClass.STAGE and not self.stages_actions
        self.commits = self.has_action and entry.effect_class in _COMMITS
        self.commits_staged = entry.effect_class is EffectClass.COMMIT_HIGH and bool(
            entry.approval.unless_within_limits
        )
        self.follows_pattern = entry.pattern is not None or self.commits_staged

    @cached_property
    def tracker(self) -> Tracker:
        """Tracks the values of this tool's calls. Only needed if the policy uses labels of data."""
        from pdp.ledger.summary import Tracker  # noqa: PLC0415 - only needed with labels

        return Tracker(self.entry, self.argument_names)

    @cached_property
    def argument_names(self) -> frozenset[str]:
        """All argument names in the schema, at any depth."""
        return property_names(self.entry.schema_)

    def state_after(self, state: Mapping[str, Any], result: Any) -> dict[str, Any]:
        """Return the state after merging a tool's result. Raise StateEffectError if the result does not fit."""
        from pdp.contract.inputs import state_after  # noqa: PLC0415 - only needed with state effects

        return state_after(state, self.state_effects, result)


def _compiled(mapping: Mapping[str, Any] | None) -> dict[str, Expression]:
    if not mapping:
        return {}
    from pdp.manifest.expressions.expression import compile_expression  # noqa: PLC0415 - only needed with mappings

    return {name: compile_expression(value) for name, value in mapping.items()}


class CompiledManifest:
    """The tools of one manifest, each compiled at its first call, because 10,000 tools take long to compile.

    The manifest also declares the tools in `contracts`. Raises UsageError if two tools disagree about a state field.
    """

    def __init__(self, manifest: EffectiveManifest, contracts: Mapping[str, ToolContract] | None = None) -> None:
        self.manifest = manifest
        self._effects = {name: tool.state.effects for name, tool in manifest.tools.items() if tool.state}
        if self._effects:
            # Computing the state now reports contradictions between tools at the start instead of at the first call.
            _ = self.state
        self._contracts = dict(contracts or {})
        self._tools: dict[str, CompiledTool] = {}

    @cached_property
    def state(self) -> StateFields:
        """The fields of the state that the tools write."""
        from pdp.contract.inputs import StateFields  # noqa: PLC0415 - only needed with state effects

        return StateFields(self._effects)

    def tool(self, name: str) -> CompiledTool | None:
        """Return the tool with exactly this name, or None if the manifest has no such tool."""
        tool = self._tools.get(name)
        if tool is None:
            entry = self.manifest.tools.get(name)
            if entry is None:
                return None
            # If two threads compile the same tool at once, both use the first result.
            tool = self._tools.setdefault(name, CompiledTool(entry, self.manifest, self._contracts.get(name)))
        return tool
