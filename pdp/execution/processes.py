"""One program, run to its end with everything in its process group; never through a shell, never beyond its bounds.

A process that leaves the group (`setsid`) is its own: it is not ended here. A container can end it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from pdp.execution.failures import ToolError, ToolResultError, ToolUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Never

TERM_SECONDS: Final = 1.0
"""How long a program and what it started may take to end after SIGTERM; then SIGKILL."""

_STDOUT: Final = 1
_STDERR: Final = 2
_KEPT_OF_STDERR: Final = 16 * 1024


class Ended(NamedTuple):
    """How a program ended: its exit code (negative: the signal that ended it), and what it wrote, in bytes."""

    exit_code: int
    stdout: bytes
    stderr: bytes


async def run_process(argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None, max_output: int) -> Ended:
    """Run a program and wait until it has ended.

    Whatever it started and has left behind in its process group is ended with it. On cancellation the group gets
    SIGTERM, and after `TERM_SECONDS` SIGKILL. Standard input is empty.

    Args:
        argv: the program, an absolute path, and its arguments.
        env: its whole environment.
        cwd: its folder; None: the application's.
        max_output: bytes of standard output at most; of standard error the first 16 KiB are kept and the rest is
            read and dropped.

    Raises:
        ToolUnavailableError: the program cannot be started.
        ToolError: its arguments cannot be passed.
        ToolResultError: more output than `max_output`; the program has been ended.
    """
    loop = asyncio.get_running_loop()
    orders = _Orders(loop.create_future(), loop.create_future())
    # A task of its own, which is told to end it instead of being cancelled: a program that is only half started could
    # not be ended with what it has started itself.
    running = loop.create_task(_run(argv, dict(env), cwd, max_output, orders))
    try:
        await asyncio.wait((running,))
    except asyncio.CancelledError:
        running.add_done_callback(lambda done: done.cancelled() or done.exception())
        _set(orders.end)
        try:
            await asyncio.wait((running,))
        finally:
            _set(orders.kill)
        raise
    return running.result()


class _Orders(NamedTuple):
    """What the caller wants: that the program ends, or that it is killed."""

    end: asyncio.Future[None]
    kill: asyncio.Future[None]


async def _run(argv: Sequence[str], env: dict[str, str], cwd: str | None, max_output: int, orders: _Orders) -> Ended:
    limits = {_STDOUT: max_output, _STDERR: _KEPT_OF_STDERR}
    try:
        transport, watched = await asyncio.get_running_loop().subprocess_exec(
            lambda: _Watched(limits, orders.end),
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        _refuse(error, os.path.basename(argv[0]))  # noqa: PTH119 - a text, not a path to be used
    group = transport.get_pid()
    try:
        await watched.reaches(watched.exited)
        # What it started may still be writing for it.
        await watched.reaches(watched.closed, timeout=TERM_SECONDS)
        return Ended(transport.get_returncode() or 0, bytes(watched.output[_STDOUT]), bytes(watched.output[_STDERR]))
    finally:
        try:
            if not watched.exited.done():
                _signal(group, signal.SIGTERM)
                await asyncio.wait(
                    (watched.ended, orders.kill), timeout=TERM_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            # Also after an ordinary end: what is still in the group does not outlive the call.
            _signal(group, signal.SIGKILL)
            try:
                await asyncio.wait((watched.exited,), timeout=TERM_SECONDS)
            finally:
                transport.close()


class _Watched(asyncio.SubprocessProtocol):
    """What a program writes, up to the limits, and what has become of it.

    A protocol, since `Process.wait` waits in some versions of Python until every heir of the pipes has ended.
    """

    def __init__(self, limits: Mapping[int, int], end: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        self.output = {stream: bytearray() for stream in limits}
        self.exited: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._overflowed: asyncio.Future[None] = loop.create_future()
        self._end = end
        self._limits = limits
        self._open = set(limits)

    async def reaches(self, state: asyncio.Future[None], timeout: float | None = None) -> None:  # noqa: ASYNC109 - how long it matters
        """Wait for a state or the order to end, `timeout` seconds at most; ToolResultError when it writes too much."""
        await asyncio.wait((state, self._overflowed, self._end), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if self._overflowed.done():
            raise ToolResultError(f"the program wrote more than {self._limits[_STDOUT]} bytes", "too_large")

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep what is within the limit, and drop the rest: the program must not wait for a reader."""
        kept = self.output[fd]
        room = self._limits[fd] - len(kept)
        kept += data[:room]
        if fd == _STDOUT and len(data) > room:
            _set(self._overflowed)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002 - an end is an end
        """Note that nothing more will come."""
        self._open.discard(fd)
        if not self._open:
            _set(self.closed)

    def process_exited(self) -> None:
        """Note that the program itself has ended."""
        _set(self.exited)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - an end is an end
        """Note that the program has ended and its pipes are closed."""
        _set(self.ended)


def _set(state: asyncio.Future[None]) -> None:
    if not state.done():
        state.set_result(None)


def _signal(group: int, number: signal.Signals) -> None:
    # No such group: all of it has ended already. Not permitted: what is left of it runs as somebody else.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _refuse(error: OSError | ValueError, program: str) -> Never:
    if isinstance(error, OSError) and error.errno == errno.E2BIG:
        raise ToolError("the arguments are longer than a command line can be") from error
    if isinstance(error, ValueError):
        raise ToolError("the arguments cannot stand on a command line") from error
    raise ToolUnavailableError(f"{program} cannot be started: {error.strerror}") from error
