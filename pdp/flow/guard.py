"""Guarded functions: each call of a guarded function goes through an enforcement point, with the current session."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from pdp.documents.arguments import VARIADIC
from pdp.errors import PdpError, UsageError
from pdp.execution.runner import is_asynchronous, set_within
from pdp.flow.evaluation import Evaluation
from pdp.flow.parts import Tools
from pdp.manifest.effective import EffectiveManifest
from pdp.session import Session

_session: ContextVar[Session | None] = ContextVar("pdp_session", default=None)


class _GuardedError(PdpError):
    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation
        super().__init__(evaluation.answer.text)


class ToolDeniedError(_GuardedError):
    """The call of a guarded function was not allowed; `evaluation` has the reasons."""

    code = "pdp.tool_denied"


class ToolFailedError(_GuardedError):
    """The call of a guarded function was allowed, but failed; `evaluation.outcome.failure` has the details."""

    code = "pdp.tool_failed"


def session_in_use(session: Any) -> AbstractContextManager[Session]:
    """Return a context manager within which guarded functions use this session."""
    return set_within(_session, Session.read(session))


def guarded(
    call: Callable[..., Evaluation],
    acall: Callable[..., Awaitable[Evaluation]],
    function: Callable[..., Any],
    manifest: EffectiveManifest,
    tools: Tools,
) -> Callable[..., Any]:
    """Return the guarded version of a function. Raise `UsageError` if the function's name or parameters fit no tool."""
    name = getattr(function, "__name__", type(function).__name__)
    if name in tools:
        raise UsageError(
            f"{name} has a function already", hint="a tool can have only one function; rename or remove one of them"
        )
    entry = manifest.tools.get(name)
    if entry is None:
        raise UsageError(f"{name} is not a tool of manifest {manifest.version}", hint="use the name of a tool")
    signature = _checked_signature(function, name, entry.schema_)
    tools.add(name, function)

    def proposal(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return {"tool": name, "arguments": _bound_arguments(signature, args, kwargs)}

    if is_asynchronous(function):

        @wraps(function)
        async def aguarded(*args: Any, **kwargs: Any) -> Any:
            return _returned(await acall(proposal(args, kwargs), _session.get()))

        guard: Callable[..., Any] = aguarded
    else:

        @wraps(function)
        def guard(*args: Any, **kwargs: Any) -> Any:
            return _returned(call(proposal(args, kwargs), _session.get()))

    # `wraps` would expose the unguarded function as `__wrapped__`. Frameworks need only its signature, so only that is
    # kept.
    del guard.__wrapped__  # type: ignore[attr-defined]
    guard.__signature__ = signature  # type: ignore[attr-defined]
    return guard


def _returned(evaluation: Evaluation) -> Any:
    if not evaluation.allowed:
        raise ToolDeniedError(evaluation)
    if evaluation.outcome.failure is not None:
        raise ToolFailedError(evaluation) from evaluation.error
    return evaluation.result


def _checked_signature(function: Callable[..., Any], name: str, schema: Mapping[str, Any]) -> inspect.Signature:
    """Return the function's signature. Raise `UsageError` unless its parameters are exactly the schema's arguments."""
    signature = inspect.signature(function)
    where = f"the function for tool {name}"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{where}: a generator would run after its call is recorded", hint="return a list instead")
    for parameter in signature.parameters.values():
        if parameter.kind in VARIADIC:
            raise UsageError(f"{where}: *{parameter.name} has no argument names", hint="name every argument")
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise UsageError(f"{where}: {parameter.name} is positional only", hint="drop the / from the signature")
    properties, parameters = set(schema.get("properties", {})), set(signature.parameters)
    unknown = sorted(parameters - properties)
    if unknown:
        raise UsageError(
            f"{where}: the schema has no argument {unknown[0]}", hint="add the argument to the manifest's schema"
        )
    absent = sorted(properties - parameters)
    if absent:
        raise UsageError(
            f"{where}: the function has no parameter {absent[0]}", hint="add the parameter to the function"
        )
    return signature


def _bound_arguments(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the call's arguments by name. Leave out a default of None, because the schema may not allow null."""
    bound = signature.bind(*args, **kwargs)
    given = dict(bound.arguments)
    bound.apply_defaults()
    return {name: value for name, value in bound.arguments.items() if name in given or value is not None}
