"""A tool's config parameters, resolved: configurable, then state, then the declared default; each normalised.

Source: tool contract document, "ToolConfigParam".
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.errors import UsageError
from pdp.json import JsonValueError, check_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pdp.contract.registry.tool_contract import ToolConfigParam
    from pdp.manifest.model import ConfigParameter

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


class _Parameter:
    __slots__ = ("default", "key", "normalized")

    def __init__(self, key: str, default: Any, normalized: Callable[[Any], Any]) -> None:
        self.key = key
        self.normalized = normalized
        self.default = normalized(default)


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
        self._parameters = (
            *(_Parameter(item.key, item.default, _named(item.normalize)) for item in parameters),
            *(_Parameter(item.key, item.default, _called(item.normalizer, item.key)) for item in params),
        )

    def resolve(self, configurable: Mapping[str, Any], state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values by key, read-only: of `configurable`, else of `state`, else the default.

        A value that is null, or that normalising makes null, is not given: the next in line is asked. What is not
        declared passes as `configurable` has it, and is not taken from state.

        Raises:
            ConfigError: a value cannot be normalised.
        """
        resolved = dict(configurable)
        for parameter in self._parameters:
            value = None
            for layer in (configurable, state):
                stated = layer.get(parameter.key)
                if stated is not None:
                    value = parameter.normalized(stated)
                if value is not None:
                    break
            if value is None:
                value = parameter.default
            # A copy of what others hold too: a list changed in one call must not be another call's default.
            resolved[parameter.key] = orjson.loads(orjson.dumps(value)) if type(value) in (dict, list) else value
        return MappingProxyType(resolved)


def _named(names: tuple[str, ...]) -> Callable[[Any], Any]:
    steps = tuple(_NORMALIZERS[name] for name in names)

    def normalized(value: Any) -> Any:
        for step in steps:
            if type(value) is str:
                value = step(value)
        return value

    return normalized


def _called(normalizer: Callable[[Any], Any] | None, key: str) -> Callable[[Any], Any]:
    if normalizer is None:
        return lambda value: value

    def normalized(value: Any) -> Any:
        if value is None:
            return None
        try:
            result = normalizer(value)
            check_json(result)
        except JsonValueError as error:
            raise ConfigError(f"config {key}: the normalizer's result is not JSON: {error}") from None
        except Exception as error:
            raise ConfigError(f"config {key}: the normalizer raised {type(error).__name__}") from error
        return result

    return normalized
