"""A tool's contract as one record in Python. Names and fields are those of the tool contract document, "Structure"."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from pdp.contract.invariants import ToolInvariant
from pdp.documents import shown_name
from pdp.errors import UsageError
from pdp.json import JsonValueError, canonical, check_json


@dataclass(frozen=True, slots=True)
class ToolConfigParam:
    """A value that a tool needs at run time: its key, what it is when nobody gives it, how it is normalised."""

    key: str
    default: Any = None
    normalizer: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class ToolStateRead:
    """A key of the state that is handed to the tool."""

    key: str


@dataclass(frozen=True, slots=True)
class ToolStateEffect:
    """A key of the state that the tool writes, from its result's member of that name.

    Attributes:
        merge: `replace`; `append` to a list; `merge_dict` into an object, the newer member winning.
        prompt_template_var: the `{{NAME}}` in a prompt that its value is put in place of.
    """

    key: str
    type_hint: type = dict
    merge: str = "replace"
    preserve_across_turns: bool = False
    prompt_template_var: str | None = None


@dataclass(frozen=True, slots=True)
class ToolContract:
    """What a tool accepts, enforces, reads and writes: the one place where its interface is declared.

    `schema` is the shorthand of the tool contract document, `{"query": "str — the search query"}`, or a JSON Schema of
    type object. Whatever a manifest would state as well is checked when the contract is registered. UsageError: an
    invariant has no id or rule, or its functions cannot be called; or an id stands twice.
    """

    name: str
    schema: dict[str, Any]
    invariants: Sequence[ToolInvariant]
    description: str
    config_params: Sequence[ToolConfigParam] = ()
    state_reads: Sequence[ToolStateRead] = ()
    state_effects: Sequence[ToolStateEffect] = ()

    def __post_init__(self) -> None:
        ids = [invariant.id for invariant in self.invariants]
        for invariant in self.invariants:
            where = f"contract {shown_name(self.name)}: invariant {shown_name(invariant.id)}"
            if not invariant.id or not invariant.rule:
                raise UsageError(f"{where} has no id or no rule", hint="the model reads the rule, the log has the id")
            if ids.count(invariant.id) > 1:
                raise UsageError(f"{where} is stated twice", hint="remove one")
            if not callable(invariant.check) or not (invariant.correct is None or callable(invariant.correct)):
                raise UsageError(f"{where} cannot be called", hint="check and correct take (call, state, config)")

    def validate(
        self, call: Mapping[str, Any], state: Mapping[str, Any], resolved_config: Mapping[str, Any]
    ) -> list[str]:
        """Return a message `ID: rule` for each invariant that the call violates; none: the call is valid.

        The plan is in the state, if a check asks for it. UsageError: one of them is not an object of JSON.
        """
        from pdp.contract.invariants import InvariantContext, Invariants  # noqa: PLC0415 - only what asks for it

        context = InvariantContext(plain_object(state), plain_object(resolved_config, "config"))
        return Invariants(of_contract=self.invariants).violations(plain_object(call, "call"), context)


def plain_object(value: Mapping[str, Any], name: str = "state") -> dict[str, Any]:
    """Return a copy of an object that an application hands in, or raise UsageError if it is not plain JSON."""
    try:
        plain = dict(value)
        check_json(plain)
    except JsonValueError as error:
        raise UsageError(f"{name}: {error}", hint="it is made of plain JSON") from None
    except (TypeError, ValueError):
        hint = "hand in names with values"
        raise UsageError(f"{name} is {type(value).__name__}, not an object", hint=hint) from None
    copied: dict[str, Any] = orjson.loads(canonical(plain))
    return copied
