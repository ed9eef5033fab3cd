"""Expressions in manifest fields: `$…` reads `arguments` and `session`, `$$…` is a literal that begins with `$`.

A plain path such as `$session.facts.markings` is followed in Python; everything else is CEL (cel.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pdp.manifest.expressions.cel import CelProgram, first_line
from pdp.manifest.expressions.path import MISSING, ExpressionError, JsonPath, check_offered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MAPPING_VARIABLES: Final = frozenset(("arguments", "session"))
_CHECK_VARIABLES: Final = frozenset(("call", "config", "plan", "state"))


@dataclass(frozen=True, slots=True)
class Expression:
    """A value of a mapping, ready to be evaluated for calls. Safe to share between threads.

    Attributes:
        text: as it stands in the manifest.
        evaluate: gives the value for a call's arguments (checked JSON) and the session's fields, those that are not set
            left out: JSON, or `MISSING` when a plain path leads nowhere. Anything missing inside of a larger expression
            is an ExpressionError, and so is every other failure: guard it with `has`.
        reads_arguments: whether it reads anything that the model writes.
    """

    text: Any
    evaluate: Callable[[Mapping[str, Any], Mapping[str, Any]], Any]
    reads_arguments: bool = False


def compile_expression(value: Any) -> Expression:
    """Compile a value of a mapping: a string as this module's docstring says, a list or mapping of such, or a constant.

    Raises:
        ExpressionError: an expression is not CEL, beyond its bounds, or reads or calls what is not offered.
    """
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return _members(value)
    if isinstance(value, list):
        return _items(value)
    return Expression(value, lambda _, __: value)


@lru_cache(maxsize=1024)
def compile_check(text: str) -> CelProgram:
    """Compile the check of an invariant, CEL over `call` (the arguments), `state`, `config` and `plan`; without `$`.

    Raises:
        ExpressionError: as by `compile_expression`.
    """
    return CelProgram(text, _CHECK_VARIABLES)


@lru_cache(maxsize=4096)
def _text(text: str) -> Expression:
    if not text.startswith("$"):
        return Expression(text, lambda _, __: text)
    if text.startswith("$$"):
        return Expression(text, lambda _, __: text[1:])
    path = JsonPath.read(text[1:])
    if path is None:
        return _cel(text)
    check_offered(path, _MAPPING_VARIABLES)
    return Expression(
        text,
        lambda arguments, session: path.follow({"arguments": arguments, "session": session}),
        path.variable == "arguments",
    )


def _cel(text: str) -> Expression:
    program = CelProgram(text[1:], _MAPPING_VARIABLES)

    def evaluate(arguments: Mapping[str, Any], session: Mapping[str, Any]) -> Any:
        try:
            return program.evaluate({"arguments": arguments, "session": session})
        except KeyError as error:
            raise ExpressionError(f"{text}: {first_line(error)} is missing", hint="guard it: has(…) ? … : …") from None

    return Expression(text, evaluate, "arguments" in program.variables)


def _items(value: list[Any]) -> Expression:
    parts = [compile_expression(item) for item in value]

    def evaluate(arguments: Mapping[str, Any], session: Mapping[str, Any]) -> Any:
        items = [part.evaluate(arguments, session) for part in parts]
        if MISSING in items:
            raise ExpressionError(f"{parts[items.index(MISSING)].text}: is missing, and a list has no gaps")
        return items

    return Expression(value, evaluate, any(part.reads_arguments for part in parts))


def _members(value: dict[str, Any]) -> Expression:
    """Return the expression of a mapping; a member that is missing is left out."""
    parts = {name: compile_expression(item) for name, item in value.items()}

    def evaluate(arguments: Mapping[str, Any], session: Mapping[str, Any]) -> Any:
        members = {name: part.evaluate(arguments, session) for name, part in parts.items()}
        return {name: member for name, member in members.items() if member is not MISSING}

    return Expression(value, evaluate, any(part.reads_arguments for part in parts.values()))
