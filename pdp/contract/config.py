"""A tool's config parameters, resolved: configurable, then state, then the declared default; each normalised.

Source: tool contract document, "ToolConfigParam".
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.errors import UsageError
from pdp.json import JsonValueError, check_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pdp.contract.registry.tool_contract import ToolConfigParam
    from pdp.manifest.model import ConfigParameter

    _Normalizer = Callable[[Any], Any]

_NORMALIZERS: Final[Mapping[str, Callable[[str], str | None]]] = {
    "strip": str.strip,
    "lower": str.lower,
    "upper": str.upper,
    "empty_to_null": lambda text: text or None,
}
"""What a manifest may name; each changes texts and leaves everything else as it is."""


class ConfigError(UsageError):
    """A value of a tool's config cannot be normalised. The deployment's fault, and never the model's."""

    code = "pdp.config_invalid"


class Config:
    """The config parameters of one tool. Immutable and safe to share.

    Args:
        parameters: those of a manifest entry.
        params: those of a contract in Python.

    Raises:
        ConfigError: a default cannot be normalised.
    """

    __slots__ = ("_parameters",)

    def __init__(self, parameters: Iterable[ConfigParameter] = (), params: Iterable[ToolConfigParam] = ()) -> None:
        declared: list[tuple[str, Any, _Normalizer]] = [
            *((item.key, item.default, partial(_by_names, item.normalize)) for item in parameters),
            *((item.key, item.default, partial(_by_function, item)) for item in params),
        ]
        self._parameters = tuple((key, normalized, normalized(default)) for key, default, normalized in declared)

    def resolve(self, configurable: Mapping[str, Any], state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values by key, read-only: of `configurable`, else of `state`, else the default.

        A value that is null, or that normalising makes null, is not given: the next in line is asked. What is not
        declared passes as `configurable` has it, and is not taken from state.

        Raises:
            ConfigError: a value cannot be normalised.
        """
        resolved = dict(configurable)
        for key, normalized, default in self._parameters:
            stated = (normalized(layer[key]) for layer in (configurable, state) if layer.get(key) is not None)
            value = next((value for value in stated if value is not None), default)
            # A copy of what others hold too: a list changed in one call must not be another call's default.
            resolved[key] = orjson.loads(orjson.dumps(value)) if type(value) in (dict, list) else value
        return MappingProxyType(resolved)


def _by_names(names: tuple[str, ...], value: Any) -> Any:
    for name in names:
        if type(value) is str:
            value = _NORMALIZERS[name](value)
    return value


def _by_function(param: ToolConfigParam, value: Any) -> Any:
    if value is None or param.normalizer is None:
        return value
    try:
        result = param.normalizer(value)
        check_json(result)
    except JsonValueError as error:
        raise ConfigError(f"config {param.key}: the normalizer's result is not JSON: {error}") from None
    except Exception as error:
        raise ConfigError(f"config {param.key}: the normalizer raised {type(error).__name__}") from error
    return result
