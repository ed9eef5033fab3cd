"""What a tool's function gets beside its arguments: the state that it reads and its config, by parameter names.

Source: tool contract document, `ToolStateRead`: the state is handed in, and the function needs no plumbing of its own.
None of these parameters is an argument of the schema, so that a model can fill in none of them.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.documents import nearest
from pdp.errors import UsageError
from pdp.manifest.schema.walk import arguments_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdp.manifest.model import DeclaredTool

_WHOLE: Final = ("state", "config")
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Inputs:
    """The parameters of one function that are filled from state and config.

    A parameter that is no argument of the schema is, by its name: `state`, all that the entry reads of the state;
    `config`, the whole resolved config; or one key of either. A key that is not there is None, or the parameter's
    default.

    Args:
        function: the tool's function.
        entry: the tool's entry.

    Raises:
        UsageError: a parameter is none of these and has no default, or is a key of both.
    """

    __slots__ = ("_config", "_reads", "_sources", "names")

    def __init__(self, function: Callable[..., Any], entry: DeclaredTool) -> None:
        self._reads = entry.state.reads if entry.state else ()
        self._config = tuple(param.key for param in entry.config)
        self._sources: list[tuple[str, str, bool]] = []
        arguments = arguments_of(entry.schema_)
        for parameter in _parameters(function):
            if parameter.name in arguments or parameter.kind in _VARIADIC:
                continue
            optional = parameter.default is not inspect.Parameter.empty
            source = self._source(parameter.name, entry.name, optional=optional)
            if source is not None:
                self._sources.append((parameter.name, source, optional))
        self.names = frozenset(name for name, _, _ in self._sources)
        """The parameters that are filled in."""

    def _source(self, name: str, tool: str, *, optional: bool) -> str | None:
        if name in _WHOLE:
            return name
        if name in self._reads and name in self._config:
            raise UsageError(
                f"the function for tool {tool}: {name} is a key of its state and of its config",
                hint="take `state` or `config` instead",
            )
        if name in self._reads:
            return "read"
        if name in self._config:
            return "parameter"
        if optional:
            return None
        raise UsageError(
            f"the function for tool {tool}: {name} is no argument of the schema, no state that it reads and no config",
            hint=nearest(name, (*self._reads, *self._config))
            or "declare it in the contract, or give the parameter a default",
        )

    def values(self, state: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments to add to those that were decided.

        Args:
            state: the session's state.
            config: the tool's resolved config.

        They are copies: writing to them changes nothing.
        """
        if not self._sources:
            return {}
        reads = {key: state[key] for key in self._reads if key in state}
        settings = {key: config[key] for key in self._config if key in config}
        values: dict[str, Any] = {}
        for name, source, optional in self._sources:
            if source == "state":
                values[name] = reads
            elif source == "config":
                values[name] = settings
            else:
                layer = reads if source == "read" else settings
                if name in layer or not optional:
                    values[name] = layer.get(name)
        copied: dict[str, Any] = orjson.loads(orjson.dumps(values))
        return copied


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []  # a function written in C may not say
