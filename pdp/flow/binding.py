"""A Python function as a tool: its arguments by name, however it is called."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pdp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_VARIADIC = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def check_signature(function: Callable[..., Any], name: str, schema: Mapping[str, Any]) -> inspect.Signature:
    """Return the signature of a function that can stand for the tool `name`.

    Every parameter has to be a named argument of the tool's schema: what has no name in the schema could not be
    decided upon.

    Raises:
        UsageError: variadic parameters, or parameters and schema do not name the same arguments.
    """
    signature = inspect.signature(function)
    where = f"the function for tool {name}"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{where}: a generator runs only after its call was recorded", hint="return a list instead")
    for parameter in signature.parameters.values():
        if parameter.kind in _VARIADIC:
            raise UsageError(f"{where}: *{parameter.name} has no names to decide upon", hint="name every argument")
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise UsageError(f"{where}: {parameter.name} is positional only", hint="drop the / from the signature")
    properties, parameters = set(schema.get("properties", {})), set(signature.parameters)
    unknown = sorted(parameters - properties)
    if unknown:
        raise UsageError(f"{where}: the schema has no argument {unknown[0]}", hint="add it to the manifest's schema")
    absent = sorted(properties - parameters)
    if absent:
        raise UsageError(f"{where}: the function has no parameter {absent[0]}", hint="add it to the function")
    return signature


def bound_arguments(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return every argument by name, defaults included, so that what runs is what was decided.

    A default of None is left out: absent and None are the same to the function, and the schema need not admit null.

    Raises:
        TypeError: the call does not fit the signature, as Python itself would say.
    """
    bound = signature.bind(*args, **kwargs)
    given = dict(bound.arguments)
    bound.apply_defaults()
    return {name: value for name, value in bound.arguments.items() if name in given or value is not None}
