"""The config and state that a tool function receives, and the state after its result.

Source: tool contract document, "ToolConfigParam", `ToolStateRead` and `ToolStateEffect`.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import orjson

from pdp.contract.registry.tool_contract import ToolConfigParam, plain_object
from pdp.documents import nearest, shown_name
from pdp.documents.arguments import named_parameters
from pdp.errors import PdpError, UsageError
from pdp.json import JsonValueError, canonical, check_json
from pdp.manifest.model import ConfigParameter, DeclaredTool, StateEffect
from pdp.manifest.schema.walk import argument_schemas, of_types

_WHOLE: Final = ("state", "config")
_PLACE: Final = re.compile(r"\{\{\s*([A-Za-z0-9][A-Za-z0-9_.:/-]*)\s*\}\}")
_NORMALIZERS: Final[Mapping[str, Callable[[str], str | None]]] = {
    "strip": str.strip,
    "lower": str.lower,
    "upper": str.upper,
    "empty_to_null": lambda text: text or None,
}
"""The normalizers that a manifest may name. Each changes texts and leaves other values unchanged."""


class ConfigError(UsageError):
    """A value of a tool's config cannot be normalised. The deployment has to fix the value; the model cannot."""

    code = "pdp.config_invalid"


class Config:
    """The config parameters of one tool, immutable. Raises ConfigError if a default cannot be normalised."""

    __slots__ = ("_parameters",)

    def __init__(self, parameters: Iterable[ConfigParameter | ToolConfigParam]) -> None:
        self._parameters = tuple((parameter, _normalized(parameter, parameter.default)) for parameter in parameters)

    def resolve(self, configurable: Mapping[str, Any], state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the config values by key, read-only. Raise ConfigError if a value cannot be normalised.

        A value comes from `configurable`, else from `state`, else from the default; null counts as missing. Keys
        that the tool does not declare are kept if they are in `configurable`, but not if they are in `state`.
        """
        resolved = dict(configurable)
        for parameter, default in self._parameters:
            given = (layer.get(parameter.key) for layer in (configurable, state))
            stated = (_normalized(parameter, value) for value in given if value is not None)
            value = next((value for value in stated if value is not None), default)
            # The defaults are copied, because a call that changes a list would change the default of all later calls.
            resolved[parameter.key] = orjson.loads(orjson.dumps(value)) if isinstance(value, dict | list) else value
        return MappingProxyType(resolved)


def _normalized(param: ConfigParameter | ToolConfigParam, value: Any) -> Any:
    if not isinstance(param, ToolConfigParam):
        for name in param.normalize:
            value = _NORMALIZERS[name](value) if type(value) is str else value
        return value
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


class Inputs:
    """The parameters of one function that are filled from state and config, never by the model.

    `state` gets all state fields that the tool reads, and `config` all config values. Another parameter gets the field
    or config value with its name. UsageError is raised if both exist, or if neither exists and it has no default.
    """

    __slots__ = ("_config", "_parameters", "_reads")

    def __init__(self, function: Callable[..., Any], entry: DeclaredTool) -> None:
        self._reads = entry.state.reads if entry.state else ()
        self._config = tuple(param.key for param in entry.config)
        self._parameters: list[tuple[str, bool]] = []
        arguments = argument_schemas(entry.schema_)
        for parameter in named_parameters(function):
            name, optional = parameter.name, parameter.default is not inspect.Parameter.empty
            if name in arguments:
                continue
            if name not in _WHOLE and name in self._reads and name in self._config:
                raise UsageError(
                    f"the function for tool {entry.name}: {name} is both a key of the tool's state and a key of "
                    f"its config",
                    hint="read the value from the parameter `state` or `config` instead",
                )
            if name in (*_WHOLE, *self._reads, *self._config):
                self._parameters.append((name, optional))
            elif not optional:
                raise UsageError(
                    f"the function for tool {entry.name}: {name} is not an argument of the tool, nor a key of "
                    f"its state or config",
                    hint=nearest(name, (*self._reads, *self._config))
                    or "declare the name in the contract, or give the parameter a default",
                )

    def values(self, state: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the function's keyword arguments from state and config, as copies."""
        if not self._parameters:
            return {}
        reads = {key: state[key] for key in self._reads if key in state}
        settings = {key: config[key] for key in self._config if key in config}
        known = {**reads, **settings, "state": reads, "config": settings}
        values = {name: known.get(name) for name, optional in self._parameters if name in known or not optional}
        copied: dict[str, Any] = orjson.loads(orjson.dumps(values))
        return copied


class StateEffectError(PdpError):
    """A result has another type than its state effect declares, or cannot be merged, so the state is unchanged."""

    code = "pdp.state_effect_invalid"


def state_after(state: Mapping[str, Any], effects: Iterable[StateEffect], result: Any) -> dict[str, Any]:
    """Return the state after merging each declared member of the result into it. A null member changes nothing.

    `append` adds the items of a list, or a value of another type as one item. With `merge_dict`, the result's members
    replace the state's. Raises StateEffectError for a member of another type, UsageError for a state that is not JSON.
    """
    before = plain_object(state)
    if not isinstance(result, dict):
        return before
    declared = {effect.key: effect for effect in effects if result.get(effect.key) is not None}
    try:
        written = plain_object({key: result[key] for key in declared}, "result")
    except UsageError as error:
        raise StateEffectError(f"state effect: {error.message}") from None
    return before | {key: _merged(before.get(key), value, declared[key]) for key, value in written.items()}


def _merged(present: Any, value: Any, effect: StateEffect) -> Any:
    if not of_types((value,), frozenset((effect.type,))):
        raise StateEffectError(
            f"state effect {shown_name(effect.key)}: the result has {type(value).__name__}, expected {effect.type}"
        )
    if effect.merge == "merge_dict" and isinstance(present, dict | None) and isinstance(value, dict):
        return {**(present or {}), **value}
    if effect.merge == "append" and isinstance(present, list | None):
        return [*(present or []), *(value if effect.type == "array" else [value])]
    if effect.merge == "replace":
        return value
    raise StateEffectError(
        f"state effect {shown_name(effect.key)}: cannot {effect.merge}, because the state has {type(present).__name__}"
    )


class StateFields:
    """The state fields that tools write. Raises UsageError if two tools disagree about a field or a prompt variable."""

    def __init__(self, effects: Mapping[str, Iterable[StateEffect]]) -> None:
        preserved: dict[str, tuple[bool, str]] = {}
        places: dict[str, tuple[str, str]] = {}
        for tool, declared in effects.items():
            for effect in declared:
                preserve, by = preserved.setdefault(effect.key, (effect.preserve_across_turns, tool))
                if preserve != effect.preserve_across_turns:
                    raise UsageError(
                        f"state field {shown_name(effect.key)}: {by} and {tool} disagree on preserve_across_turns",
                        hint="set the same value in both contracts",
                    )
                variable = effect.prompt_template_var
                if variable is not None:
                    key, by = places.setdefault(variable, (effect.key, tool))
                    if key != effect.key:
                        raise UsageError(
                            f"prompt variable {shown_name(variable)}: {by} uses it for {shown_name(key)}, and {tool} "
                            f"for {shown_name(effect.key)}",
                            hint="rename one of the variables",
                        )
        self._places = {variable: key for variable, (key, _) in places.items()}
        self._cleared = frozenset(key for key, (preserve, _) in preserved.items() if not preserve)

    def at_turn_start(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state at the start of a turn, without the fields that tools do not preserve across turns."""
        return {name: value for name, value in plain_object(state).items() if name not in self._cleared}

    def render_prompt(self, template: str, state: Mapping[str, Any]) -> str:
        """Return a prompt template with each declared `{{VAR}}` replaced by the state field of that variable.

        A string is inserted unchanged, null as an empty string, any other value as RFC 8785 JSON. Inserted text is not
        searched for `{{VAR}}`, so a value cannot insert another field. Raises UsageError for a state that is not JSON.
        """
        whole = plain_object(state)

        def value(match: re.Match[str]) -> str:
            key = self._places.get(match[1])
            if key is None:
                return match[0]
            field = whole.get(key)
            if field is None:
                return ""
            return field if isinstance(field, str) else canonical(field).decode()

        return _PLACE.sub(value, template)
