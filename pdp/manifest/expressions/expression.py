"""Expressions in manifest fields: `$…` reads `arguments` and `session`, `$$…` is a literal that begins with `$`.

A plain path such as `$session.facts.markings[0]` is followed without a library (path.py); all else is CEL (cel.py).
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from pdp.manifest.expressions.path import MISSING, Expression, ExpressionError, JsonPath, check_offered

_MAPPING_VARIABLES: Final = frozenset(("arguments", "session"))


def compile_expression(value: Any) -> Expression:
    """Compile a value of a mapping: a string as this module's docstring says, a list or mapping of such, or a constant.

    ExpressionError: an expression is not CEL, beyond its bounds, or reads or calls what is not offered.
    """
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return _members(value)
    if isinstance(value, list):
        return _items(value)
    return Expression(value, lambda _: value)


@lru_cache(maxsize=4096)
def _text(text: str) -> Expression:
    if not text.startswith("$"):
        return Expression(text, lambda _: text)
    if text.startswith("$$"):
        return Expression(text, lambda _: text[1:])
    path = JsonPath.read(text[1:])
    if path is None:
        return _cel(text)
    check_offered(path, _MAPPING_VARIABLES)
    return Expression(text, path.follow, frozenset((path,)))


def _cel(text: str) -> Expression:
    from pdp.manifest.expressions.cel import CelProgram  # noqa: PLC0415 - most manifests need only paths

    program = CelProgram(text[1:], _MAPPING_VARIABLES)

    def evaluate(inputs: Mapping[str, Any]) -> Any:
        try:
            return program.evaluate(inputs)
        except KeyError as error:
            raise ExpressionError(f"{text}: {error} is missing", hint="guard it: has(…) ? … : …") from None

    return Expression(text, evaluate, program.paths)


def _items(value: list[Any]) -> Expression:
    parts = [compile_expression(item) for item in value]

    def evaluate(inputs: Mapping[str, Any]) -> Any:
        items = [part.evaluate(inputs) for part in parts]
        if MISSING in items:
            raise ExpressionError(f"{parts[items.index(MISSING)].text}: is missing, and a list has no gaps")
        return items

    return Expression(value, evaluate, frozenset().union(*(part.paths for part in parts)))


def _members(value: dict[str, Any]) -> Expression:
    """Return the expression of a mapping; a member that is missing is left out."""
    parts = {name: compile_expression(item) for name, item in value.items()}

    def evaluate(inputs: Mapping[str, Any]) -> Any:
        members = {name: part.evaluate(inputs) for name, part in parts.items()}
        return {name: member for name, member in members.items() if member is not MISSING}

    return Expression(value, evaluate, frozenset().union(*(part.paths for part in parts.values())))
