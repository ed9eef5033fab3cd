"""Check the arguments that applications pass to constructors, and inspect functions and their parameters."""

import inspect
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from os import PathLike
from typing import Any, Final, ParamSpec, Self, TypeVar

from pdp.documents.validation import nearest
from pdp.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")

_OR: Final = re.compile(r" \| (?![^\[]*\])")


_STORES: Final = {"ActionStore": "stage", "BudgetStore": "reserve", "IdempotencyStore": "begin", "LedgerStore": "write"}
# The Python types of annotations. Annotations that are not listed are class names, which are compared without importing
# the class.
_KINDS: Final[dict[str, Any]] = {
    "Any": object, "App": object, "Callable": Callable, "Collection": Collection, "EngineName": str,
    "Iterable": Iterable, "Mapping": Mapping, "None": type(None), "Path": PathLike, "Sequence": Sequence,
    "SessionSource": object, "bool": bool, "float": int | float, "int": int, "str": str,
}  # fmt: skip
_EXAMPLES: Final = {
    "approvals": "Approvals()", "audit": 'FileAudit(Path("audit.jsonl"))', "pep": 'Pep.from_project("pdp.yaml")',
    "obligations": "{ID: ObligationHandler(...)}", "policies": '["policies/"]', "tools": "{NAME: FUNCTION}",
}  # fmt: skip

VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""The kinds of `*args` and `**kwargs` parameters."""


class Closable:
    """Base class of resources that close at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources of the object."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that it raises `UsageError` if an argument is unknown, missing or of the wrong type."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        _check(function, args, kwargs)
        return function(*args, **kwargs)

    return wrapped


def named_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return a function's parameters in order, without `*args` and `**kwargs`; an empty list if it has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []  # Functions written in C may have no signature.
    return [parameter for parameter in parameters if parameter.kind not in VARIADIC]


def end_coroutine(value: Any) -> None:
    """Close `value` if it is a coroutine, because a caller that expects a plain function cannot await it."""
    if inspect.iscoroutine(value):
        value.close()


def _check(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    name, signature = function.__qualname__.removesuffix(".__init__"), inspect.signature(function)
    rest = [part.name for part in signature.parameters.values() if part.kind is part.VAR_KEYWORD]
    # Keyword arguments are passed on to the constructor or to `from_files`, so their parameters count as well.
    makers = [*([args[0], args[0].from_files] if rest else ()), function]
    known = {part.name: part for made in makers for part in inspect.signature(made).parameters.values()}
    for argument in kwargs.keys() - known.keys():
        names = sorted(known.keys() - {"self", "cls", *rest})
        hint = nearest(argument, names) or f"its arguments: {', '.join(names)}"
        raise UsageError(f"{name} has no argument `{argument}`", hint=hint)
    try:
        given = {**signature.bind(*args, **kwargs).arguments, **kwargs}
    except TypeError as error:
        raise UsageError(f"{name}: {error}", hint=f"see the docstring of {name}") from None
    for argument in given.keys() - {"self", "cls", *rest}:
        kinds = _OR.split(str(known[argument].annotation))
        if not any(_is_of_kind(given[argument], kind) for kind in kinds):
            example = f"pass {_EXAMPLES[argument]}" if argument in _EXAMPLES else None
            raise UsageError(f"{name}: {argument} is {given[argument]!r:.60}, not {' or '.join(kinds)}", hint=example)


def _is_of_kind(value: Any, kind: str) -> bool:
    kind, _, inner = kind.removesuffix("]").partition("[")
    known, parts = _KINDS.get(kind), ["str"] if kind == "Mapping" else _OR.split(inner)
    if kind in _STORES:
        return hasattr(value, _STORES[kind]) and not isinstance(value, type)
    if known is None:
        return kind in {base.__name__ for base in type(value).__mro__}
    if isinstance(value, Collection) and inner and _KINDS.keys() >= {*parts}:
        is_listed = isinstance(value, known) and not isinstance(value, str)
        return is_listed and all(any(_is_of_kind(item, part) for part in parts) for item in value)
    return isinstance(value, known) and (not isinstance(value, bool) or known in (bool, object))
