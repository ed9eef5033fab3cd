"""The errors by which a tool reports that it has no result, and what the model sees of them.

Source of the codes: tool layer document, safety contract.
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from pdp.contract.sensitive import SHORTEST_PART, Mask
from pdp.errors import PdpError
from pdp.proposal import Failure, FailureCode

LONGEST: Final = 300  # characters of a failure's message at most

# A message may be of any length; the rest is not read.
_READ: Final = 20_000
_PATH: Final = re.compile(
    r"""(?P<quote>["'])(?:~|\.{1,2}|[A-Za-z]:)?[/\\].*?(?P=quote)"""  # quoted, perhaps with blanks in it
    r"""|(?<![\w:/.~])(?:~|\.{1,2})?/[^\s"',;()<>|]*[^\s"',;:.()<>|]"""
    r"""|(?<!\w)[A-Za-z]:\\[^\s"',;()<>|]*[^\s"',;:.()<>|]"""
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class ToolError(PdpError):
    """What a tool raises to state in its own words why there is no result.

    The model sees the first line of the message, without paths, the values of sensitive arguments masked. `details` is
    what a caller may branch on, plain JSON; values of sensitive arguments in it are masked, and user and password in a
    URL. Paths stay.
    """

    code: ClassVar[str] = "pdp.tool_error"
    failure_code: ClassVar[FailureCode] = FailureCode.TOOL_EXECUTION_FAILED

    def __init__(self, message: str, *, details: Mapping[str, Any] | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.details = dict(details or {})


class ToolArgumentError(ToolError):
    """One argument cannot be used, although the schema admits it. Raise it before anything was done.

    `message` says what is wrong with it, such as `must be 1 to 10`.
    """

    code = "pdp.tool_argument"

    def __init__(self, argument: str, message: str) -> None:
        super().__init__(f"argument {argument}: {message}", details={"argument": argument, "effect": "none"})


class ToolUnavailableError(ToolError):
    """The tool cannot run now: something that it needs is missing. Raise it before anything was done.

    For a tool with effects that counts only with the details `{"effect": "none"}`; otherwise its effect is unknown.
    """

    code = "pdp.tool_unavailable"
    failure_code = FailureCode.TOOL_UNAVAILABLE


class ToolExitError(ToolError):
    """A program ended with an exit code that is no result, or by a signal (then the code is negative)."""

    code = "pdp.tool_exit"

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message, details={"exit_code": exit_code})


class ToolResultError(ToolError):
    """There is a result, and it cannot be used: the tool ran, so another try would be a second run.

    `fault` is `invalid` or `too_large`; `result` what the tool returned, where its schema does not admit that.
    """

    code = "pdp.tool_result"

    def __init__(self, message: str, fault: str = "invalid", result: Any = None) -> None:
        super().__init__(message, details={"result": fault})
        self.result = result


def failure_of(error: BaseException, mask: Mask | None = None, *, any_text: bool = False) -> Failure:
    """Return what the model sees of `error`: the message of a `ToolError`; of any other exception its class alone.

    The message of another exception is not meant for a model: it may name hosts, passwords and what other people own.
    The developer of the tool finds it in `Execution.error`, and shows it all the same by `safety.error_text`
    (`any_text`). `mask` hides the values of sensitive arguments.
    """
    name = type(error).__name__
    details: dict[str, Any] = {"exception": name}
    if not isinstance(error, Exception if any_text else ToolError):
        return Failure(FailureCode.TOOL_EXECUTION_FAILED, name[:LONGEST], details)
    mask = mask or Mask((), {})
    try:
        text = str(error).strip()
        message = mask.text(text[:_READ])
        # A value that is cut here has no part left that is hidden when fewer than eight characters of it are left.
        message = safe_text(message if len(text) <= _READ else message[:-SHORTEST_PART])
        details |= mask.value(error.details) if isinstance(error, ToolError) else {}
    except Exception:  # noqa: BLE001 - an error of the tool's own may have any text and any details
        message = ""
    code = error.failure_code if isinstance(error, ToolError) else FailureCode.TOOL_EXECUTION_FAILED
    return Failure(code, message or name, details)


def safe_text(text: str) -> str:
    """Return the first line of `text` that can be shown to the model: at most 300 characters.

    Absolute paths and those from `~`, `.` or `..` on become `<path>`, control characters blanks. What `Mask` hides is
    hidden before: a text that is cut would leave parts of it.
    """
    first = next(iter(text.strip()[:_READ].splitlines()), "")
    plain = " ".join(_CONTROL.sub(" ", _PATH.sub("<path>", first)).split())
    return plain if len(plain) <= LONGEST else plain[: LONGEST - 1] + "…"
