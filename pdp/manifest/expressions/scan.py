"""Which inputs a CEL expression reads, and how its macros nest: found from the text, without evaluating it.

The CEL library gives neither its syntax tree nor a limit on cost, and its parser overflows the stack on deep nesting.
So the text is scanned here first: operands, calls and macros, without regard to precedence, which neither question
needs. What the scan admits, the CEL library then compiles.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from pdp.errors import PdpError

MAX_LENGTH: Final = 1000
"""Longest expression, in characters."""

MAX_NESTING: Final = 8
"""Deepest nesting of brackets in an expression, calls and macros included."""

MAX_OPERATORS: Final = 40
"""Most operators in an expression."""

MAX_MACROS: Final = 4
"""Most macros in an expression."""

MAX_STEPS: Final = 16
"""Most steps of a path."""

_MACROS: Final = ("all", "exists", "exists_one", "filter", "map")
_FUNCTIONS: Final = ("double", "duration", "has", "int", "size", "string", "timestamp")
_METHODS: Final = ("contains", "endsWith", "size", "startsWith")
_CONSTANTS: Final = ("false", "null", "true")
_BINARY: Final = frozenset(("&&", "||", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "in", "?"))
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<number>(?:0[xX][0-9A-Fa-f]+|[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)[uU]?)
      | (?P<string>"(?:[^"\\\n]|\\[^\n])*"|'(?:[^'\\\n]|\\[^\n])*')
      | (?P<sign>&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]{}])""",
    re.VERBOSE,
)


class ExpressionError(PdpError):
    """An expression of the manifest is not admitted, or its evaluation failed. A call that needs it is rejected."""

    code = "pdp.expression_failed"


@dataclass(slots=True)
class Reading:
    """One place where an expression reads a variable: `steps` is the static path from it, as far as it is static."""

    variable: str
    steps: list[str | int] = field(default_factory=list)


@dataclass(slots=True)
class Macro:
    """A macro over a list: `receiver` gives the list, `variable` takes each element in `body`."""

    kind: str
    receiver: Reading | Macro
    variable: str
    body: Group


@dataclass(slots=True)
class Group:
    """A (sub)expression: what it reads, its macros, and how many operators and literals join them.

    `alone` is the reading that is the whole of the group, if it is nothing else.
    """

    readings: list[Reading] = field(default_factory=list)
    macros: list[Macro] = field(default_factory=list)
    operators: int = 0
    literals: int = 0
    alone: Reading | None = None

    def absorb(self, other: Group) -> None:
        """Take over what a bracketed part reads and does."""
        self.readings += other.readings
        self.macros += other.macros
        self.operators += other.operators
        self.literals += other.literals


