"""What an application hands in: arguments of constructors, which are checked, and functions with their parameters."""

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
# Other annotations are names of classes, which need not be imported to compare them.
_KINDS: Final[dict[str, Any]] = {
    "Any": object, "App": object, "Callable": Callable, "Collection": Collection, "EngineName": str,
    "Iterable": Iterable, "Mapping": Mapping, "None": type(None), "Path": PathLike, "Sequence": Sequence,
    "SessionSource": object, "bool": bool, "float": int | float, "int": int, "str": str,
}  # fmt: skip
_SUCH_AS: Final = {
    "approvals": "Approvals()", "audit": 'FileAudit(Path("audit.jsonl"))', "pep": 'Pep.from_project("pdp.yaml")',
    "obligations": "{ID: ObligationHandler(...)}", "policies": '["policies/"]', "tools": "{NAME: FUNCTION}",
}  # fmt: skip

VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""The kinds of parameters that have no names to fill: `*args` and `**kwargs`."""


class Closable:
    """What a `with` block closes at its end."""

    @abstractmethod
    def close(self) -> None:
        """Release what is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function; its call raises UsageError where an argument is unknown, missing or of another type."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        _check(function, args, kwargs)
        return function(*args, **kwargs)

    return wrapped


def named_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that have names, in their order; none of a function that does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []  # a function written in C may not say
    return [parameter for parameter in parameters if parameter.kind not in VARIADIC]


def end_coroutine(value: Any) -> None:
    """Close what an asynchronous function returned where a plain one is expected: nobody awaits it."""
    if inspect.iscoroutine(value):
        value.close()


def _check(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    name, signature = function.__qualname__.removesuffix(".__init__"), inspect.signature(function)
    rest = [part.name for part in signature.parameters.values() if part.kind is part.VAR_KEYWORD]
    # Those go on to the constructor, or to `from_files`.
    makers = [*([args[0], args[0].from_files] if rest else ()), function]
    known = {part.name: part for made in makers for part in inspect.signature(made).parameters.values()}
    for each in kwargs.keys() - known.keys():
        names = sorted(known.keys() - {"self", "cls", *rest})
        raise UsageError(f"{name} takes no `{each}`", hint=nearest(each, names) or f"it takes {', '.join(names)}")
    try:
        given = {**signature.bind(*args, **kwargs).arguments, **kwargs}
    except TypeError as error:
        raise UsageError(f"{name}: {error}", hint="see its docstring") from None
    for each in given.keys() - {"self", "cls", *rest}:
        kinds = _OR.split(str(known[each].annotation))
        if not any(_is_one(given[each], kind) for kind in kinds):
            hint = f"pass {_SUCH_AS[each]}" if each in _SUCH_AS else None
            raise UsageError(f"{name}: {each} is {given[each]!r:.60}, not {' or '.join(kinds)}", hint=hint)


def _is_one(value: Any, kind: str) -> bool:
    kind, _, inner = kind.removesuffix("]").partition("[")
    known, parts = _KINDS.get(kind), ["str"] if kind == "Mapping" else _OR.split(inner)
    if kind in _STORES:
        return hasattr(value, _STORES[kind]) and not isinstance(value, type)
    if known is None:
        return kind in {each.__name__ for each in type(value).__mro__}
    if isinstance(value, Collection) and inner and _KINDS.keys() >= {*parts}:
        is_listed = isinstance(value, known) and not isinstance(value, str)
        return is_listed and all(any(_is_one(each, part) for part in parts) for each in value)
    return isinstance(value, known) and (not isinstance(value, bool) or known in (bool, object))
