"""Paths that expressions read, such as `session.facts.markings[0]`, followed here without a library."""

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
"""What expressions may read of the session."""

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_STEP: Final = rf"""\s*(?:\.\s*({_NAME})|\[\s*(?:(\d+)|"([^"\\\n]*)"|'([^'\\\n]*)')\s*\])"""
_STEPS: Final = re.compile(_STEP)
_PATH: Final = re.compile(rf"\s*({_NAME})((?:{_STEP})*)\s*")


ANY: Final = -1
"""The step of a path to some item or some member, by an index that is computed."""


class Contained(str):
    """The step of a path to a member that an expression asks for by `in`; in a list, to an item of this value."""

    __slots__ = ()


MISSING: Final = object()
"""What a path gives that leads nowhere: its field is left out."""


class ExpressionError(PdpError):
    """An expression of the manifest is not admitted, or its evaluation failed. A call that needs it is rejected."""

    code = "pdp.expression_failed"


class Variables(dict[str, Any]):
    """The variables that the expressions of one call read, by name; `work` is what they have read so far, in values."""

    work: int = 0


class JsonPath(NamedTuple):
    """A path from a variable: names of members and indices of lists."""

    variable: str
    steps: tuple[str | int, ...] = ()

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Return the path that a text is, or None when it is anything else.

        ExpressionError: it has more than `MAX_STEPS` steps.
        """
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
        """Return the value that the path leads to; `MISSING` for an absent member, or an index beyond the list.

        ExpressionError: a step into anything else than an object or a list, null included.
        """
        try:
            value = inputs[self.variable]
            for step in self.steps:
                if type(step) is int and not isinstance(value, list):
                    raise ExpressionError(f"{self}: [{step}] of something that is not a list")
                value = value[step]
        except (KeyError, IndexError):
            return MISSING
        except TypeError:
            raise ExpressionError(f"{self}: {step} of something that is not an object") from None
        return value

    def __str__(self) -> str:
        return self.variable + "".join(
            f".{step}" if isinstance(step, str) else "[…]" if step == ANY else f"[{step}]" for step in self.steps
        )


def check_offered(path: JsonPath, variables: frozenset[str]) -> None:
    """Check that an expression may read a path.

    ExpressionError: another variable, or a part of the session that is not offered.
    """
    if path.variable not in variables:
        raise ExpressionError(
            f"expression reads `{path.variable}`, which is not offered",
            hint=f"offered here: {', '.join(sorted(variables))}",
        )
    if path.variable != "session":
        return
    offered = f"offered: {', '.join(sorted(SESSION_FIELDS))}"
    if not path.steps:
        raise ExpressionError("expression reads the whole session", hint=offered)
    field = str(path.steps[0])
    if field not in SESSION_FIELDS:
        hint = nearest(field, SESSION_FIELDS) or offered
        raise ExpressionError(f"expression reads `session.{field}`, which is not offered", hint=hint)


@dataclass(frozen=True, slots=True)
class Expression:
    """A value of a mapping, ready to be evaluated for calls. Safe to share between threads.

    `evaluate` gives the value for `{arguments, session}`, a call's checked arguments and the fields of the session that
    are set: JSON, or `MISSING` when a plain path leads nowhere. Anything missing inside of a larger expression is an
    ExpressionError, and so is every other failure. `paths` is what it reads.
    """

    text: Any
    evaluate: Callable[[Mapping[str, Any]], Any]
    paths: frozenset[JsonPath] = frozenset()

    @property
    def reads_arguments(self) -> bool:
        """Whether it reads anything that the model writes."""
        return any(path.variable == "arguments" for path in self.paths)
