"""What a tool gets beside its arguments and what it leaves: its config, and the state that it reads and writes.

Nothing here changes a state: each function returns another.

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
"""What a manifest may name; each changes texts and leaves everything else as it is."""


class ConfigError(UsageError):
    """A value of a tool's config cannot be normalised. The deployment's fault, and never the model's."""

    code = "pdp.config_invalid"


class Config:
    """The config parameters of one tool, of its entry or of its contract in Python; ConfigError: a faulty default.

    Immutable and safe to share.
    """

    __slots__ = ("_parameters",)

    def __init__(self, parameters: Iterable[ConfigParameter | ToolConfigParam]) -> None:
        self._parameters = tuple((parameter, _normalized(parameter, parameter.default)) for parameter in parameters)

    def resolve(self, configurable: Mapping[str, Any], state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values by key, read-only: of `configurable`, `state`, or the default; ConfigError: a faulty one.

        A value that is null, or that normalising makes null, is not given: the next in line is asked. What is not
        declared passes as `configurable` has it, and is not taken from state.
        """
        resolved = dict(configurable)
        for parameter, default in self._parameters:
            given = (layer.get(parameter.key) for layer in (configurable, state))
            stated = (_normalized(parameter, value) for value in given if value is not None)
            value = next((value for value in stated if value is not None), default)
            # A copy of what others hold too: a list changed in one call must not be another call's default.
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
    """The parameters of one function that are filled from state and config.

    An argument of the schema is never one of them, so a model can fill in none. Any other parameter is, by its name:
    `state`, all that the entry reads of the state; `config`, the whole resolved config; or one key of either. A key
    that is not there is None, or the parameter's default. UsageError: a parameter is none of these and has no default,
    or is a key of both.
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
        """Return the keyword arguments to add to those that were decided; they are copies."""
        if not self._parameters:
            return {}
        reads = {key: state[key] for key in self._reads if key in state}
        settings = {key: config[key] for key in self._config if key in config}
        known = {**reads, **settings, "state": reads, "config": settings}
        values = {name: known.get(name) for name, optional in self._parameters if name in known or not optional}
        copied: dict[str, Any] = orjson.loads(orjson.dumps(values))
        return copied


class StateEffectError(PdpError):
    """A tool's result does not have the type that its state effect declares, or cannot be merged. Nothing is merged."""

    code = "pdp.state_effect_invalid"


def state_after(state: Mapping[str, Any], effects: Iterable[StateEffect], result: Any) -> dict[str, Any]:
    """Return the state after a tool gave `result`: each of its members that an effect declares is merged.

    What the result lacks, or has as null, stays as it was. `append` puts the items of a list, or one item of another
    type, behind those that are there; `merge_dict` lays the object over the one there, the newer member winning.
    StateEffectError: a member has another type than declared, or what is there cannot take it; UsageError: no JSON.
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
            f"state effect {shown_name(effect.key)}: the result has {type(value).__name__}, declared is {effect.type}"
        )
    if effect.merge == "merge_dict" and isinstance(present, dict | None) and isinstance(value, dict):
        return {**(present or {}), **value}
    if effect.merge == "append" and isinstance(present, list | None):
        return [*(present or []), *(value if effect.type == "array" else [value])]
    if effect.merge == "replace":
        return value
    raise StateEffectError(
        f"state effect {shown_name(effect.key)}: {effect.merge} to what is {type(present).__name__} in the state"
    )


class StateFields:
    """The fields of the state that tools write, by the name of the tool: what outlives a turn or shows in a prompt.

    UsageError: two tools disagree whether a field outlives the turn, or two fields have one place in the prompt.
    """

    def __init__(self, effects: Mapping[str, Iterable[StateEffect]]) -> None:
        preserved: dict[str, tuple[bool, str]] = {}
        places: dict[str, tuple[str, str]] = {}
        for tool, declared in effects.items():
            for effect in declared:
                preserve, by = preserved.setdefault(effect.key, (effect.preserve_across_turns, tool))
                if preserve != effect.preserve_across_turns:
                    raise UsageError(
                        f"state field {shown_name(effect.key)}: {by} and {tool} disagree on preserve_across_turns",
                        hint="state the same in both",
                    )
                variable = effect.prompt_template_var
                if variable is not None:
                    key, by = places.setdefault(variable, (effect.key, tool))
                    if key != effect.key:
                        raise UsageError(
                            f"prompt variable {shown_name(variable)}: {by} puts {shown_name(key)} there, and {tool} "
                            f"{shown_name(effect.key)}",
                            hint="give one of them another name",
                        )
        self._places = {variable: key for variable, (key, _) in places.items()}
        self._cleared = frozenset(key for key, (preserve, _) in preserved.items() if not preserve)

    def at_turn_start(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state at the start of a turn: without the fields that tools write and do not preserve."""
        return {name: value for name, value in plain_object(state).items() if name not in self._cleared}

    def render_prompt(self, template: str, state: Mapping[str, Any]) -> str:
        """Return the template with each declared `{{VAR}}` replaced by its field of the state.

        A text is put there as it is, everything else as RFC 8785 JSON, an absent or null field as nothing. Other
        `{{NAMES}}` stay. What is put in place is not searched again: a tool's result cannot bring in another field.
        UsageError where the state is not JSON.
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
