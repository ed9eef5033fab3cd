"""Expressions in manifest fields: `$…` reads `arguments` and `session`, `$$…` is a literal that begins with `$`.

A plain path such as `$session.facts.markings` is followed in Python; everything else is CEL (cel.py).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pdp.manifest.expressions.cel import CelProgram, first_line
from pdp.manifest.expressions.path import MISSING, ExpressionError, JsonPath, check_offered

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAPPING_VARIABLES: Final = frozenset(("arguments", "session"))
_CHECK_VARIABLES: Final = frozenset(("call", "config", "plan", "state"))


class Expression:
    """A value of a mapping, ready to be evaluated for calls. Immutable and safe to share between threads.

    Attributes:
        text: as it stands in the manifest.
        reads_arguments: whether it reads anything that the model writes.
    """

    __slots__ = ("reads_arguments", "text")

    def __init__(self, text: Any, *, reads_arguments: bool = False) -> None:
        self.text = text
        self.reads_arguments = reads_arguments

    def evaluate(self, arguments: Mapping[str, Any], session: Mapping[str, Any]) -> Any:
        """Return the value for one call: JSON, or `MISSING` when a plain path leads nowhere.

        Anything missing inside of a larger expression is an error: guard it with `has`.

        Args:
            arguments: the call's arguments, checked JSON.
            session: the session's fields, those that are not set left out.

        Raises:
            ExpressionError: the evaluation failed, or gave no JSON.
        """
        raise NotImplementedError


class _Constant(Expression):
    __slots__ = ("_value",)

    def __init__(self, text: Any, value: Any) -> None:
        super().__init__(text)
        self._value = value

    def evaluate(self, arguments: Mapping[str, Any], session: Mapping[str, Any]) -> Any:  # noqa: ARG002
        return self._value


class _PathExpression(Expression):
    __slots__ = ("_path",)

    def __init__(self, text: str, path: JsonPath) -> None:
        check_offered(path, _MAPPING_VARIABLES)
        super().__init__(text, reads_arguments=path.variable == "arguments")
        self._path = path

    def evaluate(self, arguments: Mapping[str, Any], session: Mapping[str, Any]) -> Any:
        return self._path.follow({"arguments": arguments, "session": session})


class _CelExpression(Expression):
    __slots__ = ("_program",)

    def __init__(self, text: str) -> None:
        self._program = CelProgram(text[1:], _MAPPING_VARIABLES)
        super().__init__(text, reads_arguments="arguments" in self._program.variables)

    def evaluate(self, arguments: Mapping[str, Any], session: Mapping[str, Any]) -> Any:
        try:
            return self._program.evaluate({"arguments": arguments, "session": session})
        except KeyError as error:
            raise ExpressionError(
                f"{self.text}: {first_line(error)} is missing", hint="guard it: has(…) ? … : …"
            ) from None


class _Template(Expression):
    """A list or mapping with expressions in it. A member of a mapping that is missing is left out."""

    __slots__ = ("_items", "_members")

    def __init__(self, value: dict[str, Any] | list[Any]) -> None:
        self._members: dict[str, Expression] | None = None
        self._items: list[Expression] = []
        if isinstance(value, dict):
            self._members = {name: compile_expression(item) for name, item in value.items()}
        else:
            self._items = [compile_expression(item) for item in value]
        parts = [*self._items, *(self._members or {}).values()]
        super().__init__(value, reads_arguments=any(part.reads_arguments for part in parts))

    def evaluate(self, arguments: Mapping[str, Any], session: Mapping[str, Any]) -> Any:
        if self._members is None:
            items = [item.evaluate(arguments, session) for item in self._items]
            if MISSING in items:
                raise ExpressionError(f"{self._items[items.index(MISSING)].text}: is missing, and a list has no gaps")
            return items
        members = {name: member.evaluate(arguments, session) for name, member in self._members.items()}
        return {name: value for name, value in members.items() if value is not MISSING}


class Condition:
    """The condition of an invariant: CEL over `call` (the arguments), `state`, `config` and `plan`.

    Attributes:
        text: the condition.
        reads_plan: whether it reads the plan.
    """

    __slots__ = ("_program", "reads_plan", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._program = CelProgram(text, _CHECK_VARIABLES)
        self.reads_plan = "plan" in self._program.variables

    def holds(self, arguments: Mapping[str, Any], session: Mapping[str, Any]) -> bool:
        """Return whether the condition is true. Over something that is missing it is not.

        Raises:
            ExpressionError: the evaluation failed, or gave something else than a boolean.
        """
        inputs = {name: session.get(name, {}) for name in ("config", "state")}
        try:
            value = self._program.evaluate({"call": arguments, "plan": session.get("plan", []), **inputs})
        except KeyError:
            return False
        if value is not True and value is not False:
            raise ExpressionError(f"{self.text}: gives {type(value).__name__}, not true or false")
        return value


@lru_cache(maxsize=4096)
def _compile_text(text: str) -> Expression:
    if not text.startswith("$"):
        return _Constant(text, text)
    if text.startswith("$$"):
        return _Constant(text, text[1:])
    path = JsonPath.read(text[1:])
    return _CelExpression(text) if path is None else _PathExpression(text, path)


def compile_expression(value: Any) -> Expression:
    """Compile a value of a mapping: a string as this module's docstring says, a list or mapping of such, or a constant.

    Raises:
        ExpressionError: an expression is not CEL, beyond its bounds, or reads or calls what is not offered.
    """
    if isinstance(value, str):
        return _compile_text(value)
    if isinstance(value, dict | list):
        return _Template(value)
    return _Constant(value, value)


@lru_cache(maxsize=1024)
def compile_check(text: str) -> Condition:
    """Compile the condition of an invariant; no `$` in front of it.

    Raises:
        ExpressionError: as by `compile_expression`.
    """
    return Condition(text)
