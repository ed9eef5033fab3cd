"""CEL, for what is more than a plain path: compiled once by the library of the extra `cel`, and bounded.

Evaluation cannot be interrupted. So an expression has at most `MAX_LENGTH` characters and one macro (`all`, `exists`,
`exists_one`, `filter`, `map`), and a macro runs over a plain path to a list of at most `MAX_ITEMS` items. What it reads
and joins is counted before, at most `MAX_WORK` values for all expressions over the same `Variables`, and what it gives
has at most `MAX_RESULT` bytes. The library bounds how deep an expression nests. It gets nothing but what stands at
the paths that were counted; what is read in any other way is missing, which fails.
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
"""Each value counts as often as it is named, as a macro repeats it, and as it is joined with others."""

MAX_RESULT: Final = 256 * 1024
# How many values a member counts as, and how many characters as one.
_OF_MEMBER: Final = 4
_CHARACTERS: Final = 512
# What a macro joins for each item becomes a part of the result, which costs more than to read it.
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
# A member that is no method, or where an index begins.
_STEP: Final = re.compile(rf"{_GAP}(?:\.{_GAP}([A-Za-z_]\w*)(?!\w|{_GAP}\()|\[)")
_COMPUTED: Final = re.compile(rf"""[)\]}}'"]{_GAP}(?:\.{_GAP}[A-Za-z_]\w*(?!\w|{_GAP}\()|\[{_GAP}['"])""")
_ASKED: Final = re.compile(rf"""(['"])([^'"\\\n]*)\1{_GAP}\bin\b[\s(]*$""")
_RECEIVER: Final = re.compile(r"(?<![\w.\])])[A-Za-z_][\w.\[\]]*$")
_STRING: Final = re.compile(
    r"""(\b(?:[rR][bB]?|[bB][rR])(?=['"])|\'{3}|"{3})|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|//[^\n]*"""
)


