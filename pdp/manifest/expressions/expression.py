"""Expressions in manifest fields: `$…` is CEL over `arguments` and `session`, `$$…` a literal that begins with `$`.

A plain path such as `$session.facts.markings` is followed in Python. Everything else is compiled by the CEL library,
once, after a scan has bounded it (pdp/manifest/expressions/scan.py), and evaluated only when its cost on the inputs is
bounded too (pdp/manifest/expressions/cost.py), since CEL evaluation cannot be interrupted.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

from pdp.documents import nearest
from pdp.manifest.expressions.program import Program, Read, first_line, inputs_of
from pdp.manifest.expressions.scan import ExpressionError, Reading, scan

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "MISSING",
    "SESSION_FIELDS",
    "Check",
    "Expression",
    "ExpressionError",
    "Missing",
    "compile_check",
    "compile_expression",
]


class Missing(Enum):
    """The type of `MISSING`."""

    MISSING = "MISSING"


MISSING: Final[Literal[Missing.MISSING]] = Missing.MISSING
"""What a path gives that leads nowhere: its field is left out."""

SESSION_FIELDS: Final = frozenset(
    (
        "agent",
        "claims",
        "config",
        "facts",
        "idempotency_key",
        "plan",
        "purpose",
        "request_id",
        "run_id",
        "state",
        "time",
    )
)
"""What expressions may read of the session."""

_MAPPING_VARIABLES: Final = frozenset(("arguments", "session"))
_CHECK_VARIABLES: Final = frozenset(("call", "config", "plan", "state"))


class Expression:
    """A value of a mapping, ready to be evaluated for calls. Immutable and safe to share between threads.

    Attributes:
        text: as it stands in the manifest.
        is_path: whether it is a plain path, whose value is a part of the inputs just as it stands there.
        reads: every path that it can read, as far as the path is static; the elements of macros included.
    """

    __slots__ = ("is_path", "reads", "text")

    def __init__(self, text: Any, reads: frozenset[Read] = frozenset(), *, is_path: bool = False) -> None:
        self.text = text
        self.reads = reads
        self.is_path = is_path

    def evaluate(self, arguments: Mapping[str, Any], session: Mapping[str, Any]) -> Any:
        """Return the value for one call: JSON, or `MISSING` when a plain path leads nowhere.

        A key that is absent, or an index beyond the list, is missing. A step into something that is no object or list,
        null included, is an error; so is anything missing inside of a larger expression (guard it with `has`).

        Args:
            arguments: the call's arguments, checked JSON.
            session: the session's fields, those that are not set left out.

        Raises:
            ExpressionError: the evaluation failed, gave no JSON, or would have cost too much.
        """
        raise NotImplementedError


class _Constant(Expression):
    __slots__ = ("_value",)

    def __init__(self, text: Any, value: Any) -> None:
        super().__init__(text)
        self._value = value

    def evaluate(self, arguments: Mapping[str, Any], session: Mapping[str, Any]) -> Any:  # noqa: ARG002
        return self._value


class _Path(Expression):
    __slots__ = ("_of_session", "_steps")

    def __init__(self, text: str, reading: Reading) -> None:
        super().__init__(text, frozenset({(reading.variable, *reading.steps)}), is_path=True)
        self._of_session = reading.variable == "session"
        self._steps = tuple(reading.steps)

    def evaluate(self, arguments: Mapping[str, Any], session: Mapping[str, Any]) -> Any:
        return _follow(session if self._of_session else arguments, self._steps, self.text)


def _follow(value: Any, steps: Read, text: str) -> Any:
    for step in steps:
        if type(step) is int and type(value) is not list:
            raise ExpressionError(f"{text}: [{step}] of something that is not a list")
        try:
            value = value[step]
        except (KeyError, IndexError):
            return MISSING
        except TypeError:
            raise ExpressionError(f"{text}: {step} of something that is not an object") from None
    return value


class _Cel(Expression):
    __slots__ = ("_program",)

    def __init__(self, text: str, program: Program) -> None:
        super().__init__(text, program.reads)
        self._program = program

    def evaluate(self, arguments: Mapping[str, Any], session: Mapping[str, Any]) -> Any:
        try:
            return self._program.run({"arguments": arguments, "session": session})
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
        inner = [*self._items, *(self._members or {}).values()]
        super().__init__(value, frozenset(read for one in inner for read in one.reads))

    def evaluate(self, arguments: Mapping[str, Any], session: Mapping[str, Any]) -> Any:
        if self._members is None:
            items = [item.evaluate(arguments, session) for item in self._items]
            if MISSING in items:
                raise ExpressionError(f"{self._items[items.index(MISSING)].text}: is missing, and a list has no gaps")
            return items
        members = {name: member.evaluate(arguments, session) for name, member in self._members.items()}
        return {name: value for name, value in members.items() if value is not MISSING}


class Check:
    """The condition of an invariant: CEL over `call` (the arguments), `state`, `config` and `plan`."""

    __slots__ = ("_program", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._program = Program(text, scan(text, _CHECK_VARIABLES))

    def holds(self, arguments: Mapping[str, Any], session: Mapping[str, Any]) -> bool:
        """Return whether the condition is true. Over something that is missing it is not.

        Raises:
            ExpressionError: the evaluation failed, or gave something else than a boolean.
        """
        inputs = {name: session.get(name, {}) for name in ("config", "state")}
        try:
            value = self._program.run({"call": arguments, "plan": session.get("plan", []), **inputs})
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
    group = scan(text[1:], _MAPPING_VARIABLES)
    for reading in inputs_of(group, frozenset()):
        if reading.variable != "session":
            continue
        name = reading.steps[0] if reading.steps else None
        if not isinstance(name, str) or name not in SESSION_FIELDS:
            raise ExpressionError(
                f"expression reads `session.{name}`, which is not offered"
                if name is not None
                else "expression reads the whole session",
                hint=(nearest(str(name), SESSION_FIELDS) if name is not None else None)
                or f"offered: {', '.join(sorted(SESSION_FIELDS))}",
            )
    if group.alone is not None:
        return _Path(text, group.alone)
    return _Cel(text, Program(text[1:], group))


def compile_expression(value: Any) -> Expression:
    """Compile a value of a mapping: a string as this module's docstring says, a list or mapping of such, or a constant.

    Raises:
        ExpressionError: an expression is not CEL, too large, or reads or calls what is not offered.
    """
    if isinstance(value, str):
        return _compile_text(value)
    if isinstance(value, dict | list):
        return _Template(value)
    return _Constant(value, value)


@lru_cache(maxsize=1024)
def compile_check(text: str) -> Check:
    """Compile the condition of an invariant; no `$` in front of it.

    Raises:
        ExpressionError: as by `compile_expression`.
    """
    return Check(text)
