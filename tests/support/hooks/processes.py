"""Hooks as tests use them: a HOME with the starter's files, what a client starts, and the resident process."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from pdp.hooks import ask
from pdp.hooks.starter import starter_files
from tests.support import PATIENCE


class Answered(NamedTuple):
    """What a client has of a hook."""

    code: int
    out: str
    err: str


PASSED = Answered(0, "", "")


def denied(reason: str) -> Answered:
    """Return the denial with a reason of ask.py itself."""
    return Answered(2, "", f"pdp denies this call: {reason}\n")


class Hooks:
    """HOME, and who asks and answers by it. `program`: an installation's ask.py."""

    def __init__(self, home: Path, program: Path = Path(ask.__file__)) -> None:
        self.home, self.program = home, program
        self.state = home / ask.STATE
        self.log = self.state / "log"

    def start(self, client: str = "claude-code", **options: Any) -> subprocess.Popen[bytes]:
        """Start the program as a client does; its environment has what a repository could put there."""
        return subprocess.Popen(
            [sys.executable, "-I", "-S", self.program, client, self.home],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"HOME": "/nowhere", "XDG_RUNTIME_DIR": "/nowhere", "PYTHONPATH": "/nowhere", "PDP_PROJECT": "none"},
            **options,
        )

    def ask(self, sent: Mapping[str, Any] | bytes, client: str = "claude-code", **options: Any) -> Answered:
        """Ask once."""
        return self.answer(self.start(client, **options), sent)

    @staticmethod
    def answer(asking: subprocess.Popen[bytes], sent: Mapping[str, Any] | bytes) -> Answered:
        """Send what a client sends, and return the answer."""
        out, err = asking.communicate(sent if isinstance(sent, bytes) else json.dumps(sent).encode(), PATIENCE)
        return Answered(asking.returncode, out.decode(), err.decode())

    def residents(self) -> list[int]:
        """Return the resident processes that ever answered, oldest first."""
        return [int(number) for number in re.findall(r"process (\d+) answers", self.log.read_text())]

    def end(self) -> None:
        """End all of them."""
        for process in self.residents() if self.log.exists() else ():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


@contextmanager
def hooks_in(folder: Path, **options: Any) -> Iterator[Hooks]:
    """Yield what asks by a new HOME in a folder; its resident processes are ended."""
    home = folder / "home"
    home.mkdir(mode=0o700)
    for name, content in starter_files("alice").items():
        (home / name).write_bytes(content)
    hooks = Hooks(home, **options)
    hooks.state.mkdir(mode=0o700)
    try:
        yield hooks
    finally:
        hooks.end()


def tool_call(cwd: Path, tool: str = "Bash", **tool_input: Any) -> dict[str, Any]:
    """Return what Claude Code sends before a tool runs; without arguments, a listed command."""
    return {
        "session_id": "s1",
        "transcript_path": "/nowhere",
        "cwd": str(cwd),
        "hook_event_name": "PreToolUse",
        "tool_name": tool,
        "tool_input": tool_input or {"command": "git status"},
        "tool_use_id": "c1",
    }


def is_gone(process: int) -> Callable[[], bool]:
    """Return what tells whether a process that is nobody's child here has ended."""

    def gone() -> bool:
        try:
            # One that nobody has waited for; while other threads of it end, its files are still open.
            has_ended = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].startswith("Z")
            return has_ended and len([*Path(f"/proc/{process}/task").iterdir()]) == 1
        except OSError:
            return True

    return gone
