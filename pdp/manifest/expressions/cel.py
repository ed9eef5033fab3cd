"""CEL expressions with fixed limits, compiled once by the library of the extra `cel`.

An evaluation cannot be interrupted, so its cost is limited in advance. The limits are the length of the expression, one
macro per expression (over a list at a plain path), the number of values that all expressions of a call read or join,
and the size of the result. The library gets only the values that were counted, so every other path counts as missing.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import takewhile
from typing import Any, Final

import orjson

from pdp.errors import MissingExtraError
from pdp.installed import extra
from pdp.json import JsonValueError, check_json
from pdp.manifest.expressions.path import ANY, Contained, ExpressionError, JsonPath, Variables, check_offered

MAX_LENGTH: Final = 1000
MAX_ITEMS: Final = 100
MAX_WORK: Final = 40_000
"""The maximum number of values read. A value counts once per mention, per repetition by a macro, and per join."""

MAX_RESULT: Final = 256 * 1024
# The cost of reading a member of an object, in values, and the number of characters that cost as much as one value.
_OF_MEMBER: Final = 4
_CHARACTERS: Final = 512
# Items that a macro joins become part of the result, so they cost more than items that are only read.
_OF_JOINED_ITEM: Final = 8
_FUNCTIONS: Final = frozenset(
    ("contains", "double", "duration", "endsWith", "int", "size", "startsWith", "string", "timestamp")
)
_CHECK_VARIABLES: Final = frozenset(("call", "config", "plan", "state"))
_MAX_MESSAGE: Final = 200
_PARSER_ERROR: Final = re.compile(r"<input>:\d+:(\d+): (?:Syntax error: )?(.*?)(?: expecting .*)?$", re.MULTILINE)
_GAP: Final = r"(?:\s|//[^\n]*\n)*"
_MACRO: Final = re.compile(rf"\.{_GAP}(all|exists|existsOne|exists_one|filter|map){_GAP}\({_GAP}(\w*)")
_BEGINNING: Final = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
# Either a member that is not a method, or the bracket that starts an index.
_STEP: Final = re.compile(rf"{_GAP}(?:\.{_GAP}([A-Za-z_]\w*)(?!\w|{_GAP}\()|\[)")
_COMPUTED: Final = re.compile(rf"""[)\]}}'"]{_GAP}(?:\.{_GAP}[A-Za-z_]\w*(?!\w|{_GAP}\()|\[{_GAP}['"])""")
_ASKED: Final = re.compile(rf"""(['"])([^'"\\\n]*)\1{_GAP}\bin\b[\s(]*$""")
_RECEIVER: Final = re.compile(r"(?<![\w.\])])[A-Za-z_][\w.\[\]]*$")
_STRING: Final = re.compile(
    r"""(\b(?:[rR][bB]?|[bB][rR])(?=['"])|\'{3}|"{3})|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|//[^\n]*"""
)


