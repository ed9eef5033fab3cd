"""The paths that expressions read, such as `session.facts.markings[0]`. They need no library."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from pdp.documents import nearest
from pdp.errors import PdpError

MAX_STEPS: Final = 16

SESSION_FIELDS: Final = frozenset((
    "agent", "claims", "config", "facts", "idempotency_key", "plan", "purpose", "request_id", "run_id", "state",
    "time",
))  # fmt: skip
"""The fields of the session that expressions may read."""

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_STEP: Final = rf"""\s*(?:\.\s*({_NAME})|\[\s*(?:(\d+)|"([^"\\\n]*)"|'([^'\\\n]*)')\s*\])"""
_STEPS: Final = re.compile(_STEP)
_PATH: Final = re.compile(rf"\s*({_NAME})((?:{_STEP})*)\s*")


ANY: Final = -1
"""The path step for a computed index or name, which may be any item or member."""


class Contained(str):
    """The path step for `"x" in value`: the member `x` of an object, or the item of a list that is equal to "x"."""

    __slots__ = ()


MISSING: Final = object()
"""The result of reading a path that does not exist. A mapping leaves out fields with this result."""


class ExpressionError(PdpError):
    """An expression of the manifest is invalid, or its evaluation failed. A call that needs the result is rejected."""

    code = "pdp.expression_failed"


class Variables(dict[str, Any]):
    """The variables of one call by name. `work` counts the values that the call's expressions have read so far."""

    work: int = 0


class JsonPath(NamedTuple):
    """A path that starts at a variable and goes through member names and list indices."""

    variable: str
    steps: tuple[str | int, ...] = ()

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Parse a path, or return None for other text. Raise `ExpressionError` for more than `MAX_STEPS` steps."""
        match = _PATH.fullmatch(text)
        if match is None:
            return None
        steps = [
            int(step[2]) if step[2] else next(name for name in step.groups() if name is not None)
            for step in _STEPS.finditer(match[2])
        ]
        if len(steps) > MAX_STEPS:
            raise ExpressionError(f"path has more than {MAX_STEPS} steps")
        return cls(match[1], tuple(steps))

    def follow(self, inputs: Mapping[str, Any]) -> Any:
        """Return the value at the path, or `MISSING`. Raise `ExpressionError` if a step leads into a scalar or null."""
        try:
            value = inputs[self.variable]
            for step in self.steps:
                if type(step) is int and not isinstance(value, list):
                    raise ExpressionError(f"{self}: the value before `[{step}]` is not a list")
                value = value[step]
        except (KeyError, IndexError):
            return MISSING
        except TypeError:
            raise ExpressionError(f"{self}: the value before `{step}` is not an object") from None
        return value

    def __str__(self) -> str:
        return self.variable + "".join(
            f".{step}" if isinstance(step, str) else "[…]" if step == ANY else f"[{step}]" for step in self.steps
        )


def check_offered(path: JsonPath, variables: frozenset[str]) -> None:
    """Raise `ExpressionError` if the path reads an unavailable variable or session field."""
    if path.variable not in variables:
        raise ExpressionError(
            f"expression reads `{path.variable}`, which is not available",
            hint=f"available here: {', '.join(sorted(variables))}",
        )
    if path.variable != "session":
        return
    offered = f"available: {', '.join(sorted(SESSION_FIELDS))}"
    if not path.steps:
        raise ExpressionError("expression reads the whole session", hint=offered)
    field = str(path.steps[0])
    if field not in SESSION_FIELDS:
        hint = nearest(field, SESSION_FIELDS) or offered
        raise ExpressionError(f"expression reads `session.{field}`, which is not available", hint=hint)


@dataclass(frozen=True, slots=True)
class Expression:
    """The compiled value of a mapping; `paths` are the paths that the value reads. Threads may share an expression.

    `evaluate` takes `{arguments, session}` and returns JSON, or `MISSING` if a plain path does not exist. Every other
    failure raises `ExpressionError`.
    """

    text: Any
    evaluate: Callable[[Mapping[str, Any]], Any]
    paths: frozenset[JsonPath] = frozenset()

    @property
    def reads_arguments(self) -> bool:
        """Whether the expression reads arguments, which the model controls."""
        return any(path.variable == "arguments" for path in self.paths)
