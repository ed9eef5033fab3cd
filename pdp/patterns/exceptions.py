"""Typed exceptions that tools raise, so that the caller can distinguish kinds of errors (tool pattern library, 9.3).

The details of the failure contain the kind, such as `{"kind": "not_found"}`. The names of kinds do not change.
"""

from typing import ClassVar

from pdp.execution.failures import ToolError


class ToolException(ToolError):  # noqa: N818 - the name in the pattern library
    """Base class of the typed exceptions of tools. The model sees `message`, which must not contain secrets."""

    code = "pdp.tool_exception"
    kind: ClassVar[str] = "tool_exception"

    def __init__(self, message: str = "") -> None:
        words = f"{self.kind}: {message}" if message else self.kind
        super().__init__(words, details={"kind": self.kind})


class NotFoundError(ToolException):
    """A lookup raises this error if the data source has no record with the requested identifier."""

    kind = "not_found"


class SourceUnavailableError(ToolException):
    """A tool raises this error if a data source is not available, or has no version pinned for the run."""

    kind = "source_unavailable"


class PermissionDeniedError(ToolException):
    """A lookup raises this error if the data source does not allow the caller to read the record."""

    kind = "permission_denied"


class StaleReplicaError(ToolException):
    """A lookup raises this error if the replica is behind the requested version."""

    kind = "stale_replica"


class OutOfDistributionError(ToolException):
    """A classification raises this error if the subject fits none of the tool's classes."""

    kind = "classify.out_of_distribution"


class PatternFault(ToolError):  # noqa: N818 - a fault, like those in files
    """A call or its result breaks a rule of the tool's pattern. The message does not quote sensitive values."""

    code = "pdp.pattern_fault"

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}", details={"rule": rule})
        self.rule = rule
