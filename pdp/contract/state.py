"""What tools read of the state, what they write to it, and where that shows in a prompt.

Source: tool contract document, `ToolStateRead` and `ToolStateEffect`. Nothing here changes a state: each function
returns another effect.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pdp.contract.registry.tool_contract import plain_object
from pdp.documents import shown_name
from pdp.errors import PdpError, UsageError
from pdp.json import canonical
from pdp.manifest.schema.compile import compile_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jsonschema_rs import Draft202012Validator

    from pdp.manifest.model import StateEffect

_PLACE: Final = re.compile(r"\{\{\s*([A-Za-z0-9][A-Za-z0-9_.:/-]*)\s*\}\}")


class StateEffectError(PdpError):
    """A tool's result does not have the type that its state effect declares, or cannot be merged. Nothing is merged."""

    code = "pdp.state_effect_invalid"


def state_after(state: Mapping[str, Any], effects: Iterable[StateEffect], result: Any) -> dict[str, Any]:
    """Return the state after a tool gave `result`: each of its members that an effect declares is merged.

    What the result lacks, or has as null, stays as it was. `append` puts the items of a list, or one item of another
    type, behind those that are there; `merge_dict` lays the object over the one there, the newer member winning.

    Raises:
        StateEffectError: a member has another type than declared, or what is there cannot take it.
        UsageError: the state is not JSON.
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


@cache
def _of_type(name: str) -> Draft202012Validator:
    return compile_schema({"type": name})


def _merged(present: Any, value: Any, effect: StateEffect) -> Any:
    if not _of_type(effect.type).is_valid(value):
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

    def at_turn_start(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state at the start of a turn: without the fields that tools write and do not preserve."""
        return {name: value for name, value in plain_object(state).items() if name not in self._cleared}

    def render_prompt(self, template: str, state: Mapping[str, Any]) -> str:
        """Return the template with each declared `{{VAR}}` replaced by its field of the state.

        A text is put there as it is, everything else as RFC 8785 JSON, an absent or null field as nothing. Other
        `{{NAMES}}` stay. What is put in place is not searched again: a tool's result cannot bring in another field.

        Raises:
            UsageError: the state is not JSON.
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
