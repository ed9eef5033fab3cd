"""A manifest entry made ready for calls: schema, invariants, config, state and mappings compiled once."""

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

if TYPE_CHECKING:  # loaded only for tools that have them
    from pdp.contract.inputs import Config, StateFields
    from pdp.contract.invariants import Invariants
    from pdp.contract.registry.tool_contract import ToolContract
    from pdp.ledger.summary import Tracker

_COMMITS: Final = (EffectClass.COMMIT_LOW, EffectClass.COMMIT_HIGH)


class CompiledTool:
    """One effective entry, ready for calls, with the steps that a call of it takes.

    Attributes:
        requested_action: the request's action, the same for every call of the tool.
        validator: of the arguments; closed against unknown ones. It demands no source: that one is missing is a finding
            of its own.
        max_bytes: how many bytes the arguments may have; of at most `free_bytes` the check is never much work.
        timeout: in seconds.
        key_ttl: seconds for which the result is stored for its idempotency key; None: for ever.
        reserves_key: whether a call reserves its idempotency key. Staging has its own: the action's.
        derives_key: whether a key that the session lacks is derived from the arguments. The same arguments derive the
            same key, which is no proof that a commit was meant once and not twice.
        stages_actions: whether it stages actions for other tools, instead of running a function.
        has_action: whether a call that a person is asked about has an action: it has effects, and is not the staging.
        commits: whether no call runs without an action.
        commits_staged: whether it is excused from approval, and so commits only what was staged in its run.
        follows_pattern: whether what it does is held to rules of a pattern, or to what was staged.
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
        # A contract in Python is in the entry as far as plain data can say it; its functions count.
        functions = contract.invariants if contract else ()
        if entry.invariants or functions:
            from pdp.contract.invariants import Invariants  # noqa: PLC0415 - only tools that have any

            self.invariants = Invariants(entry.invariants, functions, frozenset(argument_schemas(entry.schema_)))
        self.config: Config | None = None
        parameters = contract.config_params if contract else entry.config
        if parameters:
            from pdp.contract.inputs import Config  # noqa: PLC0415 - only tools that have any

            self.config = Config(parameters)
        self.reads = entry.state.reads if entry.state else ()
        self.state_effects: tuple[StateEffect, ...] = entry.state.effects if entry.state else ()
        # As without a mapping: a resource that is not told apart by an id is the tool's.
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
        """What follows the values of its calls; asked for where labels are in use."""
        from pdp.ledger.summary import Tracker  # noqa: PLC0415 - others do not load this

        return Tracker(self.entry, self.argument_names)

    @cached_property
    def argument_names(self) -> frozenset[str]:
        """The names that the schema of the arguments states, at any depth."""
        return property_names(self.entry.schema_)

    def state_after(self, state: Mapping[str, Any], result: Any) -> dict[str, Any]:
        """Return the state after the tool gave `result`; StateEffectError: not what its state effects declare."""
        from pdp.contract.inputs import state_after  # noqa: PLC0415 - only tools that state what they write

        return state_after(state, self.state_effects, result)


def _compiled(mapping: Mapping[str, Any] | None) -> dict[str, Expression]:
    if not mapping:
        return {}
    from pdp.manifest.expressions.expression import compile_expression  # noqa: PLC0415 - only tools with mappings

    return {name: compile_expression(value) for name, value in mapping.items()}


class CompiledManifest:
    """The tools of one effective manifest, each compiled when it is first called.

    Compiling all at once would make a manifest of 10,000 tools slow to start with, for tools that nobody calls.
    `contracts` are those in Python, by the name of the tool; their entries are in the manifest. UsageError where
    the tools contradict each other about a field of the state.
    """

    def __init__(self, manifest: EffectiveManifest, contracts: Mapping[str, ToolContract] | None = None) -> None:
        self.manifest = manifest
        self._effects = {name: tool.state.effects for name, tool in manifest.tools.items() if tool.state}
        if self._effects:
            _ = self.state  # finds what contradicts itself
        self._contracts = dict(contracts or {})
        self._tools: dict[str, CompiledTool] = {}

    @cached_property
    def state(self) -> StateFields:
        """The fields of the state that the tools write."""
        from pdp.contract.inputs import StateFields  # noqa: PLC0415 - only manifests whose tools write state

        return StateFields(self._effects)

    def tool(self, name: str) -> CompiledTool | None:
        """Return the tool of that exact name, or None when the manifest has none."""
        tool = self._tools.get(name)
        if tool is None:
            entry = self.manifest.tools.get(name)
            if entry is None:
                return None
            # Of two threads that compile it at once, the first to be done has it for both.
            tool = self._tools.setdefault(name, CompiledTool(entry, self.manifest, self._contracts.get(name)))
        return tool
