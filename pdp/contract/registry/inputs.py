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

    __slots__ = ("_config", "_parameters", "_reads")

    def __init__(self, function: Callable[..., Any], entry: DeclaredTool) -> None:
        self._reads = entry.state.reads if entry.state else ()
        self._config = tuple(param.key for param in entry.config)
        self._parameters: list[tuple[str, bool]] = []
        arguments = arguments_of(entry.schema_)
        for parameter in _parameters(function):
            name, optional = parameter.name, parameter.default is not inspect.Parameter.empty
            if name in arguments or parameter.kind in _VARIADIC:
                continue
            if name not in _WHOLE and name in self._reads and name in self._config:
                raise UsageError(
                    f"the function for tool {entry.name}: {name} is a key of its state and of its config",
                    hint="take `state` or `config` instead",
                )
            if name in (*_WHOLE, *self._reads, *self._config):
                self._parameters.append((name, optional))
            elif not optional:
                raise UsageError(
                    f"the function for tool {entry.name}: {name} is not an argument, nor a key of its state or config",
                    hint=nearest(name, (*self._reads, *self._config))
                    or "declare it in the contract, or give the parameter a default",
                )

    def values(self, state: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments to add to those that were decided; they are copies.

        Args:
            state: the session's state.
            config: the tool's resolved config.
        """
        if not self._parameters:
            return {}
        reads = {key: state[key] for key in self._reads if key in state}
        settings = {key: config[key] for key in self._config if key in config}
        known = {**reads, **settings, "state": reads, "config": settings}
        values = {name: known.get(name) for name, optional in self._parameters if name in known or not optional}
        copied: dict[str, Any] = orjson.loads(orjson.dumps(values))
        return copied


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []  # a function written in C may not say
