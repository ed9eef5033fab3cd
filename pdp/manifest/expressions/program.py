"""Run an expression with the CEL library: bounded before, checked after."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pdp.json import JsonValueError, check_json
from pdp.manifest.expressions.cost import check_cost
from pdp.manifest.expressions.scan import ExpressionError, Group, Macro, Reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAX_MESSAGE: Final = 200
_PARSER_ERROR: Final = re.compile(r"<input>:\d+:(\d+): (.*)")

Read = tuple[str | int, ...]
"""A path that an expression reads, the variable first: `("session", "facts", "markings")`."""


class Program:
    """A scanned expression, compiled by the CEL library."""

    def __init__(self, text: str, group: Group) -> None:
        import cel  # noqa: PLC0415  # a quarter of a second, and most manifests need only paths

        self._text = text
        self._group = group
        self.reads = frozenset((reading.variable, *reading.steps) for reading in inputs_of(group, frozenset()))
        self._needs = _tree(self.reads)
        try:
            self._compiled = cel.compile(text)
        except (KeyboardInterrupt, SystemExit):
            raise
        # The library's panics derive from BaseException alone: they reject an expression, and do not end the process.
        except BaseException as error:  # noqa: BLE001
            raise ExpressionError(f"not CEL: {_parser_says(error)}") from None

    def run(self, inputs: Mapping[str, Any]) -> Any:
        """Return the value on these inputs.

        Raises:
            KeyError: something is missing.
            ExpressionError: every other failure.
        """
        needed = _pruned(inputs, self._needs)
        check_cost(self._group, needed)
        try:
            value = self._compiled.execute(needed)
            check_json(value, depth=2)
        except KeyError:
            raise
        except JsonValueError as error:
            raise ExpressionError(f"{self._text}: gives no JSON: {error}") from None
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001
            raise ExpressionError(f"{self._text}: {first_line(error)}") from None
        return value


def _parser_says(error: BaseException) -> str:
    found = _PARSER_ERROR.search(str(error))
    return f"{found[2][:_MAX_MESSAGE]} (at character {found[1]})" if found else first_line(error)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, shortened."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:_MAX_MESSAGE]


def inputs_of(group: Group, bound: frozenset[str]) -> Iterator[Reading]:
    """Yield the readings of inputs; what a macro's variable reads stands inside of its receiver."""
    yield from (reading for reading in group.readings if reading.variable not in bound)
    for macro in group.macros:
        source: Reading | Macro = macro
        while isinstance(source, Macro):
            yield from inputs_of(source.body, bound | {source.variable})
            source = source.receiver
        if source.variable not in bound:
            yield source


def _tree(reads: frozenset[Read]) -> dict[str, Any]:
    """Return the paths as nested dicts; None where all of a value is needed."""
    tree: dict[str, Any] = {}
    for read in sorted(reads, key=len):
        node: dict[str, Any] = tree
        steps = [step for step in read if isinstance(step, str)]
        cut = next((at for at, step in enumerate(read) if not isinstance(step, str)), len(steps))
        for at, step in enumerate(steps[:cut]):
            if step in node and node[step] is None:
                break
            if at == cut - 1:
                node[step] = None
            else:
                node = node.setdefault(step, {})
    return tree


def _pruned(value: Any, tree: dict[str, Any] | None) -> Any:
    if tree is None or not hasattr(value, "keys"):
        return value
    return {name: _pruned(value[name], inner) for name, inner in tree.items() if name in value}
