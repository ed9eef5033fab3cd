"""The target Claude Code: the real program with a scripted model, and the suite's tools on an MCP server."""

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pdp.hooks.install.clients import CLIENTS
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World
from tests.conformance.hooks import ALLOWING, SHARED, ClaudeCodeHook, HookClient, held_by, processes_of
from tests.support import PATIENCE, until
from tests.support.claude_code import ToolResult, ToolUse, run_claude

SERVER = Path(__file__).with_name("mcp_server.py")
TOOLS = ("read_note", "pay_bill", "wipe_disk", "fetch_page", "ping_host", "post_note", "open_shell")
_MOST_TURNS = 200
_AT_ONCE_SECONDS = 0.1  # If several calls arrive within this time, the model makes them in the same turn.


class ScriptedCalls:
    """A scripted model that makes the calls it gets from the test. It makes calls that arrive together in one turn."""

    def __init__(self) -> None:
        self.given: queue.Queue[tuple[ToolUse, Future[ToolResult]] | None] = queue.Queue()
        self.made: list[Future[ToolResult]] = []
        self.turns = [self.turn] * _MOST_TURNS

    def give(self, tool: str, arguments: Mapping[str, Any]) -> Future[ToolResult]:
        """Let the model call a tool of the suite, and return a future of the result that the model sees."""
        future: Future[ToolResult] = Future()
        self.given.put((ToolUse(f"mcp__kit__{tool}", dict(arguments)), future))
        return future

    def turn(self, results: list[ToolResult]) -> Sequence[ToolUse]:
        for future, result in zip(self.made, results[len(results) - len(self.made) :], strict=True):
            future.set_result(result)
        self.made, calls = [], []
        given = self.given.get()
        with suppress(queue.Empty):
            while given is not None:
                calls.append(given[0])
                self.made.append(given[1])
                given = self.given.get(timeout=_AT_ONCE_SECONDS)
        return calls


class ClaudeClient:
    """A running Claude Code with its scripted model."""

    def __init__(self, world: World, hook: HookClient) -> None:
        self.world, self.hook, self.model = world, hook, ScriptedCalls()

    def call(self, tool: str, arguments: Mapping[str, Any], *, call_id: str, by_position: bool = False) -> Observed:
        if by_position:
            raise NotImplementedError
        if self.world.setting == "raises":
            return self._interrupted(tool, arguments, self.hook.hooks.residents)
        return _seen(self.model.give(tool, arguments).result(PATIENCE))

    def cancel(self, tool: str, arguments: Mapping[str, Any], *, call_id: str) -> None:
        self._interrupted(tool, arguments, lambda: processes_of(self.hook.home, "ask.py"))

    def approve(self, held: str) -> None:
        self.hook.approve(held)

    def listed(self) -> Sequence[str]:
        raise NotImplementedError

    def _interrupted(self, tool: str, arguments: Mapping[str, Any], processes: Any) -> Observed:
        """Make a call, kill `processes` while the engine decides the call, and return what the model sees."""
        self.world.engine.become("slow")
        future = self.model.give(tool, arguments)
        assert until(lambda: self.world.engine.asked.is_set() or future.done())
        for process in processes():
            os.kill(process, signal.SIGKILL)
        return _seen(future.result(PATIENCE))


class ClaudeCodeTarget:
    """Claude Code with the hook that this package installs."""

    name = "Claude Code itself"
    impossible: Mapping[str, str] = SHARED
    spelling = "mcp__kit__{}"
    other_answer: Mapping[str, Any] = ALLOWING
    versions: Mapping[str, str] = {"Claude Code": "2.1.330"}

    @contextmanager
    def open(self, world: World) -> Iterator[ClaudeClient]:
        person, workspace = world.folder / "person", world.folder / "workspace"
        person.mkdir()
        workspace.mkdir()
        words = [str(SERVER), str(world.folder / "manifest.yaml"), str(world.record)]
        environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        servers = {"kit": {"command": sys.executable, "args": words, "env": environment}}
        options = ["--strict-mcp-config", "--mcp-config", json.dumps({"mcpServers": servers})]
        with ClaudeCodeHook().open(world) as hook:
            client, registered = ClaudeClient(world, hook), CLIENTS["claude-code"]
            hooks = {event: [registered.entry(hook.home)] for event in registered.events}
            if world.setting == "beside":
                other = {"type": "command", "command": f"echo '{json.dumps(self.other_answer)}'"}
                hooks["PreToolUse"].append({"matcher": "*", "hooks": [other]})
            names = ",".join(self.spelling.format(tool) for tool in TOOLS)
            program = threading.Thread(
                target=run_claude,
                args=(person, workspace, client.model.turns, *options),
                kwargs={"settings": {"hooks": hooks}, "tools": names},
            )
            program.start()
            try:
                yield client
            finally:
                client.model.given.put(None)
                program.join()


def _seen(result: ToolResult) -> Observed:
    return Observed(result.text, result.is_error, held_by(result.text))
