"""Expressions in manifest fields: `$...` reads `arguments` and `session`, `$$...` is text that starts with `$`.

A plain path such as `$session.facts.markings[0]` needs no library (path.py). All other expressions are CEL (cel.py).
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from pdp.manifest.expressions.path import MISSING, Expression, ExpressionError, JsonPath, check_offered

_MAPPING_VARIABLES: Final = frozenset(("arguments", "session"))


def compile_expression(value: Any) -> Expression:
    """Compile a mapping's value: text, expression, list, object or constant. Raise `ExpressionError` for bad values."""
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
    from pdp.manifest.expressions.cel import CelProgram  # noqa: PLC0415 - not needed for plain paths

    program = CelProgram(text[1:], _MAPPING_VARIABLES)

    def evaluate(inputs: Mapping[str, Any]) -> Any:
        try:
            return program.evaluate(inputs)
        except KeyError as error:
            raise ExpressionError(
                f"{text}: {error} is missing", hint="test first whether the value exists: has(…) ? … : …"
            ) from None

    return Expression(text, evaluate, program.paths)


def _items(value: list[Any]) -> Expression:
    parts = [compile_expression(item) for item in value]

    def evaluate(inputs: Mapping[str, Any]) -> Any:
        items = [part.evaluate(inputs) for part in parts]
        if MISSING in items:
            raise ExpressionError(f"{parts[items.index(MISSING)].text}: is missing, and a list cannot omit items")
        return items

    return Expression(value, evaluate, frozenset().union(*(part.paths for part in parts)))


def _members(value: dict[str, Any]) -> Expression:
    parts = {name: compile_expression(item) for name, item in value.items()}

    def evaluate(inputs: Mapping[str, Any]) -> Any:
        members = {name: part.evaluate(inputs) for name, part in parts.items()}
        return {name: member for name, member in members.items() if member is not MISSING}

    return Expression(value, evaluate, frozenset().union(*(part.paths for part in parts.values())))
