"""What an adapter adds to a call: `scripts/adapters --bench`, or `python -m benchmarks.adapters NAME` where it is.

An agent of the framework makes one call in each of its runs. Of the time in the adapter's hooks of a call are taken off
the time in `Pep`, and what the framework does to run the tool. What is left is the adapter's and its guard's own. What
is looked at as an agent starts, and lists of tools, are no part of a call. Times are of the processor, for one thread.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from pydoc import locate
from typing import Any, Final
from unittest.mock import patch

from pdp import Approvals, Pep
from pdp.testing.conformance.world import World
from tests.adapters.targets import adapter_target

_MANIFEST: Final = "pdp/testing/conformance/manifest.yaml"
_GOAL_MICROSECONDS: Final = 100.0

_HOOKS: Final[Mapping[str, tuple[tuple[str, ...], str | None]]] = {
    "agent_framework": (("_RunCalls.process",), ""),
    "asgi": (("AsgiMiddleware.__call__",), "fastapi.FastAPI.__call__"),
    "fastmcp": (("FastMcpMiddleware.on_call_tool",), "pdp.adapters.fastmcp._ran"),
    "google_adk": (("AdkPlugin.before_tool_callback",), "google.adk.tools.function_tool.FunctionTool.run_async"),
    "langchain": (("LangChainMiddleware.awrap_tool_call",), ""),
    "mcp": (("McpMiddleware._called",), ""),
    "openai_agents": (("_DecidedTool.__call__", "_DecidedTool.needs_approval"), None),
    "pydantic_ai": (("_DecidedToolset.call_tool",), "pydantic_ai.toolsets.function.FunctionToolset.call_tool"),
}
"""An adapter's hooks of a call, and what runs a tool in the framework: by its name; empty: the hook's last argument.

None: nothing that has a name, so that its time counts as the adapter's.
"""


class Stopwatch:
    """The seconds of one run: in hooks, less those of `Pep` and of the tool; and in `Pep`."""

    own = decisions = 0.0

    @asynccontextmanager
    async def counts(self, own: int, decisions: int = 0) -> AsyncIterator[None]:
        """Count the time of a block, once or less once."""
        begun = time.thread_time()
        try:
            yield
        finally:
            taken = time.thread_time() - begun
            self.own, self.decisions = self.own + own * taken, self.decisions + decisions * taken

    def timed(self, function: Any, own: int, decisions: int = 0, *, last: bool = False) -> Callable[..., Any]:
        """Return a function that is timed; `last`: its last argument's time is taken off."""

        async def run(*given: Any, **named: Any) -> Any:
            if last:
                given = (*given[:-1], self.timed(given[-1], -1))
            async with self.counts(own, decisions):
                return await function(*given, **named)

        return run


WATCH: Final = Stopwatch()


class TimedPep(Pep):
    """Its time is taken off, but for that of the tools' runs."""

    acall = WATCH.timed(Pep.acall, -1, 1)
    adecide = WATCH.timed(Pep.adecide, -1, 1)

    def with_changes(self, *, tools: Any = None, **changes: Any) -> Any:
        timed = tools and {name: WATCH.timed(tool, 1, -1) for name, tool in tools.items()}
        return super().with_changes(tools=timed, **changes)


@contextmanager
def _opened(_: World) -> Iterator[Pep]:
    with TimedPep.from_files(_MANIFEST, approvals=Approvals()) as pep:
        yield pep


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--quick", action="store_true", help="a first look")
    stated = parser.parse_args()
    if stated.name not in _HOOKS:
        print(f"{stated.name}: is not measured; there are {', '.join(sorted(_HOOKS))}")
        return 0
    hooks, executor = _HOOKS[stated.name]
    module, seen = f"pdp.adapters.{stated.name}", list[tuple[float, float]]()

    async def turn(client: Any, number: int) -> None:
        WATCH.own = WATCH.decisions = 0.0
        observed = await client.turn("read_note", {"note": f"n{number}"}, f"c{number}")
        if observed.is_error:
            raise SystemExit(f"a call did not run: {observed}")
        seen.append((WATCH.own, WATCH.decisions))

    with ExitStack() as opened:
        target = adapter_target(stated.name)
        for hook in hooks:
            name = f"{module}.{hook}"
            opened.enter_context(patch(name, WATCH.timed(locate(name), 1, last=executor == "")))
        if executor:
            opened.enter_context(patch(executor, WATCH.timed(locate(executor), -1)))
        opened.enter_context(patch("tests.adapters.client.opened_pep", _opened))
        world = World(Path(opened.enter_context(tempfile.TemporaryDirectory()), "world"))
        opened.callback(world.close)
        client = opened.enter_context(target.open(world))
        for number in range(50 if stated.quick else 500):
            client.portal.call(turn, client, number)  # type: ignore[attr-defined]
    added, decided = (statistics.median(times) * 1e6 for times in zip(*seen[5:], strict=True))
    print(f"{f'{target.name}: decisions of a call, us':45} {decided:10.0f}")
    print(f"{f'{target.name}: the adapter adds, us':45} {added:10.0f}")
    reached = added <= _GOAL_MICROSECONDS
    print(f"goal: {_GOAL_MICROSECONDS:.0f} us: {'reached' if reached else 'missed, or the machine is busy'}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
