"""Plain paths such as `session.facts.markings[0]`: read and followed without any library."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self

from pdp.documents import nearest
from pdp.errors import PdpError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_STEPS: Final = 16
"""Most steps of a path."""

SESSION_FIELDS: Final = frozenset(
    (
        "agent", "claims", "config", "facts", "idempotency_key", "plan", "purpose", "request_id", "run_id", "state",
        "time",
    )
)  # fmt: skip
"""What expressions may read of the session."""

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_STEP: Final = rf"""\s*(?:\.\s*({_NAME})|\[\s*(?:(\d+)|"([^"\\\n]*)"|'([^'\\\n]*)')\s*\])"""
_STEPS: Final = re.compile(_STEP)
_PATH: Final = re.compile(rf"\s*({_NAME})((?:{_STEP})*)\s*")


class MissingValue(Enum):
    """The type of `MISSING`."""

    MISSING = "MISSING"


MISSING: Final[Literal[MissingValue.MISSING]] = MissingValue.MISSING
"""What a path gives that leads nowhere: its field is left out."""


class ExpressionError(PdpError):
    """An expression of the manifest is not admitted, or its evaluation failed. A call that needs it is rejected."""

    code = "pdp.expression_failed"


class JsonPath(NamedTuple):
    """A path from a variable: names of members and indices of lists."""

    variable: str
    steps: tuple[str | int, ...] = ()

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Return the path that a text is, or None when it is anything else.

        Raises:
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
        """Return the value that the path leads to, or `MISSING`.

        A member that is absent, or an index beyond the list, is missing. A step into anything else than an object or a
        list, null included, is an error.

        Raises:
            ExpressionError: such a step.
        """
        value: Any = inputs.get(self.variable, MISSING)
        for step in self.steps:
            if value is MISSING:
                return MISSING
            if type(step) is int and type(value) is not list:
                raise ExpressionError(f"{self}: [{step}] of something that is not a list")
            try:
                value = value[step]
            except (KeyError, IndexError):
                return MISSING
            except TypeError:
                raise ExpressionError(f"{self}: {step} of something that is not an object") from None
        return value

    def __str__(self) -> str:
        return self.variable + "".join(f".{step}" if isinstance(step, str) else f"[{step}]" for step in self.steps)


def check_offered(path: JsonPath, variables: frozenset[str]) -> None:
    """Check that an expression may read a path.

    Raises:
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
