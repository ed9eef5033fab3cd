"""What the suite drives: an enforcement point with its client. A target is written once for each way in."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from pdp.testing.conformance.world import World


@dataclass(frozen=True, slots=True)
class Observed:
    """What the client's model sees of a call. `held`: the id of the approval that the message says it waits for."""

    message: str
    is_error: bool
    held: str | None = None


class ToolClient(Protocol):
    """A client that is open: tools are called as in manifest.yaml, and their bodies are `run_body`.

    What cannot be done raises NotImplementedError, and the target's `impossible` says why.
    """

    def call(self, tool: str, arguments: Mapping[str, Any], *, call_id: str, by_position: bool = False) -> Observed:
        """Call a tool as a model does, from any thread; `by_position`: pass the values of `arguments` without names."""

    def cancel(self, tool: str, arguments: Mapping[str, Any], *, call_id: str) -> None:
        """Begin a call, give it up as the client does once `World.engine.asked` is set, and wait for its end."""

    def approve(self, held: str) -> None:
        """Have somebody with `World.approver`'s claims grant what a call waits for."""

    def listed(self) -> Sequence[str]:
        """Return the tools that the model is told of."""


class Target(Protocol):
    """A way in.

    `name` and `versions` (such as `{"Claude Code": "2.1.330"}`) head its row. `spelling`: how the manifest names its
    tools, as `mcp__kit__{}`. `impossible`: why a case cannot pass, by its name; it is tried, and runs nothing wrong.
    """

    name: str
    versions: Mapping[str, str]
    impossible: Mapping[str, str]
    spelling: str

    def open(self, world: World) -> AbstractContextManager[ToolClient]:
        """Open a client whose calls the policy in `World.folder` decides, in the world's setting (`World.setting`)."""
