"""A function whose every call goes through an enforcement point, and the session that such calls take."""

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
    """A guarded function was called and may not run. `evaluation` says why."""

    code = "pdp.tool_denied"


class ToolFailedError(_GuardedError):
    """A guarded function was allowed to run and gave no result. `evaluation.outcome.failure` says how it failed."""

    code = "pdp.tool_failed"


def session_in_use(session: Any) -> AbstractContextManager[Session]:
    """Let guarded functions called inside the block take this session."""
    return set_within(_session, Session.read(session))


def guarded(
    call: Callable[..., Evaluation],
    acall: Callable[..., Awaitable[Evaluation]],
    function: Callable[..., Any],
    manifest: EffectiveManifest,
    tools: Tools,
) -> Callable[..., Any]:
    """Let a function run the tool that it has the name of, and return what guards it with `call` or `acall` of a `Pep`.

    UsageError: no such tool, one that has a function, or parameters that the tool's schema does not name.
    """
    name = getattr(function, "__name__", type(function).__name__)
    if name in tools:
        raise UsageError(f"{name} has a function already", hint="one function for a tool; rename or remove one")
    entry = manifest.tools.get(name)
    if entry is None:
        raise UsageError(f"{name} is not a tool of manifest {manifest.version}", hint="name the function so")
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

    # `wraps` leaves the unguarded function within reach; its signature is all that frameworks need.
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
    """Return the signature: each parameter is an argument of the schema, since nothing else is decided upon."""
    signature = inspect.signature(function)
    where = f"the function for tool {name}"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{where}: a generator runs only after its call was recorded", hint="return a list instead")
    for parameter in signature.parameters.values():
        if parameter.kind in VARIADIC:
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


def _bound_arguments(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return every argument by name, defaults included, so that what runs is what was decided.

    A default of None is left out: absent and None are the same to the function, and the schema need not admit null.
    """
    bound = signature.bind(*args, **kwargs)
    given = dict(bound.arguments)
    bound.apply_defaults()
    return {name: value for name, value in bound.arguments.items() if name in given or value is not None}
