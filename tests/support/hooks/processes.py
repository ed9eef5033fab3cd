"""Hooks with the starter's files in a new HOME, the program that a client starts, and the resident process."""

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
    """The exit code and the output of the hook's program."""

    code: int
    out: str
    err: str


# Runs ask.py with a shorter limit, without the rest of the package.
_SHORTER = """
import importlib.util, sys
path, seconds = sys.argv.pop(1), float(sys.argv.pop(1))
spec = importlib.util.spec_from_file_location("ask", path)
ask = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ask)
ask.WAIT_SECONDS = seconds
ask.ask()
"""
PASSED = Answered(0, "", "")


def denied(reason: str) -> Answered:
    """Return the output with which ask.py denies a call for this reason."""
    return Answered(2, "", f"pdp denies this call: {reason}\n")


class Hooks:
    """The HOME of a hook and the hook's processes. `program` is the file ask.py of an installation.

    Calls wait for an answer as long as the program says, or `seconds`.
    """

    def __init__(self, home: Path, program: Path = Path(ask.__file__), seconds: float | None = None) -> None:
        self.home, self.program, self.seconds = home, program, seconds
        self.state = home / ask.STATE
        self.log = self.state / "log"

    def start(self, client: str = "claude-code", **options: Any) -> subprocess.Popen[bytes]:
        """Start the hook's program as a client does, with variables that a repository could set."""
        program = [self.program] if self.seconds is None else ["-c", _SHORTER, ask.__file__, str(self.seconds)]
        return subprocess.Popen(
            [sys.executable, "-I", "-S", *program, client, self.home],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"HOME": "/nowhere", "XDG_RUNTIME_DIR": "/nowhere", "PYTHONPATH": "/nowhere", "PDP_PROJECT": "none"},
            **options,
        )

    def ask(self, sent: Mapping[str, Any] | bytes, client: str = "claude-code", **options: Any) -> Answered:
        return self.answer(self.start(client, **options), sent)

    @staticmethod
    def answer(asking: subprocess.Popen[bytes], sent: Mapping[str, Any] | bytes) -> Answered:
        """Send a client's message to the hook's program, and return the program's output."""
        out, err = asking.communicate(sent if isinstance(sent, bytes) else json.dumps(sent).encode(), PATIENCE)
        return Answered(asking.returncode, out.decode(), err.decode())

    def residents(self) -> list[int]:
        """Return the process ids of resident processes that have answered a call, oldest process first."""
        return [int(number) for number in re.findall(r"process (\d+) answers", self.log.read_text())]

    def end(self) -> None:
        """Kill all resident processes."""
        for process in self.residents() if self.log.exists() else ():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


@contextmanager
def hooks_in(folder: Path, **options: Any) -> Iterator[Hooks]:
    """Yield hooks with a new HOME in the folder. At the end, kill the resident processes of these hooks."""
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
    """Return Claude Code's message before a tool call. By default, the message is about an allowed command."""
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
    """Return a function that returns whether a process has ended, even if this process is not its parent."""

    def gone() -> bool:
        try:
            # A zombie process has ended. But while other threads of the process still run, the files of the process
            # stay open.
            has_ended = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].startswith("Z")
            return has_ended and len([*Path(f"/proc/{process}/task").iterdir()]) == 1
        except OSError:
            return True

    return gone
