"""Simulated clients with hooks. The target runs the registered command line and reacts to its answer like the client.

The method `ruling` of each client says how the client reacts to an answer, as observed or by its source code.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from pdp.approvals.approvals import Approvals
from pdp.hooks import ask
from pdp.hooks.install.clients import CLIENTS
from pdp.stores.url import OpenStores
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World, run_body
from tests.support import PATIENCE, until
from tests.support.hooks.processes import Hooks

SHARED = {
    "positional arguments": "In every call of this client, arguments have names.",
    "list filtering": "Hooks cannot filter the list of tools.",
}
NOT_TESTED = "This client was not tested with two hooks; `pdp hook check` lists other hooks."
ALLOWING = {
    "hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow"},
}


class Ended(NamedTuple):
    """How the program of a hook ended: its output and its exit code, which is negative after a signal."""

    code: int
    out: str
    err: str


class Ruling(NamedTuple):
    """How the client reacts to an answer. `why` is the text that the model sees if the tool does not run."""

    runs: bool
    why: str = ""
    arguments: Mapping[str, Any] | None = None


class HookTarget:
    """A simulated client that asks a hook before each call."""

    name = ""
    client = ""
    version = ""
    """The versions of the simulated client, and whether its reactions were observed or read in its source code."""
    impossible: Mapping[str, str] = SHARED
    spelling = "mcp__kit__{}"
    allowing: Mapping[str, Any] = ALLOWING
    """The answer of another hook, which allows everything."""

    def __init__(self) -> None:
        self.versions: Mapping[str, str] = {self.name.removeprefix("hook, "): self.version}

    @contextmanager
    def open(self, world: World) -> Iterator[HookClient]:
        home = world.folder / "home"
        home.mkdir(mode=0o700)
        (home / ask.STATE).mkdir(mode=0o700)
        project = orjson.loads((world.folder / "pdp.yaml").read_bytes())
        (home / "pdp.yaml").write_bytes(orjson.dumps({**project, "store": "sqlite:///state/store.db"}))
        (home / "commands.yaml").write_text("{}")
        for name in ("manifest.yaml", "session.yaml"):
            (home / name).write_bytes((world.folder / name).read_bytes())
        for file in home.glob("*.yaml"):
            file.chmod(0o600)
        client = HookClient(self, world, home)
        try:
            client.warm_up()
            yield client
        finally:
            for process in processes_of(home):  # `processes_of` also lists programs that are just starting.
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def line(self, home: Path) -> str:
        """Return the command line that the installation registers with the client."""
        return CLIENTS[self.client].line(home)

    def before(self, tool: str, arguments: Mapping[str, Any], call_id: str) -> dict[str, Any]:
        """Return the JSON that the client sends to the hook before a call."""
        raise NotImplementedError

    def after(self, sent: dict[str, Any], result: str | None) -> dict[str, Any] | None:
        """Return the JSON that the client sends after a call. None if the client sends nothing, as after a failure."""
        raise NotImplementedError

    def ruling(self, ended: Ended) -> Ruling:
        """Return how the client reacts if one hook gives this answer."""
        raise NotImplementedError

    def ruling_of_all(self, ours: Ruling, other: Ended | None) -> Ruling:
        """Return how the client reacts if our hook gives the ruling `ours` and another hook allows everything."""
        return ours if other is None or not ours.runs else self.ruling(other)._replace(arguments=ours.arguments)


class HookClient:
    """A simulated client, and the HOME of the hook that it asks."""

    def __init__(self, target: HookTarget, world: World, home: Path) -> None:
        self.target, self.world, self.hooks = target, world, Hooks(home)
        self.home = home
        self.line = target.line(home)

    def warm_up(self) -> None:
        """Start the resident process before the first call, because on a busy machine its start may take too long."""
        sent = self.target.before("open_shell", {}, "first")
        assert until(lambda: "is not ready" not in self._ended(self._start(), sent).err)

    def call(self, tool: str, arguments: Mapping[str, Any], *, call_id: str, by_position: bool = False) -> Observed:
        if by_position or (
            self.world.setting == "beside" and "handler registered beside ours" in self.target.impossible
        ):
            raise NotImplementedError
        sent = self.target.before(tool, arguments, call_id)
        if self.world.setting == "raises":
            self.world.engine.become("slow")
        asking = self._start()
        if self.world.setting == "raises":
            ended = self._ended(asking, sent, kill=self.hooks.residents)
        else:
            ended = self._ended(asking, sent)
        return self._apply_answer(tool, arguments, sent, ended)

    def cancel(self, tool: str, arguments: Mapping[str, Any], *, call_id: str) -> None:
        """Kill the program of the hook, but not the shell that started the program."""
        sent, asking = self.target.before(tool, arguments, call_id), self._start()
        ended = self._ended(asking, sent, kill=lambda: _descendants_without_children(asking.pid))
        self._apply_answer(tool, arguments, sent, ended)

    def approve(self, held: str) -> None:
        with closing(OpenStores(f"sqlite:///{self.home}/state/store.db")) as stores:
            Approvals(stores.approvals).grant(held, self.world.approver)

    def listed(self) -> Sequence[str]:
        raise NotImplementedError

    def _apply_answer(self, tool: str, arguments: Mapping[str, Any], sent: dict[str, Any], ended: Ended) -> Observed:
        other = Ended(0, json.dumps(dict(self.target.allowing)), "") if self.world.setting == "beside" else None
        ruling = self.target.ruling_of_all(self.target.ruling(ended), other)
        if not ruling.runs:
            return Observed(ruling.why, is_error=True, held=held_by(ruling.why))
        if ruling.arguments is not None:
            arguments = ruling.arguments
            sent = {**sent, **self.target.before(tool, arguments, "?"), "tool_use_id": sent.get("tool_use_id")}
        result = None
        with suppress(RuntimeError):
            result = run_body(self.world.record, tool, arguments)
        report = self.target.after(sent, result)
        if report is not None:
            self._ended(self._start(), report)
        return Observed(result or "the tool failed", is_error=result is None)

    def _start(self) -> subprocess.Popen[bytes]:
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(self.line, shell=True, cwd=self.world.folder, **pipes)  # noqa: S602 - like clients

    def _ended(self, asking: subprocess.Popen[bytes], sent: Mapping[str, Any], kill: Any = None) -> Ended:
        if kill is None:
            out, err = asking.communicate(json.dumps(sent).encode(), PATIENCE)
        else:
            assert asking.stdin is not None
            asking.stdin.write(json.dumps(sent).encode())
            asking.stdin.close()
            asking.stdin = None
            assert until(lambda: self.world.engine.asked.is_set() or asking.poll() is not None)
            for process in kill():
                os.kill(process, signal.SIGKILL)
            out, err = asking.communicate(None, PATIENCE)
        return Ended(asking.returncode, out.decode(), err.decode())


def processes_of(home: Path, program: str = "") -> list[int]:
    """Return the ids of processes whose last argument is `home` and that have another argument containing `program`."""
    processes = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = line.read_bytes().decode(errors="replace").split("\0")[:-1]
            if words[-1:] == [str(home)] and any(program in word for word in words):
                processes.append(int(line.parent.name))
    return processes


def held_by(message: str) -> str | None:
    """Return the id of the approval that the denial message names, if any."""
    match = re.search(r"approvals grant ([\w-]+)", message)
    return match[1] if match else None


def _descendants_without_children(process: int) -> list[int]:
    """Return the ids of those descendants of a process that have no child processes."""
    below = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [last for child in below for last in _descendants_without_children(int(child))] or [process]


class ClaudeCodeHook(HookTarget):
    """Claude Code, simulated as we observed version 2.1.330."""

    name, client, version = "hook, Claude Code", "claude-code", "2.1.330, simulated"

    def before(self, tool: str, arguments: Mapping[str, Any], call_id: str) -> dict[str, Any]:
        return {
            "session_id": "s1", "transcript_path": "/nowhere", "cwd": "/", "hook_event_name": "PreToolUse",
            "tool_name": self.spelling.format(tool), "tool_input": arguments, "tool_use_id": call_id,
            "mcp_server": {"name": "kit", "source": "user"},
        }  # fmt: skip

    def after(self, sent: dict[str, Any], result: str | None) -> dict[str, Any] | None:
        if result is None:
            return {**sent, "hook_event_name": "PostToolUseFailure", "error": "it failed"}
        return {**sent, "hook_event_name": "PostToolUse", "tool_response": [{"type": "text", "text": result}]}

    def ruling(self, ended: Ended) -> Ruling:
        if ended.code == 2:
            return Ruling(runs=False, why=ended.err)
        if ended.code:
            return Ruling(runs=True)  # Claude Code runs the call if the hook exits with any code other than 0 and 2.
        answer = _object(ended.out).get("hookSpecificOutput")
        if not isinstance(answer, dict) or answer.get("hookEventName") != "PreToolUse":
            return Ruling(runs=True)
        # `ask` blocks the call, because no person can be asked here.
        if answer.get("permissionDecision") in {"deny", "ask", "defer"}:
            return Ruling(runs=False, why=answer.get("permissionDecisionReason", ""))
        return Ruling(runs=True, arguments=answer.get("updatedInput"))


class CodexHook(HookTarget):
    """Codex, simulated as we observed version 0.169.0 and as its source code says."""

    name, client, version = "hook, Codex", "codex", "0.169.0, simulated"

    def before(self, tool: str, arguments: Mapping[str, Any], call_id: str) -> dict[str, Any]:
        return {
            "session_id": "s1", "transcript_path": None, "cwd": "/", "hook_event_name": "PreToolUse", "turn_id": "t1",
            "model": "m", "permission_mode": "default",
            "tool_name": self.spelling.format(tool), "tool_input": arguments, "tool_use_id": call_id,
        }  # fmt: skip

    def after(self, sent: dict[str, Any], result: str | None) -> dict[str, Any] | None:
        return {**sent, "hook_event_name": "PostToolUse", "tool_response": result or "it failed"}

    def ruling(self, ended: Ended) -> Ruling:
        if ended.code == 2 and ended.err.strip():
            return Ruling(runs=False, why=ended.err)
        answer = _object(ended.out)
        own = answer.get("hookSpecificOutput")
        is_invalid = not isinstance(own, dict) or not {"continue", "stopReason", "suppressOutput"}.isdisjoint(answer)
        if ended.code or is_invalid or not isinstance(own, dict):
            return Ruling(runs=True)
        match own:
            case {"permissionDecision": "deny", "permissionDecisionReason": str(why)} if why.strip():
                return Ruling(runs=False, why=why)
            case {"permissionDecision": "allow", "updatedInput": dict(arguments)}:
                return Ruling(runs=True, arguments=arguments)
        return Ruling(runs=True)


def _object(text: str) -> dict[str, Any]:
    with suppress(ValueError):
        value = json.loads(text)
        if isinstance(value, dict):
            return value
    return {}


class GeminiHook(HookTarget):
    """Gemini CLI, simulated as we observed version 0.61.0. If there are several hooks, each hook can block a call."""

    name, client, version = "hook, Gemini CLI", "gemini-cli", "0.61.0, simulated"
    spelling = "mcp_kit_{}"
    allowing: Mapping[str, Any] = MappingProxyType({"decision": "allow"})

    def before(self, tool: str, arguments: Mapping[str, Any], call_id: str) -> dict[str, Any]:
        return {
            "session_id": "s1", "transcript_path": "/nowhere", "cwd": "/", "hook_event_name": "BeforeTool",
            "timestamp": "2026-11-23T14:40:39.793Z", "tool_name": self.spelling.format(tool), "tool_input": arguments,
            "mcp_context": {"server_name": "kit", "tool_name": tool, "command": "kit"},
        }  # fmt: skip

    def after(self, sent: dict[str, Any], result: str | None) -> dict[str, Any] | None:
        response = {"error": {"message": "it failed"}} if result is None else {"llmContent": result}
        return {**sent, "hook_event_name": "AfterTool", "tool_response": response}

    def ruling(self, ended: Ended) -> Ruling:
        if ended.code in {0, 1}:
            answer = _object(ended.out or ended.err)
            if answer.get("decision") in {"deny", "block"}:
                return Ruling(runs=False, why=answer.get("reason", ""))
            own = answer.get("hookSpecificOutput")
            return Ruling(runs=True, arguments=own.get("tool_input") if isinstance(own, dict) else None)
        text = (ended.out or ended.err).strip()
        return Ruling(runs=not text or ended.code < 0, why=text)


class CopilotHook(HookTarget):
    """Copilot CLI, simulated as we observed version 1.0.102. Exit code 2 denies the call, but the reason is lost."""

    name, client, version = "hook, Copilot CLI", "copilot-cli", "1.0.102, simulated"
    spelling = "mcp__kit__{}"
    impossible: Mapping[str, str] = SHARED | {"handler registered beside ours": NOT_TESTED}

    def before(self, tool: str, arguments: Mapping[str, Any], call_id: str) -> dict[str, Any]:
        return {
            "hook_event_name": "PreToolUse", "session_id": "s1", "timestamp": "2026-11-23T14:34:48.049Z", "cwd": "/",
            "tool_name": self.spelling.format(tool), "tool_input": arguments,
        }  # fmt: skip

    def after(self, sent: dict[str, Any], result: str | None) -> dict[str, Any] | None:
        name = "PostToolUse" if result else "PostToolUseFailure"
        return {**sent, "hook_event_name": name, "tool_result": {"text_result_for_llm": result or "it failed"}}

    def ruling(self, ended: Ended) -> Ruling:
        if ended.code:
            return Ruling(runs=False, why="denied by a hook")
        answer = _object(ended.out)
        if answer.get("permissionDecision") == "deny":
            return Ruling(runs=False, why=answer.get("permissionDecisionReason", ""))
        own = answer.get("hookSpecificOutput")
        return Ruling(runs=True, arguments=own.get("updatedInput") if isinstance(own, dict) else None)


class CursorHook(HookTarget):
    """Cursor, simulated as published texts describe Cursor, because this project has not run the program."""

    name, client, version = "hook, Cursor", "cursor", "3.11, simulated as described by others"
    spelling = "MCP:{}"
    impossible: Mapping[str, str] = SHARED | {
        "handler registered beside ours": NOT_TESTED,
        "correct": "Unknown whether this client uses changed arguments: the call is denied, and the answer shows them.",
    }

    def before(self, tool: str, arguments: Mapping[str, Any], call_id: str) -> dict[str, Any]:
        return {
            "conversation_id": "c1", "generation_id": "g1", "model": "m", "hook_event_name": "preToolUse",
            "session_id": "c1", "cursor_version": "3.11.25", "workspace_roots": ["/"],
            "tool_name": self.spelling.format(tool), "tool_input": arguments, "tool_use_id": call_id,
        }  # fmt: skip

    def after(self, sent: dict[str, Any], result: str | None) -> dict[str, Any] | None:
        name = "postToolUse" if result else "postToolUseFailure"
        return {**sent, "hook_event_name": name, "tool_output": result}

    def ruling(self, ended: Ended) -> Ruling:
        answer = _object(ended.out)
        if ended.code == 2 or answer.get("permission") == "deny":
            return Ruling(runs=False, why=str(answer.get("agent_message", ended.err)))
        return Ruling(runs=True)
