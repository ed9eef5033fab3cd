"""Helpers for several tests: waiting, threads, killed processes, and subpackages with servers and projects."""

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
"""The root folder of the repository."""

PATIENCE: Final = 600.0
"""Seconds to wait for an event that must happen. A test that passes waits less."""

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
    """Use long timeouts for engines, stores and locks in this process, except where a test passes a timeout.

    The default timeouts suit production, where a late answer is a DENY. On a busy machine, tests would fail with the
    default timeouts.
    """
    for function, names in ((inspect.unwrap(function), names) for function, names in _DEFAULTS):
        function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), **dict.fromkeys(names, PATIENCE)}
    for name in _CONSTANTS:
        patch(name, int(PATIENCE)).start()


def until(condition: Callable[[], object]) -> bool:
    """Wait until `condition` is true. Return whether `condition` became true within `PATIENCE`."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def timely(attempt: Callable[[float], T], in_time: Callable[[T], bool], seconds: float = 0.2) -> T:
    """Repeat an attempt with longer and longer deadlines until `in_time` accepts the result, and return this result.

    Use this function if a deadline must expire after another event whose duration depends on the machine.
    """
    while not in_time(given := attempt(seconds)) and seconds < PATIENCE:
        seconds *= 4
    return given


def recorded_by_killed(append_for_ever: str, *arguments: str) -> int:
    """Start pairs of processes that write events, kill the processes at any time, and count the recorded events.

    `append_for_ever` is the source of a function that writes a dot to a pipe after each recorded event.
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
    """Run all functions in threads that start at the same time, and return their results in order."""
    together = threading.Barrier(len(steps))

    def take(step: Callable[[], T]) -> T:
        together.wait(PATIENCE)
        return step()

    with ThreadPoolExecutor(len(steps)) as threads:
        return list(threads.map(take, steps))