def scan(text: str, variables: frozenset[str]) -> Group:
    """Scan an expression over the given variables.

    Raises:
        ExpressionError: too long or too deep, another variable or function, or not CEL as far as the scan sees.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"expression is longer than {MAX_LENGTH} characters", hint="compute the value in the app")
    scanner = _Scanner(text, variables)
    group = scanner.group(dict.fromkeys(variables, True), 0)
    scanner.expect("")
    return group


class _Scanner:
    def __init__(self, text: str, variables: frozenset[str]) -> None:
        self._variables = variables
        self._tokens: list[tuple[str, str, int]] = []
        self._at = 0
        self._macros = 0
        self._operators = 0
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ExpressionError(f"unexpected {text[position]!r} at character {position + 1} of the expression")
            if match.lastgroup != "space":
                self._tokens.append((match.lastgroup or "", match[0], position))
            position = match.end()
        self._tokens.append(("end", "", len(text)))

    def expect(self, sign: str) -> None:
        kind, text, position = self._tokens[self._at]
        if text != sign or (not sign and kind != "end"):
            found = f"`{text}`" if text else "the end"
            wanted = f"`{sign}`" if sign else "an operator or the end"
            raise ExpressionError(f"expected {wanted}, not {found}, at character {position + 1} of the expression")
        self._at += 1

    def _accept(self, *signs: str) -> str:
        kind, text, _ = self._tokens[self._at]
        if kind in ("sign", "name") and text in signs:
            self._at += 1
            return text
        return ""

    def group(self, scope: dict[str, bool], depth: int) -> Group:
        """Scan operands joined by operators. `scope` has the variables, and whether their values are known inputs."""
        if depth > MAX_NESTING:
            raise ExpressionError(
                f"expression nests deeper than {MAX_NESTING} brackets", hint="compute the value in the app"
            )
        group, conditions = Group(), 0
        while True:
            while self._accept("!", "-"):
                self._count_operator(group)
            operand = self._operand(group, scope, depth)
            sign = self._accept(*_BINARY) or (self._accept(":") if conditions else "")
            if not sign:
                break
            conditions += {"?": 1, ":": -1}.get(sign, 0)
            self._count_operator(group)
        if group.operators == 0 and group.literals == 0 and not group.macros and len(group.readings) == 1:
            group.alone = operand if isinstance(operand, Reading) else None
        return group

    def _count_operator(self, group: Group) -> None:
        group.operators += 1
        self._operators += 1
        if self._operators > MAX_OPERATORS:
            raise ExpressionError(
                f"expression has more than {MAX_OPERATORS} operators", hint="compute the value in the app"
            )

    def _operand(self, group: Group, scope: dict[str, bool], depth: int) -> Reading | Macro | None:
        kind, text, position = self._tokens[self._at]
        self._at += 1
        found: Reading | Macro | None = None
        if kind in ("number", "string") or text in _CONSTANTS:
            group.literals += 1 + len(text) // 16
        elif kind == "name":
            if self._accept("("):
                self._known(text, _FUNCTIONS, "function")
                self._arguments(group, scope, depth, ")")
                self._count_operator(group)
            elif text in scope:
                found = Reading(text)
                group.readings.append(found)
            else:
                raise ExpressionError(
                    f"expression reads `{text}`, which is not offered",
                    hint=f"offered here: {', '.join(sorted(self._variables))}",
                )
        elif text == "(":
            group.absorb(self.group(scope, depth + 1))
            self.expect(")")
            group.literals += 1
        elif text in ("[", "{"):
            self._arguments(group, scope, depth, "]" if text == "[" else "}")
            group.literals += 1
        else:
            shown = f"`{text}`" if text else "the end"
            raise ExpressionError(f"expected a value, not {shown}, at character {position + 1} of the expression")
        return self._continued(found, group, scope, depth)

    def _continued(
        self, found: Reading | Macro | None, group: Group, scope: dict[str, bool], depth: int
    ) -> Reading | Macro | None:
        """Scan the members, indices, calls and macros that follow an operand."""
        while sign := self._accept(".", "["):
            if sign == "[":
                kind, text, _ = self._tokens[self._at]
                # The text may end right here, and its end is the last token.
                static = (
                    kind != "end"
                    and self._tokens[self._at + 1][1] == "]"
                    and ((kind == "string" and "\\" not in text) or (kind == "number" and text.isdecimal()))
                )
                if static and isinstance(found, Reading):
                    self._at += 2
                    _step(found, text[1:-1] if kind == "string" else int(text))
                else:
                    group.absorb(self.group(scope, depth + 1))
                    self._count_operator(group)
                    self.expect("]")
                    found = None
                continue
            kind, name, position = self._tokens[self._at]
            if kind != "name":
                raise ExpressionError(f"expected a name after `.` at character {position + 1} of the expression")
            self._at += 1
            if not self._accept("("):
                if isinstance(found, Reading):
                    _step(found, name)
                else:
                    self._count_operator(group)
                    found = None
            elif name in _MACROS:
                found = self._macro(name, found, group, scope, depth)
            else:
                self._known(name, (*_METHODS, *_MACROS), "method")
                self._arguments(group, scope, depth, ")")
                self._count_operator(group)
                found = None
        return found

    def _macro(
        self, kind: str, receiver: Reading | Macro | None, group: Group, scope: dict[str, bool], depth: int
    ) -> Macro:
        self._macros += 1
        if self._macros > MAX_MACROS:
            raise ExpressionError(f"expression has more than {MAX_MACROS} macros", hint="compute the value in the app")
        over_list = isinstance(receiver, Reading) or (
            isinstance(receiver, Macro) and receiver.kind in ("map", "filter")
        )
        if receiver is None or not over_list or (isinstance(receiver, Reading) and not scope[receiver.variable]):
            raise ExpressionError(
                f"macro `{kind}` has to follow a plain path to a list, such as arguments.items",
                hint="what it runs over has to be seen before it runs",
            )
        shape, variable, _ = self._tokens[self._at]
        if shape != "name" or variable in scope or variable in _CONSTANTS:
            raise ExpressionError(f"macro `{kind}` needs a new name for the element, such as `x`, first")
        self._at += 1
        self.expect(",")
        inner = dict(scope)
        inner[variable] = _is_input(receiver)
        body = self.group(inner, depth + 1)
        if kind == "map" and self._accept(","):
            body.absorb(self.group(inner, depth + 1))
        self.expect(")")
        if isinstance(receiver, Macro):
            group.macros.remove(receiver)
        else:
            group.readings.remove(receiver)
        found = Macro(kind, receiver, variable, body)
        group.macros.append(found)
        return found

    def _arguments(self, group: Group, scope: dict[str, bool], depth: int, close: str) -> None:
        while not self._accept(close):
            group.absorb(self.group(scope, depth + 1))
            if not self._accept(",", ":"):
                self.expect(close)
                return

    @staticmethod
    def _known(name: str, offered: tuple[str, ...], what: str) -> None:
        if name not in offered:
            raise ExpressionError(
                f"expression calls {what} `{name}`, which is not offered",
                hint="check text against patterns in the JSON Schema"
                if name == "matches"
                else f"offered: {', '.join(sorted(offered))}",
            )


def _step(reading: Reading, step: str | int) -> None:
    if len(reading.steps) >= MAX_STEPS:
        raise ExpressionError(f"path has more than {MAX_STEPS} steps")
    reading.steps.append(step)


def _is_input(receiver: Reading | Macro) -> bool:
    """Return whether the elements are parts of the inputs, not computed by `map`."""
    while isinstance(receiver, Macro):
        if receiver.kind == "map":
            return False
        receiver = receiver.receiver
    return True
