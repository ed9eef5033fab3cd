"""Run the real Claude Code program with a scripted model, without a network or an account.

The test scripts the tool calls of each turn. The scripted model receives the same results as a real model.
"""

import importlib.util
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import PATIENCE


class ToolUse(NamedTuple):
    """A tool call that the model makes."""

    tool: str
    arguments: dict[str, Any]


class ToolResult(NamedTuple):
    """The text that the model sees after a call: the result of the tool, or the reason why the tool did not run."""

    text: str
    is_error: bool


Turn = Sequence[ToolUse] | Callable[[list[ToolResult]], Sequence[ToolUse]]
"""The parallel calls of one turn, or a function that returns them for the results so far. No calls end the run."""


@dataclass(frozen=True)
class ClaudeRun:
    """The outcome of a run: `results` in the order of the calls, and the last JSON that the client prints (`said`)."""

    exit_code: int
    results: list[ToolResult]
    said: dict[str, Any]
    log: str


def claude_program() -> Path:
    """Return the path of the Claude Code program. If the program is missing, tests are not skipped but fail."""
    found = importlib.util.find_spec("claude_agent_sdk")
    program = Path(found.origin if found and found.origin else "").parent / "_bundled" / "claude"
    if not program.is_file():
        pytest.fail("Claude Code is not there: claude-agent-sdk has no program for this platform")
    return program


def run_claude(
    home: Path,
    workspace: Path,
    turns: Sequence[Turn],
    *options: str,
    settings: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    tools: str = "Bash,Read,Write,Edit,Glob,Grep",
) -> ClaudeRun:
    """Run Claude Code on one prompt. Nobody can answer Claude Code's questions.

    Args:
        home: the user's home folder, with settings in `.claude/settings.json`.
        workspace: the folder in which the client works.
        turns: the turns of the model.
        options: more command-line options of the client.
        settings: the value of `--settings`, in addition to the settings of user and workspace.
        environment: more environment variables. Only PATH is inherited.
        tools: the tools that the client's own rules allow. The client rejects all other tools, because it can ask
            nobody.
    """
    chosen = ["--settings", json.dumps(settings)] if settings is not None else []
    with model(turns) as (url, results):
        ended = subprocess.run(
            [claude_program(), "-p", "work", "--output-format", "json", "--allowedTools", tools, *chosen, *options],
            cwd=workspace, capture_output=True, text=True, timeout=PATIENCE, check=False, stdin=subprocess.DEVNULL,
            env={
                "PATH": os.environ["PATH"], "HOME": str(home), "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", **(environment or {}),
            },
        )  # fmt: skip
        said = json.loads(ended.stdout) if ended.stdout.startswith("{") else {}
        return ClaudeRun(ended.returncode, results(), said, ended.stdout + ended.stderr)


@contextmanager
def model(turns: Sequence[Turn], *, always: bool = False) -> Iterator[tuple[str, Callable[[], list[ToolResult]]]]:
    """Serve the Messages API. Yield its URL, and a function that returns the tool results in the latest request.

    A request without tools, for example for a title, gets an answer without calls, unless `always` is true.
    """
    told: list[ToolResult] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            calls: Sequence[ToolUse] = []
            if request.get("tools") or always:
                blocks = [block for message in request["messages"] for block in _blocks(message)]
                # The client sends the results of parallel calls in the order in which the calls ended. Sort the results
                # by the order of the calls.
                found = sorted((block for block in blocks if block["type"] == "tool_result"), key=_place)
                told[:] = [_result(block) for block in found]
                done = sum(_calls(message) > 0 for message in request["messages"])
                turn = turns[done] if done < len(turns) else []
                calls = turn(list(told)) if callable(turn) else turn
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for event in _events(calls, len(told)):
                self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

        def do_HEAD(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Do not log requests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", lambda: list(told)
        finally:
            server.shutdown()
            thread.join()


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    return message["content"] if isinstance(message["content"], list) else []


def _calls(message: dict[str, Any]) -> int:
    return sum(block["type"] == "tool_use" for block in _blocks(message))


def _place(block: dict[str, Any]) -> int:
    return int(block["tool_use_id"].removeprefix("toolu_"))


def _result(block: dict[str, Any]) -> ToolResult:
    content = block.get("content") or ""
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    return ToolResult(text, bool(block.get("is_error")))


def _events(calls: Sequence[ToolUse], before: int) -> Iterator[dict[str, Any]]:
    """Return an answer of the Messages API as an event stream."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    empty = {"id": f"msg_{before}", "type": "message", "role": "assistant", "model": "stand-in", "content": []}
    yield {"type": "message_start", "message": {**empty, "stop_reason": None, "stop_sequence": None, "usage": usage}}
    for index, call in enumerate(calls):
        block = {"type": "tool_use", "id": f"toolu_{before + index}", "name": call.tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call.arguments)}
        yield from _block(index, block, delta)
    if not calls:
        yield from _block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "done"})
    stop = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": stop, "usage": usage}
    yield {"type": "message_stop"}


def _block(index: int, block: dict[str, Any], delta: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"type": "content_block_start", "index": index, "content_block": block}
    yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}
