"""A simulated machine of a user, with an empty home folder, a repository, and the command `pdp`."""

import json
import os
import subprocess
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.support import PATIENCE, ROOT
from tests.support.command_line import Done, pdp
from tests.support.hooks.processes import Hooks


@dataclass
class Machine:
    """The folders `home`, `work` and `bin` in `folder`. `bin` comes first in the PATH."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in (self.home, self.work / ".git", self.folder / "bin"):
            each.mkdir(parents=True)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def policy(self) -> Path:
        return self.home / ".config/pdp/hook"

    @property
    def settings(self) -> Path:
        return self.home / ".claude/settings.json"

    @property
    def _environment(self) -> dict[str, str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(self.home), "PYTHONPATH": str(ROOT), **self.variables}

    def program(self, name: str, script: str) -> None:
        """Add a program to `bin` that runs a shell script."""
        file = self.folder / "bin" / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def pdp(self, *arguments: object, stdin: str = "") -> Done:
        """Run a `pdp` command in the repository, in this process but with the variables of the machine only."""
        with patch.dict(os.environ, self._environment, clear=True), chdir(self.work):
            return pdp(*arguments, stdin=stdin.encode())

    def run(self, command: list[str] | str, stdin: str = "") -> Done:
        """Run a command in the repository. The command is a shell command line or a list of arguments."""
        ended = subprocess.run(
            command, shell=isinstance(command, str), input=stdin, capture_output=True, text=True, check=False,
            cwd=self.work, timeout=PATIENCE, env=self._environment,
        )  # fmt: skip
        assert "Traceback" not in ended.stdout + ended.stderr
        assert "internal error of pdp" not in ended.stderr
        return Done(ended.returncode, ended.stdout, ended.stderr)

    def checked(self, *clients: str) -> Any:
        """Run `pdp hook check --json` and return its output."""
        return self.pdp("hook", "check", *clients, "--json").json

    def files(self) -> dict[str, tuple[int, bytes]]:
        """Return mode and content of all files and folders in the home folder, except the files of the policy."""
        found = {}
        for path in sorted(self.home.rglob("*")):
            if not path.is_relative_to(self.home / ".config"):
                content = (
                    os.fsencode(path.readlink()) if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
                )
                found[str(path.relative_to(self.home))] = (path.lstat().st_mode, content)
        return found

    def end(self) -> None:
        """Kill the resident processes of hooks."""
        Hooks(self.policy).end()


def settings_of(machine: Machine) -> Any:
    return json.loads(machine.settings.read_text())
