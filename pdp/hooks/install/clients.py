"""The clients whose configuration is changed: where it lies, and what a hook of ours is in it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from pdp.hooks import ask
from pdp.hooks.dialects import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdp.hooks.call import Moment

Scope = Literal["user", "project"]
HOOKS: Final = "hooks"
_SECONDS: Final = 10
"""How long a client waits for the hook: longer than the hook takes, whose own deny is to come first."""


@dataclass(frozen=True, slots=True)
class HookClient:
    """A client.

    Attributes:
        program: its executable, which is asked for its version.
        user: its configuration, from the home folder; `variable` names another folder for the first in it.
        repository: the same, from the working folder, where it is called otherwise.
        others: more files that count, from the working folder or absolute.
        in_groups: whether handlers stand in groups with a matcher.
        command, timeout: the members of a handler for its line and its time, of which `unit` are a second.
        blocks: the member that makes a failed hook deny, and the first version that knows it.
        also: members that its settings have beside hooks.
    """

    name: str
    program: str
    user: str
    repository: str | None = None
    variable: str = "-"
    others: tuple[str, ...] = ()
    in_groups: bool = True
    command: str = "command"
    timeout: str = "timeout"
    unit: int = 1
    blocks: tuple[str, str | bool, tuple[int, ...]] | None = None
    also: Mapping[str, Any] = field(default_factory=dict)

    @property
    def events(self) -> Mapping[str, Moment]:
        """What each event is for; the first is that of every tool before it runs."""
        return DIALECTS[self.name].events

    def path(self, scope: Scope) -> Path:
        """Return the file of a scope, absolute."""
        if scope == "project":
            return Path.cwd() / (self.repository or self.user)
        folder, *names = Path(self.user).parts
        return Path(os.environ.get(self.variable) or Path.home() / folder).absolute().joinpath(*names)

    def line(self, home: Path) -> str:
        """Return the command line that asks the policy of `home`, and denies whatever else happens."""
        words = shlex.join([sys.executable, "-I", "-S", str(Path(ask.__file__).resolve()), self.name, str(home)])
        # A POSIX shell, whichever the client takes, and without `$`, which Gemini CLI expands.
        return shlex.join(["/bin/sh", "-c", f"{words} || {{ echo pdp: the call does not run >&2; exit 2; }}"])

    def entry(self, home: Path) -> dict[str, Any]:
        """Return what stands below each event."""
        handler = {"type": "command", self.command: self.line(home), self.timeout: _SECONDS * self.unit}
        # A member that the installed version does not know may void the hook.
        if self.blocks is not None and self._version() >= self.blocks[2]:
            handler[self.blocks[0]] = self.blocks[1]
        return {"matcher": "*", HOOKS: [handler]} if self.in_groups else handler

    def is_ours(self, handler: Mapping[str, Any]) -> bool:
        """Whether a handler runs our program, of whichever installation and policy."""
        line = handler.get(self.command)
        return isinstance(line, str) and "pdp/hooks/ask.py" in line and f" {self.name} " in line

    def _version(self) -> tuple[int, ...]:
        """Return the version that is installed; where it is unknown, lower than any."""
        try:
            said = subprocess.run(  # noqa: S603 - the client
                [shutil.which(self.program) or "", "--version"], capture_output=True, timeout=20, check=True
            ).stdout
        except (OSError, subprocess.SubprocessError):
            return ()
        found = re.search(rb"\d+\.\d+\.\d+", said)
        return tuple(map(int, found[0].split(b"."))) if found else ()


CLIENTS: Final[Mapping[str, HookClient]] = MappingProxyType({client.name: client for client in (
    HookClient(
        "claude-code", "claude", ".claude/settings.json", variable="CLAUDE_CONFIG_DIR",
        blocks=("onFailure", "block", (2, 1, 295)), others=(
            ".claude/settings.local.json", "/etc/claude-code/managed-settings.json",
            "/etc/claude-code/managed-settings.d/*.json", "/Library/Application Support/ClaudeCode/*.json",
        ),
    ),
    HookClient("codex", "codex", ".codex/hooks.json", variable="CODEX_HOME"),
    HookClient(
        "cursor", "cursor", ".cursor/hooks.json", others=("/etc/cursor/hooks.json",), in_groups=False,
        blocks=("failClosed", True, ()), also={"version": 1},
    ),
    HookClient(
        "gemini-cli", "gemini", ".gemini/settings.json", others=("/etc/gemini-cli/settings.json",), unit=1000
    ),
    HookClient(
        "copilot-cli", "copilot", ".copilot/hooks/pdp.json", ".github/hooks/pdp.json", "COPILOT_HOME",
        (".github/hooks/*.json",), in_groups=False, command="bash", timeout="timeoutSec", also={"version": 1},
    ),
)})  # fmt: skip
"""The clients by their names, which are those of their dialects."""
