"""A tool of type `cli`: a program with the decided arguments on its command line, run as any other tool.

It is run to its end with everything in its process group; never through a shell, never beyond its bounds. A process
that leaves the group (`setsid`) is its own: it is not ended here. A container can end it.

Source: tool layer document, CLI tools.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pdp.errors import UsageError
from pdp.execution.failures import ToolArgumentError, ToolError, ToolExitError, ToolResultError, ToolUnavailableError
from pdp.json import JsonValueError, canonical, parse_json
from pdp.manifest.fields import ArgvItem, argv_item, may_take_value
from pdp.manifest.model import Tool
from pdp.manifest.programs import OPTIONS_END, SEARCH_PATH, cli_findings, program_path

TERM_SECONDS: Final = 1.0  # how long a program and what it started may take to end after SIGTERM; then SIGKILL

_STDOUT: Final = 1
_STDERR: Final = 2
_KEPT_OF_STDERR: Final = 16 * 1024


class CliTool:
    """The function of a tool of type `cli`: `await tool(**arguments)`.

    UsageError: the entry states no program, or one that the governance file does not allow with this command line.
    """

    def __init__(self, entry: Tool) -> None:
        if entry.cli is None or entry.program is None:
            raise UsageError(
                f"tool {entry.name} has no program that it may run",
                hint="state `type: cli` and `cli: {argv: [...]}`, and list the program in the governance file",
            )
        # Checked when files are loaded, too; an entry may have been made without a file.
        for finding in cli_findings(entry):
            raise UsageError(f"tool {entry.name}: {finding.message}", hint=finding.hint)
        self.__name__ = entry.name
        self._cli = entry.cli
        self._name = entry.cli.argv[0]
        self._path = program_path(self._name, entry.program)
        self._items = tuple(argv_item(text) for text in entry.cli.argv)

    def argv(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the command line for these arguments; each is an item of its own or a part of one.

        Raises:
            ToolArgumentError: an argument cannot stand there. A value that begins with `-` may only where it cannot be
                read as an option: after text, or after an item `--` that is no option's value.
        """
        argv: list[str] = []
        guarded = False
        for item in self._items:
            # After an option it may be the option's value, and no end of them.
            ends = item.parts == (OPTIONS_END,) and not may_take_value(argv[-1])
            argv += _expanded(item, arguments, guarded=guarded)
            guarded = guarded or ends
        return argv

    async def __call__(self, **arguments: Any) -> Any:
        """Run the program and return its output: text, or what its JSON stands for. Cancelling ends all of it.

        Raises:
            ToolArgumentError: as by `argv`.
            ToolUnavailableError: program or folder are not there, or the exit code says so.
            ToolExitError: another exit code than a result's, or a signal.
            ToolResultError: too much output, or not of the declared kind.
        """
        argv = self.argv(arguments)
        program = self._found()
        env = {name: os.environ[name] for name in self._cli.env if name in os.environ} | {"PATH": SEARCH_PATH}
        watched = _Watched(self._cli.max_output, combined=self._cli.output == "combined")
        exit_code = await _run_process([program, *argv[1:]], env=env, cwd=self._cli.folder, watched=watched)
        return self._result(exit_code, watched.output)

    def _found(self) -> str:
        if self._path is None or not os.access(self._path, os.X_OK):
            raise ToolUnavailableError(f"program {self._name} is not found")
        if self._cli.folder is not None and not Path(self._cli.folder).is_dir():
            raise ToolUnavailableError("the working folder is not there")
        return self._path

    def _result(self, exit_code: int, output: Mapping[int, bytearray]) -> Any:
        codes = self._cli.exit_codes
        if exit_code in codes.unavailable:
            raise ToolUnavailableError(self._ending(exit_code, output))
        if exit_code not in codes.result:
            raise ToolExitError(self._ending(exit_code, output), exit_code)
        if self._cli.output == "json":
            try:
                return parse_json(bytes(output[_STDOUT]))
            except JsonValueError as error:
                raise ToolResultError(f"the program's output is not JSON: {error}") from error
        # NUL as well: databases do not store it in text.
        return output[_STDOUT].decode(errors="replace").replace("\0", "\ufffd")

    def _ending(self, exit_code: int, output: Mapping[int, bytearray]) -> str:
        """Return how it ended, with all of a combined output; or the first line of standard error, else of output."""
        how = f"ended with exit code {exit_code}"
        if exit_code < 0:
            names = {number.value: number.name for number in signal.Signals}
            how = f"was ended by {names.get(-exit_code, f'signal {-exit_code}')}"
        lines = (output[_STDERR].strip() or output[_STDOUT].strip()[:1024]).decode(errors="replace").splitlines()
        shown = ["; ".join(lines)] if lines and self._cli.output == "combined" else lines[:1]
        return ": ".join([f"{self._name} {how}", *shown])