class CelProgram:
    """A CEL expression over the variables that it may read, compiled. Immutable and safe to share between threads.

    `paths` is what it reads, as far as it is written out; of the element of a macro, what it reads of the list's items.

    ExpressionError: not CEL, beyond the bounds, or it reads or calls what is not offered.
    """

    def __init__(self, text: str, variables: frozenset[str]) -> None:
        self.text = text
        if len(text) > MAX_LENGTH:
            raise ExpressionError(
                f"expression is longer than {MAX_LENGTH} characters", hint="compute the value in the app"
            )
        self._compiled = _compiled(text)
        names = self._compiled.references()
        element, self._list = _macro(text, variables)
        for function in names["functions"]:
            if function.isidentifier() and function not in _FUNCTIONS:
                raise ExpressionError(
                    f"expression calls `{function}`, which is not offered",
                    hint="check text against patterns in the JSON Schema"
                    if function == "matches"
                    else f"offered: {', '.join(sorted(_FUNCTIONS))}, and macros",
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
        # Each of several joins copies what those before it made; a macro repeats all but the list that it runs over.
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
        # Steps lead to further steps; what has none is read as a whole.
        self._tree: dict[str, dict[str | int, Any]] = {}
        for path in sorted(self._times, key=lambda path: -len(path.steps)):
            node = self._tree.setdefault(path.variable, {})
            for step in path.steps:
                node = node.setdefault(step, {})
            node.clear()

    def evaluate(self, inputs: Mapping[str, Any]) -> Any:
        """Return the value on these inputs, by the name of the variable.

        KeyError: something is missing. ExpressionError: every other failure.
        """
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
        # The library's panics derive from BaseException alone: they reject an expression, and do not end the process.
        except BaseException as error:  # noqa: BLE001
            raise ExpressionError(f"{self.text}: {_first_line(error)}") from None
        if size > MAX_RESULT:
            raise ExpressionError(f"{self.text}: gives {size} bytes, at most {MAX_RESULT} are admitted")
        return value

    def _check_reads(self, inputs: Mapping[str, Any]) -> None:
        """Check how much it reads and, with a macro, how long the lists are."""
        work = 0
        for path, times in self._times.items():
            try:
                value = path.follow(inputs)
            except ExpressionError:
                continue  # the expression may guard against it, and fails if it does not
            # The library walks objects in a random order: the same call would give different requests.
            if path == self._list and isinstance(value, dict):
                raise ExpressionError(f"macro over `{path}`, which is an object", hint="macros run over lists")
            if self._list is not None and isinstance(value, list) and len(value) > MAX_ITEMS:
                raise ExpressionError(
                    f"`{path}` has {len(value)} items, and an expression with a macro reads at most {MAX_ITEMS}",
                    hint="bound the list with `maxItems` in the schema",
                )
            work += times * _size(value, MAX_WORK // times)
        if isinstance(inputs, Variables):
            inputs.work += work
            work = inputs.work
        if work > MAX_WORK:
            raise ExpressionError(
                f"{self.text}: reads and joins more than {MAX_WORK} values",
                hint="bound its lists and texts in the schema, or compute the value in the app",
            )


@lru_cache(maxsize=1024)
def compile_check(text: str) -> CelProgram:
    """Compile the check of an invariant, CEL over `call` (the arguments), `state`, `config` and `plan`; without `$`.

    ExpressionError: as of `CelProgram`.
    """
    return CelProgram(text, _CHECK_VARIABLES)


def _paths(text: str) -> Iterator[JsonPath]:
    """Yield every path of an expression, of its own names as well; an index that is computed is `ANY`.

    ExpressionError: it reads a member of something computed, which nobody can hold against a schema.
    """
    bare = rest = _STRING.sub(_blank, text)
    for beginning in _BEGINNING.finditer(bare):
        if bare[: beginning.start()].rstrip().endswith("."):
            continue  # a member, behind a blank
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
            f"expression reads a member of something computed (at character {computed.start() + 1})",
            hint="write the path out: arguments.a.b, and each side of a choice by itself",
        )


def _blank(match: re.Match[str]) -> str:
    """Return a string or a comment without its content, in the same length."""
    if match[1]:
        raise ExpressionError(
            f"expression has a raw or triple-quoted string (at character {match.start() + 1})",
            hint="write it in plain quotes: what such a string hides is not seen",
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
    """Return the steps up to the first whose name is computed, or that is none of the first so many items.

    At each look at an item, the library copies the list up to there.
    """
    return tuple(
        takewhile(lambda step: ANY < step < items if isinstance(step, int) else not isinstance(step, Contained), steps)
    )


def _part(value: Any, tree: Mapping[str | int, Any]) -> Any:
    """Return what stands in a value at the paths of a tree; a step that its type does not have leads nowhere."""
    if not tree:
        return value
    if isinstance(value, dict):
        return {step: _part(value[step], inner) for step, inner in tree.items() if step in value}
    if isinstance(value, list):
        items = value[: 1 + max((step for step in tree if isinstance(step, int)), default=-1)]
        return [_part(item, tree[at]) if at in tree else None for at, item in enumerate(items)]
    return value


def _size(value: Any, most: int) -> int:
    """Return how many values a value counts as; of one with more than `most`, some number above it."""
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
            import cel  # noqa: PLC0415 - a quarter of a second, and most manifests need only paths
    except MissingExtraError as error:
        raise ExpressionError(f"expression is more than a plain path: {error.message}") from None
    try:
        return cel.compile(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a panic of the library, as above
        match = _PARSER_ERROR.search(str(error))
        problem = f"{match[2][:_MAX_MESSAGE]} (at character {match[1]})" if match else _first_line(error)
        raise ExpressionError(f"not CEL: {problem}") from None


def _macro(text: str, variables: frozenset[str]) -> tuple[str | None, JsonPath | None]:
    """Return the name that the macro of an expression gives to an element, and what it runs over.

    Text in strings counts as well: what looks like a second macro is refused, and never overlooked.
    """
    macros = list(_MACRO.finditer(text))
    if not macros:
        return None, None
    if len(macros) > 1:
        raise ExpressionError("expression has more than one macro", hint="compute the value in the app")
    kind, element = macros[0].groups()
    if element in variables or not element:
        raise ExpressionError(f"macro `{kind}` needs a new name for the element, such as `x`, first")
    receiver = _RECEIVER.search(text[: macros[0].start()].rstrip())
    path = JsonPath.read(receiver[0]) if receiver else None
    if path is None or path.variable not in variables:
        raise ExpressionError(
            f"macro `{kind}` has to follow a plain path to a list, such as arguments.items",
            hint="the length of the list is checked before the macro runs",
        )
    return element, path


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:_MAX_MESSAGE]
