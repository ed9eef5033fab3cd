"""A recorded world: the systems that a scenario's tools meet, and what the tools touch.

Source: tool pattern library, 9.1 (side-effect probes) and 9.2 (what each effect class touches).
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from pdp.execution.events import ToolEvent
from pdp.flow.evaluation import Evaluation
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.fields import EffectClass, Pattern
from pdp.manifest.programs import program_path
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
_OUTSIDE: Final = ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind", "socket.getaddrinfo",
                   "socket.gethostbyname", "socket.gethostbyaddr", "subprocess.Popen", "os.system", "os.exec",
                   "os.posix_spawn", "os.fork", "os.forkpty")  # fmt: skip
# Which arguments name what is touched, each with the one that has the folder it is relative to (`dir_fd`).
_ON_DISK: Final[Mapping[str, tuple[tuple[int, int | None], ...]]] = {
    "os.rename": ((0, 2), (1, 3)), "os.link": ((1, 3),), "os.symlink": ((1, 2),), "os.remove": ((0, 1),),
    "os.mkdir": ((0, 2),), "os.rmdir": ((0, 1),), "os.chmod": ((0, 2),), "os.chown": ((0, 3),), "os.utime": ((0, 3),),
    **dict.fromkeys(("open", "os.truncate", "os.setxattr", "os.removexattr", "sqlite3.connect"), ((0, None),)),
}  # fmt: skip
_REMOVING: Final = ("os.remove", "os.rmdir", "os.rename")
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NO_FILES: Final = ("/dev/null", "/dev/urandom", "/dev/random", "/dev/tty")
# Python opens these to run code, which says nothing about the tool.
_OF_PYTHON: Final = tuple(f"{os.path.realpath(one)}/" for one in (sys.prefix, sys.base_prefix, "/usr/share/zoneinfo"))
_LATE_SECONDS: Final = 1.0  # how long each thread that a call has left is waited for


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
        self._made: set[Path] = set()  # by the call itself: what it removes again is not told
        self._late: list[str] = []
        self._running = False
        self._before: set[threading.Thread] | None = None  # the threads when the last call began
        self._left: dict[threading.Thread, str] = {}  # threads that outlived their call, and its tool

    def observe(self, event: ToolEvent) -> None:
        """Record from the start of a tool's run to its end, and what the threads that it leaves write after that."""
        if not _CURRENT:
            sys.addaudithook(_heard)  # it cannot be removed: one for the process
        _CURRENT[:] = [self]
        alive = set(threading.enumerate())
        if event.action == "execute_start":
            self._before, self._running = alive, True
        elif self._running and self._before is not None:
            left = dict.fromkeys(alive - self._before, str(event.data["name"]))
            self._left |= left
            self._running = False
            for thread in left:
                with suppress(RuntimeError, AssertionError):  # it is not one of `threading`, or only about to start
                    thread.join(_LATE_SECONDS)

    def take(self, called: Evaluation, manifest: EffectiveManifest) -> tuple[list[str], tuple[Mismatch, ...]]:
        """Return the touches since the last call, each once, and a mismatch where the tool's class forbids some."""
        touched, self._touched, self._made = list(dict.fromkeys(self._touched)), [], set()
        late, self._late = dict.fromkeys(self._late), []
        excess = tuple(Mismatch("late write", "a tool writes while its call runs", write) for write in late)
        tool = manifest.tools.get(called.trace.tool_name or "")
        if tool is None:
            return touched, excess
        allowed = _ALLOWED[EffectClass.READ_INTERNAL if tool.pattern is Pattern.EXTRACTION else tool.effect_class]
        if tool.cli is not None and tool.program is not None:
            # Its own program: the harness sees that it starts, and nothing that it does.
            path = program_path(tool.cli.argv[0], tool.program)
            start, allowed = f"write external subprocess.Popen {path}", (*allowed, f"program {path}")
            touched = [f"program {path}" if touch == start else touch for touch in touched]
        if tool.pattern is Pattern.ACTION_STAGING and called.executed:
            touched.append("write staging actions")  # by the library itself
        forbidden = [touch for touch in touched if not touch.startswith(allowed)]
        if forbidden:
            may = f"{tool.effect_class} may {', '.join(allowed) or 'touch nothing'}"
            excess = (Mismatch("effect class", may, f"{tool.name}: {'; '.join(forbidden)}"), *excess)
        return touched, excess

    def _touch(self, touch: str) -> None:
        tool = self._left.get(threading.current_thread())
        if self._running and tool is None:
            self._touched.append(touch)
        elif touch.startswith("write") and self._before is not None:
            self._late.append(f"{tool or 'no tool'}: {touch}")

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Record a touch of something that is in no system: a file, a connection, a program."""
        if not self._running and threading.current_thread() not in self._left:
            return
        if event in _OUTSIDE:
            named = [one for one in arguments if isinstance(one, str | bytes | tuple | os.PathLike)][:1]
            shown = [str(one) if isinstance(one, tuple) else os.fsdecode(one) for one in named]
            self._touch(" ".join(("write external", event, *shown)))
        for at, folder in _ON_DISK.get(event, ()):
            named = arguments[at]
            # What is opened by its number was opened by its name before.
            if not (
                isinstance(named, int) if event == "open" else event == "sqlite3.connect" and named in (":memory:", "")
            ):
                path = _path(named, -1 if folder is None else arguments[folder])
                self._hear_of(path, event, writes=event != "open" or bool(arguments[2] & _WRITES), leaves=at == 0)

    def _hear_of(self, path: Path, event: str, *, writes: bool, leaves: bool) -> None:
        shown = path.relative_to(self._folder) if path.is_relative_to(self._folder) else path
        is_code = not writes and (path.suffix in (".py", ".pyc") or str(path).startswith(_OF_PYTHON))
        is_bytecode = path.name == "__pycache__" or (path.parent.name == "__pycache__" and ".pyc" in path.name)
        # A folder is only ever opened to make something in it.
        if str(path) in _NO_FILES or is_code or is_bytecode or (event == "open" and writes and path.is_dir()):
            return
        if event in _REMOVING and leaves and path in self._made:
            self._made.remove(path)
            self._touched = [one for one in self._touched if not one.endswith(f" internal file {shown}")]
            return
        if writes and not os.path.lexists(path):
            self._made.add(path)
        self._touch(f"{'write' if writes else 'read'} internal file {shown}")


def _path(named: Any, folder: int) -> Path:
    """The whole path of a file, which is named by its number or in a folder: one that is open, or -1."""
    if isinstance(named, int):
        return Path(f"/dev/fd/{named}").resolve()
    path = (Path() if folder == -1 else Path(f"/dev/fd/{folder}")) / os.fsdecode(named)
    return path.parent.resolve() / path.name


# The world whose tools run: scenarios run one at a time.
_CURRENT: Final[list[RecordedWorld]] = []


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _ON_DISK or event in _OUTSIDE:
        for world in _CURRENT:
            world.hear(event, arguments)
