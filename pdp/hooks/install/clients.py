"""The clients whose configuration is changed: where it lies, and what a hook of ours is in it."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from pdp.hooks import ask
from pdp.hooks.call import Moment
from pdp.hooks.dialects import DIALECTS

Scope = Literal["user", "project"]
HOOKS: Final = "hooks"


@dataclass(frozen=True, slots=True)
class HookClient:
    """A client; its program has the first word of its name.

    Attributes:
        user: its configuration, from the home folder; `variable` names another folder for the first in it.
        project: the same, from the working folder. others: more files that count, from there or absolute.
        in_groups: whether handlers stand in groups with a matcher. command: the member of a handler for its line.
        blocks: the member that makes a failed hook deny, and the first version that knows it.
        also: members that its settings have beside hooks.
        demands: a member that must be true, by the object it is in, and the first version that is known to have it.
    """

    name: str
    user: str
    project: str
    variable: str = "-"
    others: tuple[str, ...] = ()
    in_groups: bool = True
    command: str = "command"
    blocks: tuple[str, str | bool, tuple[int, ...]] | None = None
    also: Mapping[str, Any] = field(default_factory=dict)
    demands: tuple[str, str, tuple[int, ...]] | None = None

    @property
    def events(self) -> Mapping[str, Moment]:
        """What each event is for; the first is that of every tool before it runs."""
        return DIALECTS[self.name].events

    def path(self, scope: Scope) -> Path:
        """Return the file of a scope, absolute."""
        if scope == "project":
            return Path.cwd() / self.project
        folder, *names = Path(self.user).parts
        return Path(os.environ.get(self.variable) or Path.home() / folder).absolute().joinpath(*names)

    def line(self, home: Path) -> str:
        """Return the command line that asks the policy of `home`, and denies whatever else happens."""
        words = shlex.join([sys.executable, "-I", "-S", str(Path(ask.__file__).resolve()), self.name, str(home)])
        # A POSIX shell, whichever the client takes, and without `$`, which Gemini CLI expands.
        return shlex.join(["/bin/sh", "-c", f"{words} || {{ echo pdp: the call does not run >&2; exit 2; }}"])

    def entry(self, home: Path) -> dict[str, Any]:
        """Return what stands below each event, without a time: after one, some clients let the call run."""
        handler: dict[str, Any] = {"type": "command", self.command: self.line(home)}
        # A member that the installed version does not know may void the hook.
        if self.blocks is not None and self.version() >= self.blocks[2]:
            handler |= {self.blocks[0]: self.blocks[1]}
        return {"matcher": "*", HOOKS: [handler]} if self.in_groups else handler

    def is_ours(self, handler: Mapping[str, Any]) -> bool:
        """Whether a handler runs our program, of whichever installation and policy."""
        line = handler.get(self.command)
        return isinstance(line, str) and "pdp/hooks/ask.py" in line

    def version(self) -> tuple[int, ...]:
        """Return the version that is installed; where it is unknown, lower than any."""
        program = shutil.which(self.name.partition("-")[0]) or ""
        try:
            said = subprocess.run([program, "--version"], capture_output=True, timeout=20, check=True).stdout  # noqa: S603
        except (OSError, subprocess.SubprocessError):
            return ()
        found = re.search(rb"\d+\.\d+\.\d+", said)
        return tuple(map(int, found[0].split(b"."))) if found else ()


CLIENTS: Final[Mapping[str, HookClient]] = MappingProxyType({client.name: client for client in (
    HookClient(
        "claude-code", ".claude/settings.json", ".claude/settings.json", "CLAUDE_CONFIG_DIR", (
            ".claude/settings.local.json", "/etc/claude-code/managed-settings.json",
            "/etc/claude-code/managed-settings.d/*.json", "/Library/Application Support/ClaudeCode/*.json",
        ), blocks=("onFailure", "block", (2, 1, 295)),
    ),
    HookClient("codex", ".codex/hooks.json", ".codex/hooks.json", "CODEX_HOME"),
    HookClient(
        "cursor", ".cursor/hooks.json", ".cursor/hooks.json", others=("/etc/cursor/hooks.json",), in_groups=False,
        blocks=("failClosed", True, ()), also={"version": 1},
    ),
    HookClient(
        "gemini-cli", ".gemini/settings.json", ".gemini/settings.json",
        # Else it loads `.env` of the folder, and runs hooks by a shell that BASH_ENV in there can stop.
        others=("/etc/gemini-cli/*.json",), demands=("advanced", "ignoreLocalEnv", (0, 42)),
    ),
    HookClient(
        "copilot-cli", ".copilot/hooks/pdp.json", ".github/hooks/pdp.json", "COPILOT_HOME", (".github/hooks/*.json",),
        in_groups=False, command="bash", also={"version": 1},
    ),
)})  # fmt: skip
"""The clients by their names, which are those of their dialects."""
