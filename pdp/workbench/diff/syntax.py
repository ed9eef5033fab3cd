"""Modules as OPA parses them, in a form in which nothing counts that has no meaning: places, texts, and orders.

The expressions of a body stand for the same in every order: OPA brings them into one in which each variable has a value
before it is needed, and a variable that is declared after it was used is an error. One case is left out of that: a
comprehension or `every` that uses the name of a rule means the rule before a variable of that name is declared, and the
variable after it. Such a body keeps its order.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pdp.errors import UsageError
from pdp.json import canonical
from pdp.workbench.opa.modules import Module, write_modules
from pdp.workbench.opa.tool import OpaTool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PASSED_OVER: Final = frozenset(("location", "annotations", "comments", "index"))
_HEAD: Final = re.compile(r"^(?:default\s+)?([A-Za-z_]\w*)|^import\s+(?:\S+\s+as\s+|(?:[\w]+\.)*)(\w+)", re.MULTILINE)
_UNORDERED: Final = ("set", "object")


@dataclass(frozen=True, slots=True)
class Part:
    """A package, an import or a rule: the line on which it begins, from 1, and what it says."""

    line: int
    says: bytes


def parsed(opa: Path, texts: Mapping[str, str], near: Mapping[str, str]) -> dict[str, tuple[Part, ...]]:
    """Parse modules; those that OPA refuses are left out.

    Args:
        opa: the program.
        texts: the modules by path.
        near: all modules of the bundle: the names of their rules may be those of variables.
    """
    names = {name for text in near.values() for pair in _HEAD.findall(text) for name in pair if name}
    names |= {"input", "data"}
    modules = {path: Module(Path(path), text, path.startswith("custom/")) for path, text in texts.items()}
    found = {}
    with tempfile.TemporaryDirectory(prefix="pdp-diff-") as folder:
        write_modules(modules, Path(folder))
        tool = OpaTool(opa, Path(folder), sources={path: module.file for path, module in modules.items()})
        for path in modules:
            try:
                tree = tool.parse(path)
            except UsageError:
                continue
            parts = (tree.get("package"), *(tree.get("imports") or ()), *(tree.get("rules") or ()))
            found[path] = tuple(Part(_line(each), canonical(_plain(each, names))) for each in parts)
    return found


def _line(part: Any) -> int:
    place = part.get("location") or (part.get("path") or [{}])[0].get("location") or {}
    return int(place.get("row", 0))


def _plain(value: Any, names: set[str]) -> Any:
    if isinstance(value, list):
        return [_plain(each, names) for each in value]
    if not isinstance(value, dict):
        return value
    plain = {key: _plain(each, names) for key, each in value.items() if key not in _PASSED_OVER}
    if plain.get("type") == "var" and str(plain.get("value", "")).startswith("$"):
        # Each `_` is a variable of its own, with a number that its place gives it.
        return {"type": "var", "value": "$"}
    if plain.get("type") in _UNORDERED and isinstance(plain.get("value"), list):
        plain["value"] = sorted(plain["value"], key=canonical)
    body = value.get("body")
    if isinstance(body, list) and not _order_matters(body, names):
        plain["body"] = sorted(plain["body"], key=canonical)
    return plain


def _order_matters(body: list[Any], names: set[str]) -> bool:
    declared = {name for expression in body for name in _declared(expression)} & names
    return any(declared & set(_variables(inner)) for expression in body for inner in _inner(expression))


def _declared(expression: Any) -> Iterator[str]:
    """The variables that an expression assigns to or declares."""
    terms = expression.get("terms") if isinstance(expression, dict) else None
    if isinstance(terms, dict):
        yield from _variables(terms.get("symbols"))
    elif isinstance(terms, list) and len(terms) > 1 and set(_variables(terms[0])) & {"assign"}:
        yield from _variables(terms[1])


def _inner(value: Any) -> Iterator[Any]:
    """The bodies within an expression, with what they make."""
    if isinstance(value, dict):
        if isinstance(value.get("body"), list):
            yield value
        for each in value.values():
            yield from _inner(each)
    elif isinstance(value, list):
        for each in value:
            yield from _inner(each)


def _variables(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if value.get("type") == "var":
            yield str(value.get("value"))
        for each in value.values():
            yield from _variables(each)
    elif isinstance(value, list):
        for each in value:
            yield from _variables(each)
