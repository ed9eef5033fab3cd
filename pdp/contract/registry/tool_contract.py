"""A tool's contract as one record in Python, and the checks of what an application hands in.

Source: tool contract document, "Structure"; names and fields are the document's own. What the same record looks like
in a manifest is in pdp/manifest/records.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from pydantic import BaseModel

from pdp.documents import nearest, shown_name
from pdp.errors import UsageError
from pdp.json import JsonValueError, check_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import UnionType

    from pdp.contract.json_object import JsonObject

    Check = Callable[[dict[str, Any], JsonObject, Mapping[str, Any]], bool]
    """`(call, state, config)`: the arguments as a copy, the state with the plan in it, the resolved config."""

    Corrector = Callable[[dict[str, Any], JsonObject, Mapping[str, Any]], Any]
    """Likewise; returns `(arguments, True)`, `(anything, False)` when it cannot help, or `DROP_STEP`."""


class DropStep(Enum):
    """The type of `DROP_STEP`."""

    DROP_STEP = "DROP_STEP"


DROP_STEP: Final[Literal[DropStep.DROP_STEP]] = DropStep.DROP_STEP
"""What a corrector returns, by itself or as `(DROP_STEP, True)`, to prune the call from its plan."""

_Item = TypeVar("_Item")

TYPE_NAMES: Final[dict[type, str]] = {
    dict: "object", list: "array", str: "string", float: "number", int: "integer", bool: "boolean",
}  # fmt: skip
"""What a Python type is called in JSON Schema."""

MERGES: Final = ("replace", "append", "merge_dict")
"""How a state effect meets what is there."""


@dataclass(frozen=True, slots=True)
class ToolInvariant:
    """A structural rule of one tool.

    Attributes:
        id: stable, and logged when the rule trips.
        rule: what has to hold, for people and for the model.
        check: whether it holds; whatever raises or is no boolean does not.
        correct: mends the call, or returns `DROP_STEP`; without it, a violation rejects.
        corrects: the arguments that `correct` may change, and no others; None: any that the schema names.
    """

    id: str
    rule: str
    check: Check
    correct: Corrector | None = None
    corrects: Sequence[str] | None = None


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
    """A key of the state that the tool writes.

    Attributes:
        key: the member of the tool's result, and of the state.
        type_hint: the type of what is written.
        merge: `replace`; `append` to a list; `merge_dict` into an object, the newer member winning.
        preserve_across_turns: whether it outlives the turn.
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
    type object. Lists are kept as tuples.

    Raises:
        UsageError: a field is of another type, an id or key stands twice, a rule is no text, a check cannot be called,
            or a merge is unknown.
    """

    name: str
    schema: dict[str, Any]
    invariants: Sequence[ToolInvariant]
    description: str
    config_params: Sequence[ToolConfigParam] = field(default=())
    state_reads: Sequence[ToolStateRead] = field(default=())
    state_effects: Sequence[ToolStateEffect] = field(default=())

    def __post_init__(self) -> None:
        where = f"contract {shown_name(self.name)}"
        check_kind(self.schema, Mapping, f"{where}: schema", 'write `{"ARGUMENT": "TYPE — description"}`')
        check_kind(self.description, str, f"{where}: description", "write a text")
        for name, kind in _LISTS.items():
            object.__setattr__(self, name, listed(getattr(self, name), kind, f"{where}: {name}"))
        _unique((item.id for item in self.invariants), f"{where}: invariant")
        _unique((item.key for item in self.config_params), f"{where}: config parameter")
        _unique((item.key for item in self.state_reads), f"{where}: state read")
        _unique((item.key for item in self.state_effects), f"{where}: state effect")
        for invariant in self.invariants:
            _check_invariant(invariant, f"{where}: invariant {shown_name(invariant.id)}")
        for param in self.config_params:
            _check_param(param, f"{where}: config parameter {shown_name(param.key)}")
        for effect in self.state_effects:
            _check_effect(effect, f"{where}: state effect {shown_name(effect.key)}")

    def validate(self, call: Mapping[str, Any], state: Any, resolved_config: Mapping[str, Any]) -> list[str]:
        """Return a message `ID: rule` for each invariant that the call violates; none: the call is valid.

        Args:
            call: the arguments.
            state: the state, plain JSON, with the plan in it if a check asks for that.
            resolved_config: the tool's config, by key.

        Raises:
            UsageError: one of them is no object of plain JSON.
        """
        from pdp.contract.invariants import InvariantContext, Invariants  # noqa: PLC0415 - it knows this record
        from pdp.contract.json_object import JsonObject  # noqa: PLC0415 - likewise

        check_kind(call, Mapping, "the call", "hand in its arguments, by name")
        context = InvariantContext(JsonObject.read(state), resolved_config)
        return Invariants(of_contract=self.invariants).violations(dict(call), context)


_LISTS: Final[dict[str, type]] = {
    "invariants": ToolInvariant, "config_params": ToolConfigParam, "state_reads": ToolStateRead,
    "state_effects": ToolStateEffect,
}  # fmt: skip


def _unique(names: Iterable[Any], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if not isinstance(name, str) or not name:
            raise UsageError(f"{what} {name!r:.40} has no name", hint="name it with a text")
        if name in seen:
            raise UsageError(f"{what} {shown_name(name)} is stated twice", hint="remove one")
        seen.add(name)


def _check_invariant(invariant: ToolInvariant, where: str) -> None:
    if not isinstance(invariant.rule, str) or not invariant.rule:
        raise UsageError(f"{where} has no rule", hint="say in one line what has to hold: the model reads it")
    if not callable(invariant.check):
        raise UsageError(f"{where}: check cannot be called", hint="a function of (call, state, config)")
    check_callable(invariant.correct, f"{where}: correct", "a function of (call, state, config), or None")
    if isinstance(invariant.corrects, str):
        raise UsageError(f"{where}: corrects is a text", hint=f"list the names: corrects=[{invariant.corrects!r}]")
    if invariant.corrects is not None:
        listed(invariant.corrects, str, f"{where}: corrects")


def _check_param(param: ToolConfigParam, where: str) -> None:
    check_callable(param.normalizer, f"{where}: normalizer", "a function of one value, or None")
    try:
        check_json(param.default)
    except JsonValueError as error:
        raise UsageError(f"{where}: default: {error}", hint="a default is plain JSON") from None


def _check_effect(effect: ToolStateEffect, where: str) -> None:
    if not isinstance(effect.type_hint, type) or effect.type_hint not in TYPE_NAMES:
        bare = type(effect.type_hint) is type  # `list[str]` has the name of `list`
        shown = effect.type_hint.__name__ if bare else repr(effect.type_hint)
        raise UsageError(f"{where}: type {shown:.40} is not one of JSON", hint="dict, list, str, int, float or bool")
    if effect.merge not in MERGES:
        hint = nearest(str(effect.merge), MERGES) or f"known: {', '.join(MERGES)}"
        raise UsageError(f"{where}: merge {effect.merge!r:.40} is not known", hint=hint)
    if effect.merge == "merge_dict" and effect.type_hint is not dict:
        raise UsageError(f"{where}: merge_dict of something that is no dict", hint="type_hint=dict")


def listed(value: Any, kind: type[_Item], what: str) -> tuple[_Item, ...]:
    """Return the items of a list, all of one kind.

    Raises:
        UsageError: no list, such as one text instead of several; or an item of another kind. `what` names it.
    """
    hint = f"a list of {kind.__name__}"
    if isinstance(value, str | bytes | Mapping | BaseModel) or not isinstance(value, Iterable):
        raise UsageError(f"{what} is {type(value).__name__}", hint=hint)
    items = tuple(value)
    for item in items:
        if not isinstance(item, kind):
            raise UsageError(f"{what}: {item!r:.40} is not of type {kind.__name__}", hint=hint)
    return items


def check_kind(value: Any, kind: type | UnionType, what: str, hint: str) -> None:
    """Check that a value is of a kind; `what` names it, and `hint` says what to hand in.

    Raises:
        UsageError: it is not.
    """
    if not isinstance(value, kind):
        raise UsageError(f"{what} is {type(value).__name__}", hint=hint)


def check_callable(value: Any, what: str, hint: str) -> None:
    """Check that a value can be called, if there is one; `what` names it, and `hint` says what to hand in.

    Raises:
        UsageError: it cannot.
    """
    if value is not None and not callable(value):
        raise UsageError(f"{what} cannot be called", hint=hint)


def end_coroutine(value: Any) -> None:
    """Close what an asynchronous function returned where a plain one is expected: nobody awaits it."""
    if inspect.iscoroutine(value):
        value.close()
