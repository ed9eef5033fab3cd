"""The clients in whose configuration the hook can be installed, with their files and the settings of the hook."""

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
    """A client and its configuration files: `user` in the home folder, `project` in the working folder.

    The environment variable `variable` replaces the first folder of `user`. `others` are further settings files that
    apply. The field `command` of a handler is its command line. With `in_groups`, handlers are in groups with a
    matcher. `blocks` is the field that makes a failed hook deny the call, its value, and the first version that knows
    the field. `also` are fields that the settings need beside the hooks. `demands` is a setting that must be true: the
    object around the setting, the setting's name, and the first version known to have the setting.
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
    def program(self) -> str:
        """The name of the client's program."""
        return self.name.partition("-")[0]

    @property
    def events(self) -> Mapping[str, Moment]:
        """The moment of each event by name. The first event is sent before each run of any tool."""
        return DIALECTS[self.name].events

    def path(self, scope: Scope) -> Path:
        """Return the absolute path of the user's or the project's settings file."""
        if scope == "project":
            return Path.cwd() / self.project
        folder, *names = Path(self.user).parts
        return Path(os.environ.get(self.variable) or Path.home() / folder).absolute().joinpath(*names)

    def line(self, home: Path) -> str:
        """Return the command line that asks the policy in `home`, and denies the call if anything fails."""
        words = shlex.join([sys.executable, "-I", "-S", str(Path(ask.__file__).resolve()), self.name, str(home)])
        # /bin/sh runs the command, whichever shell the client uses. It has no `$`, which Gemini CLI would expand.
        return shlex.join(["/bin/sh", "-c", f"{words} || {{ echo pdp: the call does not run >&2; exit 2; }}"])

    def entry(self, home: Path, version: tuple[int, ...] | None = None) -> dict[str, Any]:
        """Return the hook's settings for any event. Some clients run a call after a time-out, so no limit is set."""
        handler: dict[str, Any] = {"type": "command", self.command: self.line(home)}
        # An older version of the client may reject the hook because of an unknown field.
        if self.blocks is not None and (self.version() if version is None else version) >= self.blocks[2]:
            handler |= {self.blocks[0]: self.blocks[1]}
        return {"matcher": "*", HOOKS: [handler]} if self.in_groups else handler

    def is_ours(self, handler: Mapping[str, Any]) -> bool:
        """Return whether a handler runs ask.py, of any installation and with any policy."""
        line = handler.get(self.command)
        return isinstance(line, str) and "pdp/hooks/ask.py" in line

    def version(self) -> tuple[int, ...]:
        """Return the installed version of the client, or an empty tuple if the version is unknown."""
        program = shutil.which(self.program) or ""
        try:
            output = subprocess.run([program, "--version"], capture_output=True, timeout=20, check=True).stdout  # noqa: S603
        except (OSError, subprocess.SubprocessError):
            return ()
        version = re.search(rb"\d+\.\d+\.\d+", output)
        return tuple(map(int, version[0].split(b"."))) if version else ()


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
        # Without this setting, Gemini CLI loads the workspace's `.env`, whose BASH_ENV can stop the shell of a hook.
        others=("/etc/gemini-cli/*.json",), demands=("advanced", "ignoreLocalEnv", (0, 42)),
    ),
    HookClient(
        "copilot-cli", ".copilot/hooks/pdp.json", ".github/hooks/pdp.json", "COPILOT_HOME", (".github/hooks/*.json",),
        in_groups=False, command="bash", also={"version": 1},
    ),
)})  # fmt: skip
"""The clients by name. A client and its dialect have the same name."""