def _expanded(item: ArgvItem, arguments: Mapping[str, Any], *, guarded: bool) -> Iterator[str]:
    if not item.arguments:
        yield item.parts[0]
        return
    if item.flag is not None:
        name = item.arguments[0]
        for value in _values(name, arguments.get(name)):
            if value is True:
                yield item.flag
            elif value is not False:
                yield from (item.flag, _text(name, value, bare=not guarded))
        return
    values = [_values(name, arguments.get(name)) for name in item.arguments]
    lists = [name for name in item.arguments if isinstance(arguments.get(name), list)]
    if len(lists) > 1:
        raise ToolArgumentError(lists[1], "is a list, and so is another argument of the same item")
    if not all(values):
        return
    for at in range(max(map(len, values))):
        text = item.parts[0]
        for name, items, literal in zip(item.arguments, values, item.parts[2::2], strict=True):
            text += _text(name, items[min(at, len(items) - 1)], bare=not guarded and not text) + literal
        yield text


def _values(name: str, value: Any) -> list[Any]:
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    for item in values:
        if item is None or isinstance(item, list | dict):
            raise ToolArgumentError(name, "has a part that cannot stand on a command line: an object, a list or null")
    return values


def _text(name: str, value: Any, *, bare: bool) -> str:
    """Return a value as it stands on the command line; `bare` says that an item begins with it."""
    text = value if isinstance(value, str) else canonical(value).decode()
    if "\0" in text:
        raise ToolArgumentError(name, "has a NUL character")
    if bare and text.startswith("-"):
        raise ToolArgumentError(name, "begins with `-`, which the program would read as an option")
    return text


async def _run_process(argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None, watched: _Watched) -> int:
    """Run a program with an empty standard input, and return its exit code; negative where a signal ended it.

    Whatever it started and has left behind in its process group is ended with it. On cancellation the group gets
    SIGTERM, and after `TERM_SECONDS`, or when it is cancelled again, SIGKILL. More output than is admitted ends it; of
    standard error by itself the first 16 KiB are kept, and the rest is read and dropped.
    """
    # A task of its own, which gets an order instead of being cancelled: a program that is only half started could not
    # be ended with what it has started itself.
    running = asyncio.create_task(_run(argv, dict(env), cwd, watched))
    cancelled = None
    while not running.done():
        try:
            await asyncio.wait((running,))
        except asyncio.CancelledError as error:
            _set(watched.kill if cancelled else watched.end)
            cancelled = error
    if cancelled is None:
        return running.result()
    running.exception()  # nobody's any more; read, so that asyncio does not report it
    raise cancelled


async def _run(argv: Sequence[str], env: dict[str, str], cwd: str | None, watched: _Watched) -> int:
    try:
        transport, _ = await asyncio.get_running_loop().subprocess_exec(
            lambda: watched,
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT if watched.combined else asyncio.subprocess.PIPE,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise ToolError("the arguments are longer than a command line can be") from error
        raise ToolUnavailableError(f"{Path(argv[0]).name} cannot be started: {error.strerror}") from error
    group = transport.get_pid()
    try:
        await watched.reaches(watched.exited)
        # What it started may still be writing for it.
        await watched.reaches(watched.ended, timeout=TERM_SECONDS)
        return transport.get_returncode() or 0
    finally:
        try:
            if not watched.exited.done():
                _signal(group, signal.SIGTERM)
                await asyncio.wait(
                    (watched.ended, watched.kill), timeout=TERM_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            # Also after an ordinary end: what is still in the group does not outlive the call.
            _signal(group, signal.SIGKILL)
            try:
                await asyncio.wait((watched.exited,), timeout=TERM_SECONDS)
            finally:
                transport.close()


class _Watched(asyncio.SubprocessProtocol):
    """What a program writes, up to the limits, what has become of it, and what is to become of it: `end` and `kill`.

    A protocol, since `Process.wait` waits in some versions of Python until every heir of the pipes has ended.
    """

    def __init__(self, max_output: int, *, combined: bool) -> None:
        loop = asyncio.get_running_loop()
        self.combined = combined
        self.output = {_STDOUT: bytearray(), _STDERR: bytearray()}
        self.exited: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.end: asyncio.Future[None] = loop.create_future()
        self.kill: asyncio.Future[None] = loop.create_future()
        self._overflowed: asyncio.Future[None] = loop.create_future()
        self._limits = {_STDOUT: max_output, _STDERR: _KEPT_OF_STDERR}

    async def reaches(self, state: asyncio.Future[None], timeout: float | None = None) -> None:  # noqa: ASYNC109 - how long it matters
        """Wait for a state or the order to end, `timeout` seconds at most; ToolResultError when it writes too much."""
        await asyncio.wait((state, self._overflowed, self.end), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if self._overflowed.done():
            raise ToolResultError(f"the program wrote more than {self._limits[_STDOUT]} bytes", "too_large")

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        # What is beyond the limit is dropped: the program must not wait for a reader.
        room = self._limits[fd] - len(self.output[fd])
        self.output[fd] += data[:room]
        if fd == _STDOUT and len(data) > room:
            _set(self._overflowed)

    def process_exited(self) -> None:
        _set(self.exited)

    # When it has exited and everybody has closed its pipes.
    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - an end is an end
        _set(self.ended)


def _set(state: asyncio.Future[None]) -> None:
    if not state.done():
        state.set_result(None)


def _signal(group: int, number: signal.Signals) -> None:
    # No such group: all of it has ended already. Not permitted: what is left of it runs as somebody else.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
