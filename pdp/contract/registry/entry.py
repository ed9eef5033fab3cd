"""From a contract in Python to the manifest entry that governs it, checked as an entry of a file is.

Source: tool contract document, "A real example": a contract may write its schema in shorthand, as in
`{"web_search": "Optional[bool] — enable web search for this step"}`, which becomes JSON Schema here.
"""

from __future__ import annotations

import ast
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from pdp.documents import nearest, shown_name
from pdp.errors import FileFaultsError, UsageError
from pdp.json import JsonValueError, canonical, check_json
from pdp.manifest.effective import effective_tool
from pdp.manifest.load import load_manifest
from pdp.manifest.rules.rules import entry_findings, governable_findings
from pdp.manifest.schema.walk import arguments_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pdp.contract.registry.tool_contract import ToolContract
    from pdp.errors import Fault
    from pdp.manifest.findings import Finding
    from pdp.manifest.model import DeclaredTool, Governance

_OWN_FIELDS: Final = frozenset(("name", "schema", "description", "invariants", "config", "state"))
"""The fields of an entry that the contract itself states."""

_NAMES: Final = {
    "str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object",
}  # fmt: skip
_SEPARATOR: Final = re.compile(r"\s+(?:—|–|--?)\s+")  # noqa: RUF001 - an en dash stands there as well
_UNTYPED: Final = ("Any", "any", "object")
_KNOWN: Final = "known: str, int, float, bool, list[T], dict[str, T], Optional[T], T | U, Literal[...]"


def declared_tool(contract: ToolContract, fields: Mapping[str, Any], governance: Governance) -> DeclaredTool:
    """Return the entry of a contract, as a manifest would declare it.

    The invariants' rules are in its description, where the model reads them; their functions stay in the contract.

    Args:
        contract: the contract.
        fields: what else the entry states, such as `effect_class` and `scopes`, spelt as in a manifest.
        governance: its rules for the entry's action are checked together with the entry.

    Raises:
        UsageError: the entry is faulty, or does not go with its rules; every fault.
    """
    where = f"contract {shown_name(contract.name)}"
    owned = sorted(_OWN_FIELDS & fields.keys())
    if owned:
        raise UsageError(f"{where}: `{owned[0]}` is the contract's own", hint="state it in the contract")
    lines = [contract.description] if contract.description else []
    lines += [f"- {item.rule}" for item in contract.invariants if item.rule not in contract.description]
    entry: dict[str, Any] = {
        **fields,
        "name": contract.name,
        "description": "\n".join(lines),
        "schema": argument_schema(contract.schema, where),
    }
    if contract.config_params:
        entry["config"] = [{"key": item.key, "default": item.default} for item in contract.config_params]
    if contract.state_reads or contract.state_effects:
        effects = []
        for effect in contract.state_effects:
            stated = {name: value for name, value in asdict(effect).items() if value is not None}
            effects.append({"type": _type_name(stated.pop("type_hint", None)), **stated})
        entry["state"] = {"reads": [item.key for item in contract.state_reads], "effects": effects}
    for invariant in contract.invariants:
        unknown = sorted(set(invariant.corrects or ()) - arguments_of(entry["schema"]).keys())
        if unknown:
            raise UsageError(
                f"{where}: invariant {shown_name(invariant.id)} corrects {shown_name(unknown[0])}, which is not an "
                "argument of the schema"
            )
    try:
        check_json([item.default for item in contract.config_params], "config")
        text = canonical({"manifest_version": "1", "tools": [entry]})
        tool = load_manifest(contract.name, text=text).tools[0]
    except FileFaultsError as error:
        raise _refused(where, error.faults) from None
    except JsonValueError as error:
        raise UsageError(f"{where}: {error}", hint="a contract's schema and fields are plain JSON") from None
    rules = governance.actions.get(tool.action)
    findings = [] if rules is None else list(governable_findings(rules, arguments_of(tool.schema_)))
    tier_stated = tool.risk_tier is not None or (rules is not None and rules.risk_tier is not None)
    findings += entry_findings(effective_tool(tool, rules), tier_stated=tier_stated)
    if any(not finding.warning for finding in findings):
        raise _refused(where, findings)
    return tool


def _refused(where: str, faults: Iterable[Fault | Finding]) -> UsageError:
    lines = (fault.message + (f" ({fault.hint})" if fault.hint else "") for fault in faults if not fault.warning)
    return UsageError("\n".join(f"{where}: {line}" for line in lines))


