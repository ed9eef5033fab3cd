"""Claude Code itself, the program that claude-agent-sdk brings, with a stand-in for its model: no network, no account.

The model says what a test scripts: turn by turn the tools that it calls. What it is told of each call is what a real
one would read.
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
    """A call by the model."""

    tool: str
    arguments: dict[str, Any]


class ToolResult(NamedTuple):
    """What the model is told of a call: the tool's result, or why it was not run."""

    text: str
    is_error: bool


Turn = Sequence[ToolUse] | Callable[[list[ToolResult]], Sequence[ToolUse]]
"""The calls that the model makes at once; a function gets what it has been told so far. No calls: it has finished."""


@dataclass(frozen=True)
class ClaudeRun:
    """A run of the client. `results`: in the order of the calls; `said`: the JSON that it prints in the end."""

    exit_code: int
    results: list[ToolResult]
    said: dict[str, Any]
    log: str


def claude_program() -> Path:
    """The client's program. Without it tests fail, rather than be passed over in silence."""
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
    """Run the client on one prompt without a person.

    Args:
        home: the person's folder: settings lie in `.claude/settings.json` of it. Not the machine's own.
        workspace: the folder in which the client works.
        turns: what the model does.
        options: more options of the client's command line.
        settings: for `--settings`, beside those of the person and of the workspace.
        environment: more variables; of this process it gets the PATH alone.
        tools: what the client's own rules let run; a tool that is not in there is refused, as nobody can be asked.
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
    """Serve the Messages API at a URL; what is handed out with it gives the results that the latest request carried.

    A request without tools is for something small, such as a title, and has no calls in its answer, unless `always`.
    """
    told: list[ToolResult] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            calls: Sequence[ToolUse] = []
            if request.get("tools") or always:
                blocks = [block for message in request["messages"] for block in _blocks(message)]
                # Calls that are made at once are told in the order in which they ended.
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
            """Say nothing."""

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
    """The stream of one answer, as the Messages API writes it."""
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
