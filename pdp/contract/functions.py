"""Functions that an application hands in: their parameters, and what an asynchronous one leaves behind."""

import inspect
from collections.abc import Callable
from typing import Any, Final

VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""The kinds of parameters that have no names to fill: `*args` and `**kwargs`."""


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
