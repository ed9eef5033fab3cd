"""The interface of the suite: implement a `Target` for each kind of enforcement point."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from pdp.testing.conformance.world import World


@dataclass(frozen=True, slots=True)
class Observed:
    """The answer to a call as the client's model sees it.

    Attributes:
        message: the text of the answer.
        is_error: whether the client marks the answer as an error.
        held: the id of the approval that the call waits for, taken from the message; None if the call does not wait.

    Examples:
        >>> Observed("read_note got {}", is_error=False).held is None
        True
    """

    message: str
    is_error: bool
    held: str | None = None


class ToolClient(Protocol):
    """An open client. Its tools are those of manifest.yaml, and each tool calls `run_body`.

    A method that the client does not support raises NotImplementedError; `Target.impossible` then says why.
    """

    def call(self, tool: str, arguments: Mapping[str, Any], *, call_id: str, by_position: bool = False) -> Observed:
        """Call a tool as a model does, from any thread. With `by_position`, pass the arguments without their names."""

    def cancel(self, tool: str, arguments: Mapping[str, Any], *, call_id: str) -> None:
        """Start a call, cancel it as soon as `World.engine.asked` is set, and wait until the call has ended."""

    def approve(self, held: str) -> None:
        """Approve the call that waits for the approval `held`, with the claims `World.approver`."""

    def listed(self) -> Sequence[str]:
        """Return the names of the tools that the model can see."""


class Target(Protocol):
    """An enforcement point with its client.

    Attributes:
        name: the target's name in the table of results.
        versions: the versions in the table, such as `{"Claude Code": "2.1.330"}`.
        impossible: why a case cannot pass, by the case's name. The case still runs, and fails if a denied tool runs.
        spelling: the format of tool names in the manifest, such as `mcp__kit__{}`.
    """

    name: str
    versions: Mapping[str, str]
    impossible: Mapping[str, str]
    spelling: str

    def open(self, world: World) -> AbstractContextManager[ToolClient]:
        """Open a client whose calls are decided by the policy in `World.folder`, with the fault `World.setting`."""
