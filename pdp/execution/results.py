"""What a tool returned, held against what its entry declares: its schema and its size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdp.execution.failures import ToolResultError, failure_of
from pdp.json import JsonValueError, canonical, check_json
from pdp.manifest.schema.compile import compile_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdp.manifest.model import DeclaredTool
    from pdp.proposal import Execution

MAX_RESULT: Final = 1024 * 1024
"""Bytes of a result's canonical JSON at most, unless the application says otherwise."""

_SHOWN: Final = 3


class ResultContract:
    """What every result of one tool has to be.

    With a result schema it has to be JSON of that schema; its objects may hold more than the schema names, unless it
    says otherwise. Without one it may be any object; of one that is no JSON only bytes and text are measured.

    Args:
        entry: the tool's entry.
        max_bytes: bytes of canonical JSON at most, or of a result that is bytes or text.

    Raises:
        UsageError: the result schema cannot be compiled.
    """

    def __init__(self, entry: DeclaredTool, *, max_bytes: int = MAX_RESULT) -> None:
        self._validator = None if entry.result_schema is None else compile_schema(entry.result_schema)
        self._max_bytes = max_bytes

    def held(self, execution: Execution, secrets: Sequence[str] = ()) -> Execution:
        """Return `execution`, or the failure that it is when its result is not what was declared.

        The tool ran, so the failure's details say `{"effect": "done"}`: nobody may simply try again.
        """
        if execution.failure is not None:
            return execution
        try:
            self._check(execution.result)
        except ToolResultError as error:
            error.details["effect"] = "done"
            return execution._replace(result=None, failure=failure_of(error, secrets), error=error)
        return execution

    def _check(self, result: Any) -> None:
        try:
            if self._validator is not None:
                check_json(result)
            size = len(canonical(result))
        except JsonValueError as error:
            if self._validator is not None:
                raise ToolResultError(f"the result is not JSON: {error}") from error
            size = _size(result)
        if size > self._max_bytes:
            raise ToolResultError(f"the result has {size} bytes, at most {self._max_bytes} are admitted", "too_large")
        if self._validator is not None and not self._validator.is_valid(result):
            faults = sorted(
                "result"
                + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in one.instance_path)
                + f": {one.message}"
                for one in self._validator.iter_errors(result)
            )
            raise ToolResultError("the result does not match its schema: " + "; ".join(faults[:_SHOWN]))


def _size(result: Any) -> int:
    """Return how many bytes a result has that is no JSON; 0 where nobody can say."""
    if isinstance(result, str):
        return len(result.encode(errors="surrogatepass"))
    if isinstance(result, memoryview):
        return result.nbytes
    return len(result) if isinstance(result, bytes | bytearray) else 0
