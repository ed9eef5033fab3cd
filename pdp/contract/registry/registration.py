"""From a contract in Python to the manifest entry that governs it, checked as an entry of a file is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.contract.registry.shorthand import argument_schema
from pdp.contract.state import declared_effects
from pdp.documents import shown_name
from pdp.errors import FileFaultsError, UsageError
from pdp.manifest.effective import effective_tool
from pdp.manifest.load import load_manifest
from pdp.manifest.rules.rules import entry_findings, governable_findings
from pdp.manifest.schema.compile import argument_schemas

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdp.contract.registry.tool_contract import ToolContract
    from pdp.manifest.model import ActionRules, DeclaredTool

OWN_FIELDS: Final = frozenset(("name", "schema", "description", "invariants", "config", "state"))
"""The fields of an entry that the contract itself states."""


def declared_tool(contract: ToolContract, fields: Mapping[str, Any]) -> DeclaredTool:
    """Return the entry of a contract, as a manifest would declare it.

    The invariants' rules are in its description, where the model reads them; their functions stay in the contract.

    Args:
        contract: the contract.
        fields: what else the entry states, such as `effect_class` and `scopes`, spelt as in a manifest.

    Raises:
        UsageError: the entry is faulty; every fault.
    """
    where = f"contract {shown_name(contract.name)}"
    owned = sorted(OWN_FIELDS & fields.keys())
    if owned:
        raise UsageError(f"{where}: `{owned[0]}` is the contract's own", hint="state it in the contract")
    entry: dict[str, Any] = {
        **fields,
        "name": contract.name,
        "description": described_with_rules(contract),
        "schema": argument_schema(contract.schema, where),
    }
    if contract.config_params:
        entry["config"] = [{"key": one.key, "default": one.default} for one in contract.config_params]
    if contract.state_reads or contract.state_effects:
        try:
            effects = [one.model_dump(exclude_none=True) for one in declared_effects(contract.state_effects)]
        except ValueError as error:
            raise UsageError(f"{where}: state effects: {str(error).splitlines()[0]}") from None
        entry["state"] = {"reads": [one.key for one in contract.state_reads], "effects": effects}
    for invariant in contract.invariants:
        unknown = sorted(set(invariant.corrects or ()) - argument_schemas(entry["schema"]).keys())
        if unknown:
            raise UsageError(
                f"{where}: invariant {shown_name(invariant.id)} corrects {shown_name(unknown[0])}, which is not an "
                "argument of the schema"
            )
    try:
        text = orjson.dumps({"manifest_version": "1", "tools": [entry]})
        return load_manifest(contract.name, text=text).tools[0]
    except FileFaultsError as error:
        raise _refused(where, [(fault.message, fault.hint) for fault in error.faults if not fault.warning]) from None
    except TypeError as error:
        raise UsageError(f"{where}: {error}", hint="a contract's schema and fields are plain JSON") from None


def check_governed(tool: DeclaredTool, rules: ActionRules | None) -> None:
    """Check the entry of a contract together with the governance file's rules for its action.

    Raises:
        UsageError: the two do not go together; every fault.
    """
    findings = [] if rules is None else list(governable_findings(rules, argument_schemas(tool.schema_)))
    stated = tool.risk_tier is not None or (rules is not None and rules.risk_tier is not None)
    findings += entry_findings(effective_tool(tool, rules), tier_stated=stated)
    faults = [(one.message, one.hint) for one in findings if not one.warning]
    if faults:
        raise _refused(f"contract {shown_name(tool.name)}", faults)


def described_with_rules(contract: ToolContract) -> str:
    """Return the contract's description, then each invariant's rule that it does not contain, one a line."""
    lines = [contract.description] if contract.description else []
    lines += [f"- {one.rule}" for one in contract.invariants if one.rule not in contract.description]
    return "\n".join(lines)


def _refused(where: str, faults: list[tuple[str, str | None]]) -> UsageError:
    return UsageError("\n".join(f"{where}: {message}" + (f" ({hint})" if hint else "") for message, hint in faults))
