"""Clients with hooks as targets: the registered command line runs as the client runs it, and its answer is taken so.

What a client does with an answer stands in `ruling` of each: as its program was seen to do, or as its source says.
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
    "list filtering": "A hook is not asked which tools the model is told of.",
}
UNTRIED = (
    "What this client makes of the answers of two hooks was not tried; `pdp hook check` says where there are others."
)
ALLOWING = {
    "hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow"},
}


class Ended(NamedTuple):
    """What a hook's program ended with; `code` is negative for a signal."""

    code: int
    out: str
    err: str


class Ruling(NamedTuple):
    """What the client makes of an answer. `why`: what the model is told where the tool does not run."""

    runs: bool
    why: str = ""
    arguments: Mapping[str, Any] | None = None


class HookTarget:
    """A client that asks a hook, played by the test."""

    name = ""
    client = ""
    version = ""
    """Of the client that is played, and how it is known what that does with answers."""
    impossible: Mapping[str, str] = SHARED
    spelling = "mcp__kit__{}"
    allowing: Mapping[str, Any] = ALLOWING
    """What another hook says that allows everything."""

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
            for process in processes_of(home):  # also one that only starts
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def line(self, home: Path) -> str:
        """The command line that is registered with the client."""
        return CLIENTS[self.client].line(home)

    def before(self, tool: str, arguments: Mapping[str, Any], call_id: str) -> dict[str, Any]:
        """What the client sends before a call."""
        raise NotImplementedError

    def after(self, sent: dict[str, Any], result: str | None) -> dict[str, Any] | None:
        """What the client sends after it; None: the result of a call that failed, or nothing to send."""
        raise NotImplementedError

    def ruling(self, ended: Ended) -> Ruling:
        """What the client makes of one hook's answer."""
        raise NotImplementedError

    def ruling_of_all(self, ours: Ruling, other: Ended | None) -> Ruling:
        """What the client makes of ours beside another hook that allows everything."""
        return ours if other is None or not ours.runs else self.ruling(other)._replace(arguments=ours.arguments)


class HookClient:
    """The client, with its hook's HOME."""

    def __init__(self, target: HookTarget, world: World, home: Path) -> None:
        self.target, self.world, self.hooks = target, world, Hooks(home)
        self.home = home
        self.line = target.line(home)

    def warm_up(self) -> None:
        """Start the resident process: on a busy machine the first call may not wait for it long enough."""
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
        return self._taken(tool, arguments, sent, ended)

    def cancel(self, tool: str, arguments: Mapping[str, Any], *, call_id: str) -> None:
        """The hook's program is killed; the shell around it is left."""
        sent, asking = self.target.before(tool, arguments, call_id), self._start()
        ended = self._ended(asking, sent, kill=lambda: _last_children(asking.pid))
        self._taken(tool, arguments, sent, ended)

    def approve(self, held: str) -> None:
        with closing(OpenStores(f"sqlite:///{self.home}/state/store.db")) as stores:
            Approvals(stores.approvals).grant(held, self.world.approver)

    def listed(self) -> Sequence[str]:
        raise NotImplementedError

    def _taken(self, tool: str, arguments: Mapping[str, Any], sent: dict[str, Any], ended: Ended) -> Observed:
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
        told = self.target.after(sent, result)
        if told is not None:
            self._ended(self._start(), told)
        return Observed(result or "the tool failed", is_error=result is None)

    def _start(self) -> subprocess.Popen[bytes]:
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(self.line, shell=True, cwd=self.world.folder, **pipes)  # noqa: S602 - as clients do

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
    """The processes that have a HOME as their last word, with `program` in another one."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = line.read_bytes().decode(errors="replace").split("\0")[:-1]
            if words[-1:] == [str(home)] and any(program in word for word in words):
                found.append(int(line.parent.name))
    return found


def held_by(message: str) -> str | None:
    """The approval that a message says a call waits for."""
    found = re.search(r"approvals grant ([\w-]+)", message)
    return found[1] if found else None


def _last_children(process: int) -> list[int]:
    """The processes below one that have none below them."""
    below = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [last for child in below for last in _last_children(int(child))] or [process]


class ClaudeCodeHook(HookTarget):
    """Claude Code, as its program was seen to take answers (2.1.330)."""

    name, client, version = "hook, Claude Code", "claude-code", "2.1.330, played"

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
            return Ruling(runs=True)  # any other code is no block
        answer = _object(ended.out).get("hookSpecificOutput")
        if not isinstance(answer, dict) or answer.get("hookEventName") != "PreToolUse":
            return Ruling(runs=True)
        if answer.get("permissionDecision") in {"deny", "ask", "defer"}:  # nobody is there to be asked
            return Ruling(runs=False, why=answer.get("permissionDecisionReason", ""))
        return Ruling(runs=True, arguments=answer.get("updatedInput"))


class CodexHook(HookTarget):
    """Codex, as its program was seen to take answers (0.169.0), and as its source says."""

    name, client, version = "hook, Codex", "codex", "0.169.0, played"

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
    """Gemini CLI, as its program was seen to take answers (0.61.0); of several hooks one that blocks is enough."""

    name, client, version = "hook, Gemini CLI", "gemini-cli", "0.61.0, played"
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
    """Copilot CLI, as its program was seen to take answers (1.0.102): exit code 2 denies and loses the reason."""

    name, client, version = "hook, Copilot CLI", "copilot-cli", "1.0.102, played"
    spelling = "mcp__kit__{}"
    impossible: Mapping[str, str] = SHARED | {"handler registered beside ours": UNTRIED}

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
    """Cursor, as others have recorded it: it was not run."""

    name, client, version = "hook, Cursor", "cursor", "3.11, played as others recorded it"
    spelling = "MCP:{}"
    impossible: Mapping[str, str] = SHARED | {
        "handler registered beside ours": UNTRIED,
        "correct": "What it makes of other arguments in an answer is not known: the call is denied, with what to call.",
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
