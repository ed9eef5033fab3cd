"""The contract of a tool as a Python record. Names and fields are those of the tool contract document, "Structure"."""

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
    """A config value that a tool needs at run time: its key, its default, and the function that normalises it."""

    key: str
    default: Any = None
    normalizer: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class ToolStateRead:
    """A key of the state whose value is passed to the tool's function."""

    key: str


@dataclass(frozen=True, slots=True)
class ToolStateEffect:
    """A key of the state that the tool writes, from the member of its result with the same name.

    Attributes:
        merge: `replace`; `append` to a list; or `merge_dict`, where the result's members replace the state's members.
        prompt_template_var: the `NAME` of the placeholder `{{NAME}}` in prompts, which the value replaces.
    """

    key: str
    type_hint: type = dict
    merge: str = "replace"
    preserve_across_turns: bool = False
    prompt_template_var: str | None = None


@dataclass(frozen=True, slots=True)
class ToolContract:
    """The interface of a tool, declared in Python.

    Attributes:
        name: the name of the tool.
        schema: the arguments: `{"query": "str — the search query"}`, or a JSON Schema of type object.
        invariants: the rules that each call must satisfy.
        description: the text for the model.
        config_params: the config values that the tool reads.
        state_reads: the fields of the state that the tool reads.
        state_effects: the fields of the state that the tool's result changes.

    Raises:
        UsageError: an invariant has no id or rule, a function that cannot be called, or the id of another invariant.
            `Registry.register_contract` finds other faults.

    Examples:
        >>> from pdp.tools import ToolInvariant
        >>> rule = ToolInvariant("NOT_EMPTY", "query is not empty", lambda call, state, config: bool(call["query"]))
        >>> contract = ToolContract("search", {"query": "str"}, [rule], "Search the notes.")
        >>> contract.validate({"query": ""}, {}, {})
        ['NOT_EMPTY: query is not empty']
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
                raise UsageError(f"{where} has no id or no rule", hint="set both `id` and `rule`")
            if ids.count(invariant.id) > 1:
                raise UsageError(f"{where} is declared twice", hint="rename or remove one of them")
            if not callable(invariant.check) or not (invariant.correct is None or callable(invariant.correct)):
                hint = "set functions that take (call, state, config)"
                raise UsageError(f"{where} has a check or a corrector that is not callable", hint=hint)

    def validate(
        self, call: Mapping[str, Any], state: Mapping[str, Any], resolved_config: Mapping[str, Any]
    ) -> list[str]:
        """Return `ID: rule` for each invariant that a call violates; an empty list for a valid call.

        Args:
            call: the arguments of the call.
            state: the state, which must contain `plan` if an invariant reads the plan.
            resolved_config: the configuration of the tool.

        Raises:
            UsageError: `call`, `state` or `resolved_config` is not a JSON object.
        """
        from pdp.contract.invariants import InvariantContext, Invariants  # noqa: PLC0415 - only needed here

        context = InvariantContext(plain_object(state), plain_object(resolved_config, "config"))
        return Invariants(of_contract=self.invariants).violations(plain_object(call, "call"), context)


def plain_object(value: Mapping[str, Any], name: str = "state") -> dict[str, Any]:
    """Return a copy of an object from the application. Raise UsageError if it is not plain JSON."""
    try:
        plain = dict(value)
        check_json(plain)
    except JsonValueError as error:
        raise UsageError(f"{name}: {error}", hint="use only plain JSON values") from None
    except (TypeError, ValueError):
        hint = "pass a mapping of names to values"
        raise UsageError(f"{name} is {type(value).__name__}, not an object", hint=hint) from None
    copied: dict[str, Any] = orjson.loads(canonical(plain))
    return copied
