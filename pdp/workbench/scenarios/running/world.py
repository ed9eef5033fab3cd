"""A recorded world: the systems of a scenario, and a record of everything that its tools read or write.

Source: tool pattern library, 9.1 (side-effect probes) and 9.2 (what each effect class may touch).
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
# The audit events of Python that are recorded. A connection or a program may do anything, so it counts as an external
# write.
_OUTSIDE: Final = ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind", "socket.getaddrinfo",
                   "socket.gethostbyname", "socket.gethostbyaddr", "subprocess.Popen", "os.system", "os.exec",
                   "os.posix_spawn", "os.fork", "os.forkpty")  # fmt: skip
# For each audit event, the indices of the path and of the folder that the path is relative to (`dir_fd`).
_ON_DISK: Final[Mapping[str, tuple[tuple[int, int | None], ...]]] = {
    "os.rename": ((0, 2), (1, 3)), "os.link": ((1, 3),), "os.symlink": ((1, 2),), "os.remove": ((0, 1),),
    "os.mkdir": ((0, 2),), "os.rmdir": ((0, 1),), "os.chmod": ((0, 2),), "os.chown": ((0, 3),), "os.utime": ((0, 3),),
    **dict.fromkeys(("open", "os.truncate", "os.setxattr", "os.removexattr", "sqlite3.connect"), ((0, None),)),
}  # fmt: skip
_REMOVING: Final = ("os.remove", "os.rmdir", "os.rename")
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NO_FILES: Final = ("/dev/null", "/dev/urandom", "/dev/random", "/dev/tty")
# Python opens these files to run code, so opening them is not an action of the tool.
_OF_PYTHON: Final = tuple(f"{os.path.realpath(each)}/" for each in (sys.prefix, sys.base_prefix, "/usr/share/zoneinfo"))
_JOIN_SECONDS: Final = 1.0  # After a call, each thread that still runs has this many seconds to end.


class RecordedSystem(MutableMapping[str, Any]):
    """A simulated system: a mapping that calls `touch` whenever a key is read or written. It copies all values."""

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
    """The systems of a scenario, and a record of what its tools read and write. Files are relative to `folder`."""

    def __init__(self, world: Mapping[str, System], folder: Path) -> None:
        self.systems = {
            name: RecordedSystem(f"{system.place} {name}", system.state, self._touch) for name, system in world.items()
        }
        self._folder = folder.resolve()
        self._touched: list[str] = []
        self._made: set[Path] = set()  # Files that the call itself created. Removing such a file is not recorded.
        self._late: list[str] = []
        self._running = False
        self._before: set[threading.Thread] | None = None  # The threads that ran when the last call started.
        # The threads that ran longer than their call, with the name of the call's tool.
        self._left: dict[threading.Thread, str] = {}

    def observe(self, event: ToolEvent) -> None:
        """Record what a tool reads and writes while it runs, and what threads that it leaves running write later."""
        if not _CURRENT:
            sys.addaudithook(_audit_hook)  # Only one audit hook is installed per process, because it cannot be removed.
        _CURRENT[:] = [self]
        alive = set(threading.enumerate())
        if event.action == "execute_start":
            self._before, self._running = alive, True
        elif self._running and self._before is not None:
            left = dict.fromkeys(alive - self._before, str(event.data["name"]))
            self._left |= left
            self._running = False
            for thread in left:
                # The thread is unknown to `threading`, or has not started yet.
                with suppress(RuntimeError, AssertionError):
                    thread.join(_JOIN_SECONDS)

    def take(self, called: Evaluation, manifest: EffectiveManifest) -> tuple[list[str], tuple[Mismatch, ...]]:
        """Return the recorded reads and writes, each once, and mismatches for those that the effect class forbids."""
        touched, self._touched, self._made = list(dict.fromkeys(self._touched)), [], set()
        late, self._late = dict.fromkeys(self._late), []
        excess = tuple(Mismatch("late write", "a tool writes only during its call", write) for write in late)
        tool = manifest.tools.get(called.trace.tool_name or "")
        if tool is None:
            return touched, excess
        allowed = _ALLOWED[EffectClass.READ_INTERNAL if tool.pattern is Pattern.EXTRACTION else tool.effect_class]
        if tool.cli is not None and tool.program is not None:
            # The start of the tool's own program is allowed; its actions are not visible here.
            path = program_path(tool.cli.argv[0], tool.program)
            start, allowed = f"write external subprocess.Popen {path}", (*allowed, f"program {path}")
            touched = [f"program {path}" if touch == start else touch for touch in touched]
        if tool.pattern is Pattern.ACTION_STAGING and called.executed:
            # The action is written by tool-pdp and not by the tool, so the write is added here.
            touched.append("write staging actions")
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

    def record(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Record an access to something outside the simulated systems: a file, a connection or a program."""
        if not self._running and threading.current_thread() not in self._left:
            return
        if event in _OUTSIDE:
            named = [each for each in arguments if isinstance(each, str | bytes | tuple | os.PathLike)][:1]
            shown = [str(each) if isinstance(each, tuple) else os.fsdecode(each) for each in named]
            self._touch(" ".join(("write external", event, *shown)))
        for at, folder in _ON_DISK.get(event, ()):
            named = arguments[at]
            # A file that is opened by its descriptor number was opened by its name before, so it is already recorded.
            if not (
                isinstance(named, int) if event == "open" else event == "sqlite3.connect" and named in (":memory:", "")
            ):
                path = _path(named, -1 if folder is None else arguments[folder])
                self._record_file(path, event, writes=event != "open" or bool(arguments[2] & _WRITES), leaves=at == 0)

    def _record_file(self, path: Path, event: str, *, writes: bool, leaves: bool) -> None:
        shown = path.relative_to(self._folder) if path.is_relative_to(self._folder) else path
        is_code = not writes and (path.suffix in (".py", ".pyc") or str(path).startswith(_OF_PYTHON))
        is_bytecode = path.name == "__pycache__" or (path.parent.name == "__pycache__" and ".pyc" in path.name)
        # Python opens a folder for writing only in order to create a file in it.
        if str(path) in _NO_FILES or is_code or is_bytecode or (event == "open" and writes and path.is_dir()):
            return
        if event in _REMOVING and leaves and path in self._made:
            self._made.remove(path)
            self._touched = [each for each in self._touched if not each.endswith(f" internal file {shown}")]
            return
        if writes and not os.path.lexists(path):
            self._made.add(path)
        self._touch(f"{'write' if writes else 'read'} internal file {shown}")


def _path(named: Any, folder: int) -> Path:
    """Return the path of a file by its descriptor, or by its name in an open folder; -1 is the working directory."""
    if isinstance(named, int):
        return Path(f"/dev/fd/{named}").resolve()
    path = (Path() if folder == -1 else Path(f"/dev/fd/{folder}")) / os.fsdecode(named)
    return path.parent.resolve() / path.name


# The world of the one scenario that is running.
_CURRENT: Final[list[RecordedWorld]] = []


def _audit_hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _ON_DISK or event in _OUTSIDE:
        for world in _CURRENT:
            world.record(event, arguments)
