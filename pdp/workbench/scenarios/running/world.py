"""A recorded world: the systems that a scenario's tools meet, and what the tools touch.

Source: tool pattern library, 9.1 (side-effect probes) and 9.2 (what each effect class touches).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from pdp.evaluation import Evaluation
from pdp.execution.events import ToolEvent
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.fields import EffectClass, Pattern
from pdp.workbench.scenarios.files.scenario import System
from pdp.workbench.scenarios.results import Mismatch

_ALLOWED: Final[Mapping[EffectClass | None, tuple[str, ...]]] = {
    EffectClass.PURE: (),
    EffectClass.READ_INTERNAL: ("read internal",),
    EffectClass.READ_EXTERNAL: ("read internal", "read external"),
    EffectClass.STAGE: ("read staging", "write staging"),
    EffectClass.COMMIT_LOW: ("read internal", "write internal"),
    EffectClass.COMMIT_HIGH: ("read internal", "write internal", "read external", "write external"),
    None: ("read", "write"),
}
# Python's audit events. A connection or a program may do anything: it counts as a write outside.
_OUTSIDE: Final = ("socket.connect", "socket.sendto", "socket.bind", "socket.getaddrinfo", "subprocess.Popen",
                   "os.system", "os.exec", "os.posix_spawn", "os.fork")  # fmt: skip
_ON_DISK: Final = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink",
                   "os.chmod", "os.chown", "os.utime", "sqlite3.connect")  # fmt: skip
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Python opens these to run code, which says nothing about the tool.
_OF_PYTHON: Final = (sys.prefix, sys.base_prefix, "/usr/share/zoneinfo")


class RecordedSystem(MutableMapping[str, Any]):
    """One system: a mapping that tells `touch` of each key that is read or written. Values are copies."""

    def __init__(self, name: str, state: Mapping[str, Any], touch: Callable[[str], None]) -> None:
        self._name, self._state, self._touch = name, deepcopy(dict(state)), touch

    def __getitem__(self, key: str) -> Any:
        self._touch(f"read {self._name}/{key}")
        return deepcopy(self._state[key])

    def __setitem__(self, key: str, value: Any) -> None:
        self._touch(f"write {self._name}/{key}")
        self._state[key] = deepcopy(value)

    def __delitem__(self, key: str) -> None:
        self._touch(f"write {self._name}/{key}")
        del self._state[key]

    def __iter__(self) -> Iterator[str]:
        self._touch(f"read {self._name}")
        return iter(list(self._state))

    def __len__(self) -> int:
        self._touch(f"read {self._name}")
        return len(self._state)


class RecordedWorld:
    """The systems of one scenario by name, and what its tools touch while they run.

    Files below `folder` are named relative to it.
    """

    def __init__(self, world: Mapping[str, System], folder: Path) -> None:
        self.systems = {
            name: RecordedSystem(f"{system.place} {name}", system.state, self._touch) for name, system in world.items()
        }
        self._folder = folder.resolve()
        self._touched: list[str] = []

    def observe(self, event: ToolEvent) -> None:
        """Record from the start of a tool's run to its end."""
        if not _RUNNING:
            sys.addaudithook(_heard)  # it cannot be removed: one for the process
        _RUNNING[:] = [self if event.action == "execute_start" else None]

    def take(self, called: Evaluation, manifest: EffectiveManifest) -> tuple[list[str], tuple[Mismatch, ...]]:
        """Return the touches since the last call, each once, and a mismatch where the tool's class forbids some."""
        touched, self._touched = list(dict.fromkeys(self._touched)), []
        tool = manifest.tools.get(called.trace.tool_name or "")
        if tool is None:
            return touched, ()
        if tool.type == "cli":  # its own program: the harness sees that it starts, and nothing that it does
            touched = [touch.replace("write external subprocess.Popen", "read internal program") for touch in touched]
        if tool.pattern is Pattern.ACTION_STAGING and called.executed:
            touched.append("write staging actions")  # by the library itself
        # An extraction is pure, except that it reads its source.
        effects = EffectClass.READ_INTERNAL if tool.pattern is Pattern.EXTRACTION else tool.effect_class
        forbidden = [touch for touch in touched if not touch.startswith(_ALLOWED[effects])]
        allowed = f"{tool.effect_class} may {', '.join(_ALLOWED[effects]) or 'touch nothing'}"
        return touched, (Mismatch("effect class", allowed, f"{tool.name}: {'; '.join(forbidden)}"),) * bool(forbidden)

    def _touch(self, touch: str) -> None:
        if self in _RUNNING:
            self._touched.append(touch)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Record a touch of something that is in no system: a file, a connection, a program."""
        named = next((one for one in arguments if isinstance(one, str | bytes | tuple | os.PathLike)), "")
        if event in _OUTSIDE:
            return self._touch(f"write external {event} {named!r}")
        path = str(Path(os.fsdecode(named)).absolute()) if named and not isinstance(named, tuple) else "/dev/"
        writes = event in _ON_DISK or bool(arguments[2] & _WRITES)
        is_code = path.endswith(".py") or path.startswith(_OF_PYTHON)
        if not (path.startswith("/dev/") or "__pycache__" in path or (is_code and not writes)):
            shown = os.path.relpath(path, self._folder) if Path(path).is_relative_to(self._folder) else path
            self._touch(f"{'write' if writes else 'read'} internal file {shown}")
        return None


# The world whose tool runs now: scenarios run one at a time.
_RUNNING: Final[list[RecordedWorld | None]] = []


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if _RUNNING[0] is not None and (event == "open" or event in _OUTSIDE or event in _ON_DISK):
        _RUNNING[0].hear(event, arguments)
