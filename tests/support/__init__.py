"""What several tests share: projects, servers, generated requests, scripted models."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar
from unittest.mock import patch

from pdp.audit.file import FileAudit
from pdp.client.client import Client
from pdp.engine.bundle.follow import FollowingEngine
from pdp.engine.opa.engine import SidecarEngine
from pdp.engine.wasm.engine import EmbeddedEngine

T = TypeVar("T")

ROOT: Final = Path(__file__).parents[2]
"""The repository."""

PATIENCE: Final = 600.0
"""Seconds for what comes in any case, however busy the machine is. A test that passes never waits for them."""

_DEFAULTS: Final = (
    (EmbeddedEngine.__init__, ("deadline",)),
    (SidecarEngine.__init__, ("timeout", "connect_timeout")),
    (FollowingEngine.__init__, ("deadline", "timeout")),
    (FileAudit.__init__, ("patience",)),
    (Client.__init__, ("timeout",)),
)
_CONSTANTS: Final = (
    "pdp.engine.wasm.engine.DEADLINE", "pdp.engine.opa.engine.TIMEOUT", "pdp.engine.opa.engine.CONNECT_TIMEOUT",
    "pdp.flow.reserve.PATIENCE", "pdp.flow.reserve.LASTING", "pdp.stores.sql.database.BUSY_SECONDS",
    "pdp.stores.sql.database.TURN_SECONDS", "pdp.approvals.approvals.TURN_SECONDS",
    "pdp.workbench.bundles.publish.PATIENCE", "pdp.opa.program._ANSWER_TIMEOUT",
    "pdp.opa.tool._TIMEOUT", "pdp.opa.install._PATIENCE", "pdp.opa.install._LONGEST",
    "pdp.opa.local._START_TIMEOUT", "pdp.engine.bundle.trust.LOCK_SECONDS",
)  # fmt: skip


def be_patient() -> None:
    """Give engines, stores and locks of this process the time that a busy machine needs, unless a test gives another.

    The defaults are for production: there a late answer is a denial. A test is about something else, or states a time.
    """
    for function, names in ((inspect.unwrap(function), names) for function, names in _DEFAULTS):
        function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), **dict.fromkeys(names, PATIENCE)}
    for name in _CONSTANTS:
        patch(name, int(PATIENCE)).start()


def until(condition: Callable[[], object]) -> bool:
    """Wait for what another thread or process does, and return whether it came."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def timely(attempt: Callable[[float], T], in_time: Callable[[T], bool], seconds: float = 0.2) -> T:
    """Return what an attempt gives that has some seconds, and ever more where they are too few for what comes first.

    For a deadline that has to fire after something else has happened, which takes as long as the machine needs.
    """
    while not in_time(given := attempt(seconds)) and seconds < PATIENCE:
        seconds *= 4
    return given


def recorded_by_killed(append_for_ever: str, *arguments: str) -> int:
    """Start pairs of processes that write, kill them anywhere, and return how many events they had recorded.

    `append_for_ever` is the text of a function that writes a dot to a pipe for each event that is recorded.
    """
    command = [sys.executable, "-c", append_for_ever + _KILLING, *arguments]
    return int(subprocess.run(command, check=True, timeout=PATIENCE, capture_output=True, text=True).stdout)


_KILLING: Final = """
import os, signal
def started():
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            append_for_ever(writer)
        finally:
            os._exit(1)
    os.close(writer)
    return child, os.fdopen(reader, "rb")

recorded = 0
for number in range(6):
    writers = [started(), started()]
    recorded += len(writers[0][1].read(number))
    for child, _ in writers:
        os.kill(child, signal.SIGKILL)
    for child, dots in writers:
        recorded += len(dots.read())
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
print(recorded)
"""


def at_once(steps: Sequence[Callable[[], T]]) -> list[T]:
    """Take the steps, none before all threads are there, and return what they give, in their order."""
    together = threading.Barrier(len(steps))

    def take(step: Callable[[], T]) -> T:
        together.wait(PATIENCE)
        return step()

    with ThreadPoolExecutor(len(steps)) as threads:
        return list(threads.map(take, steps))
