"""Converts a Python contract to a manifest entry, which gets the same checks as an entry in a manifest file.

Source: tool contract document, "A real example".
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, Literal, Optional, Union

from pydantic import PydanticUserError, TypeAdapter

from pdp.contract.registry.tool_contract import ToolContract
from pdp.documents import shown_name
from pdp.errors import FileFaultsError, UsageError
from pdp.json import JsonValueError, canonical, check_json
from pdp.manifest.load import load_both
from pdp.manifest.model import DeclaredTool, Governance
from pdp.manifest.schema.walk import argument_schemas, walk

_OWN_FIELDS: Final = frozenset(("name", "schema", "description", "invariants", "config", "state"))
"""Fields of a manifest entry that come from the contract, so that they cannot be set in another way."""

_NAMES: Final[dict[Any, str]] = {
    str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object",
}  # fmt: skip
_GENERICS: Final = {kind.__name__: kind for kind in _NAMES} | {
    "Dict": dict, "List": list, "Literal": Literal, "Optional": Optional, "Union": Union,
}  # fmt: skip
_SYNTAX: Final = (ast.Expression, ast.Name, ast.Load, ast.Subscript, ast.Tuple, ast.BinOp, ast.BitOr)
# The types that must precede the last type in brackets: none for lists, `str` for dicts. pydantic would accept others,
# such as dict keys that are not texts.
_BEFORE_LAST: Final[dict[str, list[str]]] = {"list": [], "List": [], "dict": ["str"], "Dict": ["str"]}
_SEPARATOR: Final = re.compile(r"\s+(?:—|–|--?)\s+")  # noqa: RUF001 - accepts an en dash as well
_KNOWN: Final = (
    "known: str, int, float, bool, list[T], dict[str, T], Optional[T], T | U, Literal of texts, integers or booleans"
)


def declared_tool(contract: ToolContract, fields: Mapping[str, Any], governance: Governance) -> DeclaredTool:
    """Return the manifest entry of a contract, checked together with the governance file's rules for its action.

    The entry's description includes the rules of the invariants, so that the model reads them. `fields` are the other
    fields of the entry, with the names that a manifest uses. Raises UsageError, which lists every fault.
    """
    where = f"contract {shown_name(contract.name)}"
    owned = sorted(_OWN_FIELDS & fields.keys())
    if owned:
        raise UsageError(
            f"{where}: `{owned[0]}` is a field of the contract itself", hint="set this field in the contract"
        )
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
            hint = stated.pop("type_hint", None)
            # A name that is not a JSON type is rejected when the entry is loaded.
            effects.append({"type": _NAMES.get(hint, getattr(hint, "__name__", str(hint))), **stated})
        entry["state"] = {"reads": [item.key for item in contract.state_reads], "effects": effects}
    for invariant in contract.invariants:
        unknown = sorted(set(invariant.corrects or ()) - argument_schemas(entry["schema"]).keys())
        if unknown:
            raise UsageError(
                f"{where}: invariant {shown_name(invariant.id)} corrects {shown_name(unknown[0])}, which is not an "
                "argument of the schema"
            )
    try:
        check_json([item.default for item in contract.config_params], "config")
        manifest, _ = load_both(
            contract.name,
            "governance",
            manifest_text=canonical({"manifest_version": "1", "tools": [entry]}),
            governance_text=canonical(governance.model_dump(mode="json", by_alias=True, exclude_unset=True)),
        )
    except FileFaultsError as error:
        lines = [fault.message + (f" ({fault.hint})" if fault.hint else "") for fault in error.faults]
        raise UsageError("\n".join(f"{where}: {line}" for line in lines)) from None
    except JsonValueError as error:
        raise UsageError(f"{where}: {error}", hint="use only plain JSON in a contract") from None
    return manifest.tools[0]


def argument_schema(schema: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the JSON Schema of arguments in shorthand, `{argument: "TYPE — description"}`.

    TYPE is `str`, `int`, `float`, `bool`, `list[T]`, `dict[str, T]`, `Optional[T]`, `T | U`, `Union[T, U]` or
    `Literal["a", 1]`. An argument is required unless its type admits None. A JSON Schema of type object is returned
    unchanged. If a text is not a type, raises UsageError with a message that begins with `where`.
    """
    if "$ref" in schema or schema.get("type") == "object" or isinstance(schema.get("properties"), dict):
        return dict(schema)
    properties: dict[str, Any] = {}
    required = []
    for name, text in schema.items():
        at = f"{where}: schema of argument {shown_name(name)}"
        if not isinstance(text, str):
            raise UsageError(
                f"{at}: must be a text such as `str — the query`",
                hint="write such a text for each argument, or a JSON Schema for all arguments",
            )
        shown, *described = _SEPARATOR.split(text.strip(), maxsplit=1)
        argument = _type_of(shown, at)
        if "null" not in (walk(argument).kinds or ()):
            required.append(name)
        if described:
            argument["description"] = described[0].strip()
        properties[name] = argument
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _type_of(text: str, at: str) -> dict[str, Any]:
    try:
        tree = ast.parse(text, mode="eval")
        _check_plain(tree)
        hint = eval(compile(tree, at, "eval"), {"__builtins__": {}}, dict(_GENERICS))  # noqa: S307 - type names only
        return TypeAdapter(hint).json_schema()
    except (SyntaxError, ValueError, RecursionError, MemoryError, NameError, TypeError, PydanticUserError):
        raise UsageError(f"{at}: {text!r:.60} is not a type", hint=_KNOWN) from None


def _check_plain(node: ast.AST, *, literal: bool = False) -> None:
    """Raise TypeError if a type has code other than names and `Literal` constants, because pydantic would run it."""
    if isinstance(node, ast.Constant) and (node.value is None or (literal and isinstance(node.value, str | int))):
        return
    if not isinstance(node, _SYNTAX):
        raise TypeError
    if isinstance(node, ast.Subscript):
        generic = ast.unparse(node.value)
        types = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        before_last = [ast.unparse(part) for part in types[:-1]]
        if not types or before_last != _BEFORE_LAST.get(generic, before_last):
            raise TypeError
        literal = literal or generic == "Literal"
    for part in ast.iter_child_nodes(node):
        _check_plain(part, literal=literal)
