"""Errors that tools raise, and the failures that the model sees. Source: tool layer document, safety contract."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from pdp.contract.sensitive import SHORTEST_PART, Mask
from pdp.errors import PdpError
from pdp.proposal import Failure, FailureCode

MAX_MESSAGE: Final = 300  # The maximum number of characters of a failure's message.

# Only this many characters of a message are processed, because a message may have any length.
_MAX_READ: Final = 20_000
_PATH: Final = re.compile(
    # A path in quotes may contain spaces, so it is matched separately.
    r"""(?P<quote>["'])(?:~|\.{1,2}|[A-Za-z]:)?[/\\].*?(?P=quote)"""
    r"""|(?<![\w:/.~])(?:~|\.{1,2})?/[^\s"',;()<>|]*[^\s"',;:.()<>|]"""
    r"""|(?<!\w)[A-Za-z]:\\[^\s"',;()<>|]*[^\s"',;:.()<>|]"""
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class ToolError(PdpError):
    """A tool raises this error to say why it has no result.

    The model sees the first line of the message, without paths and values of sensitive arguments.

    Args:
        message: the text for the model.
        details: a JSON object for programs. Values of sensitive arguments and passwords in URLs are masked; paths are
            not.
        hint: the next step of the caller.
    """

    code: ClassVar[str] = "pdp.tool_error"
    failure_code: ClassVar[FailureCode] = FailureCode.TOOL_EXECUTION_FAILED

    def __init__(self, message: str, *, details: Mapping[str, Any] | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.details = dict(details or {})


class ToolArgumentError(ToolError):
    """A tool raises this error, before any effect, if an argument that the schema allows is unusable.

    Args:
        argument: the name of the argument.
        message: the problem, such as `must be 1 to 10`.
    """

    code = "pdp.tool_argument"

    def __init__(self, argument: str, message: str) -> None:
        super().__init__(f"argument {argument}: {message}", details={"argument": argument, "effect": "none"})


class ToolUnavailableError(ToolError):
    """A tool raises this error if something that it needs is missing, before it has any effect.

    A tool with effects must add the details `{"effect": "none"}`; otherwise the effect of the call counts as unknown.
    """

    code = "pdp.tool_unavailable"
    failure_code = FailureCode.TOOL_UNAVAILABLE


class ToolExitError(ToolError):
    """A program was ended by a signal, or with an exit code that means an error. The code of a signal is negative."""

    code = "pdp.tool_exit"

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message, details={"exit_code": exit_code})


class ToolResultError(ToolError):
    """The tool ran, but its result is `invalid` or `too_large` (`fault`). The call is not retried."""

    code = "pdp.tool_result"

    def __init__(self, message: str, fault: str = "invalid", result: Any = None) -> None:
        super().__init__(message, details={"result": fault})
        self.result = result


def failure_of(error: BaseException, mask: Mask | None = None, *, any_text: bool = False) -> Failure:
    """Return the failure that the model sees: the message of a `ToolError`, but only the class of other exceptions.

    The messages of other exceptions may contain secrets, so only the developer can read them, in `Execution.error`.
    With `safety.error_text` (`any_text`), the model sees these messages too. `mask` hides sensitive values.
    """
    name = type(error).__name__
    details: dict[str, Any] = {"exception": name}
    if not isinstance(error, Exception if any_text else ToolError):
        return Failure(FailureCode.TOOL_EXECUTION_FAILED, name[:MAX_MESSAGE], details)
    mask = mask or Mask((), {})
    try:
        text = str(error).strip()
        message = mask.text(text[:_MAX_READ])
        # The cut may leave a part of a sensitive value that is too short to be masked, so such a part is removed from
        # the end.
        message = safe_text(message if len(text) <= _MAX_READ else message[:-SHORTEST_PART])
        details |= mask.value(error.details) if isinstance(error, ToolError) else {}
    except Exception:  # noqa: BLE001 - the tool's error may have any text and details
        message = ""
    code = error.failure_code if isinstance(error, ToolError) else FailureCode.TOOL_EXECUTION_FAILED
    return Failure(code, message or name, details)


def safe_text(text: str) -> str:
    """Return the first line of a text in a form that the model may see, with at most 300 characters.

    Paths become `<path>`, control characters spaces. Apply `Mask` first, because the cut may leave a part of a secret.
    """
    first = next(iter(text.strip()[:_MAX_READ].splitlines()), "")
    plain = " ".join(_CONTROL.sub(" ", _PATH.sub("<path>", first)).split())
    return plain if len(plain) <= MAX_MESSAGE else plain[: MAX_MESSAGE - 1] + "…"
