"""Typed exceptions that tools raise, so that whoever called knows what it is about (tool pattern library, 9.3).

The failure of a call has the kind in its details, `{"kind": "not_found"}`. Kinds are stable.
"""

from typing import ClassVar

from pdp.execution.failures import ToolError


class ToolException(ToolError):  # noqa: N818 - the document's word: it is part of a tool's contract
    """Base of what a tool may say instead of an answer. `message` goes to the model: no secrets in it."""

    code = "pdp.tool_exception"
    kind: ClassVar[str] = "tool_exception"

    def __init__(self, message: str = "") -> None:
        words = f"{self.kind}: {message}" if message else self.kind
        super().__init__(words, details={"kind": self.kind})


class NotFoundError(ToolException):
    """A lookup's source has no record of this identifier."""

    kind = "not_found"


class SourceUnavailableError(ToolException):
    """A source could not be asked, or a pinned source has no pin."""

    kind = "source_unavailable"


class PermissionDeniedError(ToolException):
    """A lookup's source refuses this record to this caller."""

    kind = "permission_denied"


class StaleReplicaError(ToolException):
    """A lookup reached a replica that is behind what was asked for."""

    kind = "stale_replica"


class OutOfDistributionError(ToolException):
    """A classification's subject is in none of its bands."""

    kind = "classify.out_of_distribution"


class PatternFault(ToolError):  # noqa: N818 - a fault of a call, as the others are
    """A call or a result breaks a rule of its pattern, `<pattern>.<finding>`; no tool raises it.

    The message quotes nothing that may be confidential.
    """

    code = "pdp.pattern_fault"

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}", details={"rule": rule})
        self.rule = rule