class CelProgram:
    """An immutable compiled CEL expression, with the `paths` that it reads. Invalid CEL raises `ExpressionError`."""

    def __init__(self, text: str, variables: frozenset[str]) -> None:
        self.text = text
        if len(text) > MAX_LENGTH:
            raise ExpressionError(
                f"expression is longer than {MAX_LENGTH} characters", hint="compute the value in the application"
            )
        self._compiled = _compiled(text)
        names = self._compiled.references()
        element, self._list = _macro(text, variables)
        for function in names["functions"]:
            if function.isidentifier() and function not in _FUNCTIONS:
                raise ExpressionError(
                    f"expression calls `{function}`, which is not available",
                    hint="use `pattern` in the JSON Schema instead"
                    if function == "matches"
                    else f"available: {', '.join(sorted(_FUNCTIONS))}, and macros",
                )
        self.variables = frozenset(names["variables"]) - {element}
        for name in sorted(self.variables - variables):
            check_offered(JsonPath(name), variables)
        starts = {name: JsonPath(name) for name in self.variables}
        if element is not None and self._list is not None:
            starts[element] = JsonPath(self._list.variable, (*self._list.steps, 0))
        read = [path for path in _paths(text) if path.variable in starts]
        self.paths = frozenset(
            JsonPath(starts[path.variable].variable, (*starts[path.variable].steps, *path.steps)) for path in read
        )
        # The cost is multiplied: each join copies the result of earlier joins, and a macro repeats everything except
        # its list.
        joins = 1 + text.count("+") // 2
        repeated = joins * MAX_ITEMS * (_OF_JOINED_ITEM if "+" in text else 1)
        self._times: Counter[JsonPath] = Counter()
        for path in read:
            of_list = self._list is None or path.variable == element or path == self._list
            over = self._list if self._list is not None and path.variable == element else path
            steps = _followed(over.steps, sys.maxsize if self._list is None else MAX_ITEMS)
            self._times[JsonPath(over.variable, steps)] += joins if of_list else repeated
        for path in sorted(self._times, key=str):
            check_offered(path, variables)
        # A tree node without steps means that the expression reads the whole value.
        self._tree: dict[str, dict[str | int, Any]] = {}
        for path in sorted(self._times, key=lambda path: -len(path.steps)):
            node = self._tree.setdefault(path.variable, {})
            for step in path.steps:
                node = node.setdefault(step, {})
            node.clear()

    def evaluate(self, inputs: Mapping[str, Any]) -> Any:
        """Return the expression's result. Raise KeyError for a missing value, `ExpressionError` for other failures."""
        self._check_reads(inputs)
        try:
            parts = {variable: _part(inputs[variable], tree) for variable, tree in self._tree.items()}
            value = self._compiled.execute(parts)
            check_json(value, depth=2)
            size = len(orjson.dumps(value))
        except (KeyError, KeyboardInterrupt, SystemExit):
            raise
        except JsonValueError as error:
            raise ExpressionError(f"{self.text}: result is not JSON: {error}") from None
        # Panics of the library derive from BaseException. They must make the expression fail, not the process.
        except BaseException as error:  # noqa: BLE001
            raise ExpressionError(f"{self.text}: {_first_line(error)}") from None
        if size > MAX_RESULT:
            raise ExpressionError(f"{self.text}: the result has {size} bytes, but at most {MAX_RESULT} are allowed")
        return value

    def _check_reads(self, inputs: Mapping[str, Any]) -> None:
        work = 0
        for path, times in self._times.items():
            try:
                value = path.follow(inputs)
            except ExpressionError:
                continue  # The expression may test for this case. If not, its evaluation fails.
            # The library iterates objects in random order, so a macro over an object could give different requests for
            # the same arguments.
            if path == self._list and isinstance(value, dict):
                raise ExpressionError(
                    f"the macro runs over `{path}`, which is an object", hint="use macros only over lists"
                )
            if self._list is not None and isinstance(value, list) and len(value) > MAX_ITEMS:
                raise ExpressionError(
                    f"`{path}` has {len(value)} items, and an expression with a macro reads at most {MAX_ITEMS}",
                    hint="limit the list with `maxItems` in the schema",
                )
            work += times * _size(value, MAX_WORK // times)
        if isinstance(inputs, Variables):
            inputs.work += work
            work = inputs.work
        if work > MAX_WORK:
            raise ExpressionError(
                f"{self.text}: reads and joins more than {MAX_WORK} values",
                hint="limit its lists and texts in the schema, or compute the value in the application",
            )


@lru_cache(maxsize=1024)
def compile_check(text: str) -> CelProgram:
    """Compile the `check` of an invariant: CEL over the variables `call` (arguments), `state`, `config` and `plan`."""
    return CelProgram(text, _CHECK_VARIABLES)


def _paths(text: str) -> Iterator[JsonPath]:
    """Yield the paths in an expression, with `ANY` for computed indices. Raise `ExpressionError` for `f(x).member`."""
    bare = rest = _STRING.sub(_blank, text)
    for beginning in _BEGINNING.finditer(bare):
        if bare[: beginning.start()].rstrip().endswith("."):
            continue  # A name after a dot is a member and not the start of a path.
        steps: list[str | int] = []
        end = beginning.end()
        while step := _STEP.match(bare, end):
            end = step.end()
            if step[1] is None:
                index, end = text[end : _closing(bare, end)].strip(), _closing(bare, end) + 1
                literal = JsonPath.read(f"x[{index}]")
                steps.append(literal.steps[0] if literal else ANY)
            else:
                steps.append(step[1])
        rest = rest[: beginning.start()] + "x" * (end - beginning.start()) + rest[end:]
        asked = _ASKED.search(text, 0, beginning.start())
        yield JsonPath(beginning[0], (*steps, Contained(asked[2])) if asked else tuple(steps))
    computed = _COMPUTED.search(rest)
    if computed is not None:
        raise ExpressionError(
            f"expression reads a member of a computed value (at character {computed.start() + 1})",
            hint="write the full path, such as arguments.a.b, for each side of a condition",
        )


def _blank(match: re.Match[str]) -> str:
    if match[1]:
        raise ExpressionError(
            f"expression has a raw or triple-quoted string (at character {match.start() + 1})",
            hint="write it in plain quotes",
        )
    edge = " " if match[0][0] == "/" else match[0][0]
    return edge + " " * (len(match[0]) - 2) + edge


def _closing(text: str, start: int) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "[") - (text[at] == "]")
        if depth < 0:
            return at
    return len(text)