def argument_schema(schema: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the JSON Schema of arguments that a contract states in shorthand, `{argument: "TYPE — description"}`.

    TYPE is `str`, `int`, `float`, `bool`, `list[T]`, `dict[str, T]`, `Optional[T]`, `T | U`, `Union[T, U]` or
    `Literal["a", 1]`. An argument whose type admits None may be left out; every other one is required. After the type,
    ` — ` or ` - ` and the description that the model sees.

    Args:
        schema: the shorthand; a JSON Schema of type object is returned as it stands.
        where: what the schema belongs to, for messages.

    Raises:
        UsageError: not a type; the message names the argument.
    """
    if "$ref" in schema or schema.get("type") == "object" or isinstance(schema.get("properties"), dict):
        return dict(schema)
    properties: dict[str, Any] = {}
    required = []
    for name, text in schema.items():
        at = f"{where}: schema of argument {shown_name(name)}"
        if not isinstance(text, str):
            raise UsageError(f"{at}: must be a text such as `str — the query`", hint="or write a whole JSON Schema")
        shown, *described = _SEPARATOR.split(text.strip(), maxsplit=1)
        argument = _type_of(shown, at)
        if "null" not in _types(argument):
            required.append(name)
        if described:
            argument["description"] = described[0].strip()
        properties[name] = argument
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _type_name(hint: Any) -> str:
    """Return what JSON calls a type of Python; what is no such type is refused with the entry."""
    name = getattr(hint, "__name__", str(hint))
    return _NAMES.get(name, name)


def _types(schema: dict[str, Any]) -> list[str]:
    if "anyOf" in schema:
        return [name for part in schema["anyOf"] for name in _types(part)]
    kind = schema.get("type")
    return kind if isinstance(kind, list) else [str(kind)]


def _type_of(text: str, at: str) -> dict[str, Any]:
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(f"{at}: {text!r:.60} is not a type", hint=_KNOWN) from None
    return _compiled(tree, text, at)


def _compiled(node: ast.expr, text: str, at: str) -> dict[str, Any]:
    match node:
        case ast.Constant(value=None):
            return {"type": "null"}
        case ast.Name(id=name) if name in _NAMES:
            return {"type": _NAMES[name]}
        case ast.Name(id=name) if name in _UNTYPED:
            raise UsageError(f"{at}: `{name}` is not a type: anything would pass", hint=_KNOWN)
        case ast.Name(id=name):
            raise UsageError(f"{at}: {name!r:.60} is not a type", hint=nearest(name, _NAMES) or _KNOWN)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _union([_compiled(left, text, at), _compiled(right, text, at)])
        case ast.Subscript(value=ast.Name(id=generic), slice=inner):
            return _generic(generic, inner, text, at)
    raise UsageError(f"{at}: {text!r:.60} is not a type", hint=_KNOWN)


def _generic(generic: str, inner: ast.expr, text: str, at: str) -> dict[str, Any]:
    parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    if generic == "Literal":
        return _literal(parts, text, at)
    if generic == "Union":
        return _union([_compiled(part, text, at) for part in parts])
    match generic, parts:
        case "Optional", [part]:
            return _union([_compiled(part, text, at), {"type": "null"}])
        case (("list" | "List"), [part]):
            return {"type": "array", "items": _compiled(part, text, at)}
        case (("dict" | "Dict"), [ast.Name(id="str"), part]):
            return {"type": "object", "additionalProperties": _compiled(part, text, at)}
    raise UsageError(f"{at}: {text!r:.60} is not a type", hint=_KNOWN)


def _literal(parts: list[ast.expr], text: str, at: str) -> dict[str, Any]:
    values = [part.value for part in parts if isinstance(part, ast.Constant)]
    kinds = {"bool" if isinstance(value, bool) else type(value).__name__ for value in values}
    if len(values) < len(parts) or not kinds <= {"str", "int", "bool"}:
        raise UsageError(f"{at}: {text!r:.60} has to list texts, whole numbers or booleans", hint=_KNOWN)
    names = sorted(_NAMES[kind] for kind in kinds)
    return {"type": names[0] if len(names) == 1 else names, "enum": values}


def _union(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what admits each of the parts: a list of type names where nothing more is said of any."""
    flat = [choice for part in parts for choice in part.get("anyOf", [part])]
    unique: list[dict[str, Any]] = [part for at, part in enumerate(flat) if part not in flat[:at]]
    if len(unique) == 1:
        return unique[0]
    names: list[str] = []
    for part in unique:
        names += [name for name in _types(part) if name not in names]
    bare = [part for part in unique if set(part) == {"type"}]
    detailed = [part for part in unique if set(part) != {"type"}]
    if not detailed:
        return {"type": names}
    # A null beside one type with details joins it: `{"type": ["array", "null"], "items": ...}` reads best to a model.
    if len(detailed) == 1 and _types({"anyOf": bare}) == ["null"] and "enum" not in detailed[0]:
        return {**detailed[0], "type": [*_types(detailed[0]), "null"]}
    return {"anyOf": unique}
