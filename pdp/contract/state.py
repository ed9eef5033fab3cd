"""What tools read of the state, what they write to it, and where that shows in a prompt.

Source: tool contract document, `ToolStateRead` and `ToolStateEffect`. Nothing here changes a state: each function
returns another effect.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pdp.contract.json_object import JsonObject
from pdp.contract.registry.tool_contract import TYPE_NAMES, check_kind
from pdp.documents import shown_name
from pdp.errors import PdpError, UsageError
from pdp.manifest.model import StateEffect

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pdp.contract.registry.tool_contract import ToolStateEffect

_PLACE: Final = re.compile(r"\{\{\s*([A-Za-z0-9][A-Za-z0-9_.:/-]*)\s*\}\}")
_PYTHON: Final = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,),
    "number": (int, float), "integer": (int, float),
}  # fmt: skip


class StateEffectError(PdpError):
    """A tool's result does not have the type that its state effect declares, or cannot be merged. Nothing is merged."""

    code = "pdp.state_effect_invalid"


def declared_effects(effects: Iterable[ToolStateEffect]) -> tuple[StateEffect, ...]:
    """Return the effects of a contract in Python as a manifest would state them."""
    return tuple(
        StateEffect(
            key=effect.key,
            type=TYPE_NAMES[effect.type_hint],
            merge=effect.merge,
            preserve_across_turns=effect.preserve_across_turns,
            prompt_template_var=effect.prompt_template_var,
        )
        for effect in effects
    )


def state_read(state: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Return what of the state is handed to a tool: the keys that it declares, those that are there, as copies."""
    whole = JsonObject.read(state)
    return {key: whole[key] for key in keys if key in whole}


def state_after(state: Mapping[str, Any], effects: Iterable[StateEffect], result: Any) -> JsonObject:
    """Return the state after a tool gave `result`: each of its members that an effect declares is merged.

    What the result lacks, or has as null, stays as it was. `append` puts the items of a list, or one item of another
    type, behind those that are there; `merge_dict` lays the object over the one there, the newer member winning.

    Raises:
        StateEffectError: a member has another type than declared, or what is there cannot take it.
        UsageError: the state is not JSON.
    """
    before = JsonObject.read(state)
    if not isinstance(result, dict):
        return before
    written: dict[str, Any] = {}
    for effect in effects:
        value = result.get(effect.key)
        if value is not None:
            _check_type(value, effect)
            written[effect.key] = _merged(before.get(effect.key), value, effect)
    try:
        return before.replaced(written, "result")
    except UsageError as error:
        raise StateEffectError(f"state effect: {error.message}") from None


def _check_type(value: Any, effect: StateEffect) -> None:
    fits = isinstance(value, _PYTHON[effect.type]) and (effect.type == "boolean" or not isinstance(value, bool))
    if effect.type == "integer" and fits:
        fits = float(value).is_integer()
    if not fits:
        raise StateEffectError(
            f"state effect {shown_name(effect.key)}: the result has {type(value).__name__}, declared is {effect.type}"
        )


def _merged(present: Any, value: Any, effect: StateEffect) -> Any:
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
    """The fields of the state that the tools of one application write. Immutable.

    Args:
        effects: each tool's, by its name.

    Raises:
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

    def at_turn_start(self, state: Mapping[str, Any]) -> JsonObject:
        """Return the state at the start of a turn: without the fields that tools write and do not preserve."""
        return JsonObject.read(state).without(self._cleared)

    def render_prompt(self, template: str, state: Mapping[str, Any]) -> str:
        """Return the template with each declared `{{VAR}}` replaced by its field of the state.

        A text is put there as it is, everything else as RFC 8785 JSON, an absent or null field as nothing. Other
        `{{NAMES}}` stay. What is put in place is not searched again: a tool's result cannot bring in another field.

        Raises:
            UsageError: the template is not a text, or the state is not JSON.
        """
        check_kind(template, str, "the prompt template", "hand in a text")
        whole = JsonObject.read(state)

        def value(match: re.Match[str]) -> str:
            key = self._places.get(match[1])
            if key is None:
                return match[0]
            field = whole.get(key)
            if field is None:
                return ""
            return field if isinstance(field, str) else whole.text(key)

        return _PLACE.sub(value, template)