def _followed(steps: tuple[str | int, ...], items: int) -> tuple[str | int, ...]:
    """Cut a path at its first computed step or large index, because the library copies a list up to the read item."""
    return tuple(
        takewhile(lambda step: ANY < step < items if isinstance(step, int) else not isinstance(step, Contained), steps)
    )


def _part(value: Any, tree: Mapping[str | int, Any]) -> Any:
    """Return a copy of `value` with only the paths in `tree`. Steps that do not fit the value's type are ignored."""
    if not tree:
        return value
    if isinstance(value, dict):
        return {step: _part(value[step], inner) for step, inner in tree.items() if step in value}
    if isinstance(value, list):
        items = value[: 1 + max((step for step in tree if isinstance(step, int)), default=-1)]
        return [_part(item, tree[at]) if at in tree else None for at, item in enumerate(items)]
    return value


def _size(value: Any, most: int) -> int:
    """Return the cost of reading a value, counted in plain values. Counting stops soon after it exceeds `most`."""
    if isinstance(value, str):
        return 1 + len(value) // _CHARACTERS
    size = 1
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        size += (_OF_MEMBER if isinstance(value, dict) else 0) * len(value)
        for item in items:
            if size > most:
                break
            size += _size(item, most - size)
    return size


def _compiled(text: str) -> Any:
    try:
        with extra("cel"):
            import cel  # noqa: PLC0415 - takes 0.25 s, not needed for plain paths
    except MissingExtraError as error:
        raise ExpressionError(f"expression is more than a plain path: {error.message}") from None
    try:
        return cel.compile(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - panics derive from BaseException
        match = _PARSER_ERROR.search(str(error))
        problem = f"{match[2][:_MAX_MESSAGE]} (at character {match[1]})" if match else _first_line(error)
        raise ExpressionError(f"not CEL: {problem}") from None


def _macro(text: str, variables: frozenset[str]) -> tuple[str | None, JsonPath | None]:
    """Return the macro's element name and list path; (None, None) without a macro. Macros in strings count as well."""
    macros = list(_MACRO.finditer(text))
    if not macros:
        return None, None
    if len(macros) > 1:
        raise ExpressionError("expression has more than one macro", hint="compute the value in the application")
    kind, element = macros[0].groups()
    if element in variables or not element:
        raise ExpressionError(f"macro `{kind}` needs a new element name as first argument, such as `x`")
    receiver = _RECEIVER.search(text[: macros[0].start()].rstrip())
    path = JsonPath.read(receiver[0]) if receiver else None
    if path is None or path.variable not in variables:
        raise ExpressionError(
            f"macro `{kind}` has to follow a plain path to a list, such as arguments.items",
            hint="write the path to the list before the macro",
        )
    return element, path


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:_MAX_MESSAGE]
