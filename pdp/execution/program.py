"""Runs a program as a tool, with the decided arguments on its command line. Source: tool layer document, CLI tools.

The program runs without a shell and within the limits of its manifest entry. When the program ends, its whole process
group is killed. A process that leaves the group (`setsid`) survives, unless the tool runs in a container.
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

TERM_SECONDS: Final = 1.0  # After SIGTERM, a process group has this many seconds to end before it gets SIGKILL.

_STDOUT: Final = 1
_STDERR: Final = 2
_KEPT_OF_STDERR: Final = 16 * 1024


class CliTool:
    """The function of a tool of type `cli`: `await tool(**arguments)` runs the program.

    Raises `UsageError` if the manifest entry names no program, or the governance file forbids its command line.
    """

    def __init__(self, entry: Tool) -> None:
        if entry.cli is None or entry.program is None:
            raise UsageError(
                f"tool {entry.name} has no allowed program",
                hint="set `type: cli` and `cli: {argv: [...]}` in the manifest, and list the program in the "
                "governance file",
            )
        # Manifest files are checked when they are loaded, but an entry may also be created in code, so it is checked
        # here.
        for finding in cli_findings(entry):
            raise UsageError(f"tool {entry.name}: {finding.message}", hint=finding.hint)
        self.__name__ = entry.name
        self._cli = entry.cli
        self._name = entry.cli.argv[0]
        self._path = program_path(self._name, entry.program)
        self._items = tuple(argv_item(text) for text in entry.cli.argv)

    def argv(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the command line for these arguments. Raise `ToolArgumentError` if a value cannot be used.

        Only after an item `--` or other text may a value begin with `-`, because programs read `-` as an option.
        """
        argv: list[str] = []
        guarded = False
        for item in self._items:
            # After an option, `--` may be the option's value instead of the end of options.
            ends = item.parts == (OPTIONS_END,) and not may_take_value(argv[-1])
            argv += _expanded(item, arguments, guarded=guarded)
            guarded = guarded or ends
        return argv

    async def __call__(self, **arguments: Any) -> Any:
        """Run the program and return its output: parsed if the tool returns JSON, else as text.

        Raises a `ToolError` for unusable arguments, a missing program, an exit code of an error, or unusable output.
        """
        argv = self.argv(arguments)
        program = self._program()
        env = {name: os.environ[name] for name in self._cli.env if name in os.environ} | {"PATH": SEARCH_PATH}
        protocol = _Protocol(self._cli.max_output, combined=self._cli.output == "combined")
        exit_code = await _run_process([program, *argv[1:]], env=env, cwd=self._cli.folder, protocol=protocol)
        return self._result(exit_code, protocol.output)

    def _program(self) -> str:
        if self._path is None or not os.access(self._path, os.X_OK):
            raise ToolUnavailableError(f"program {self._name} is not found")
        if self._cli.folder is not None and not Path(self._cli.folder).is_dir():
            raise ToolUnavailableError("the working folder does not exist")
        return self._path

    def _result(self, exit_code: int, output: Mapping[int, bytearray]) -> Any:
        codes = self._cli.exit_codes
        if exit_code in codes.unavailable:
            raise ToolUnavailableError(self._describe(exit_code, output))
        if exit_code not in codes.result:
            raise ToolExitError(self._describe(exit_code, output), exit_code)
        if self._cli.output == "json":
            try:
                return parse_json(bytes(output[_STDOUT]))
            except JsonValueError as error:
                raise ToolResultError(f"the program's output is not JSON: {error}") from error
        # NUL characters are replaced as well, because databases cannot store them in text.
        return output[_STDOUT].decode(errors="replace").replace("\0", "\ufffd")

    def _describe(self, exit_code: int, output: Mapping[int, bytearray]) -> str:
        """Return how the program ended, followed by its combined output, or by the first line of its error output."""
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
        raise ToolArgumentError(lists[1], "is a list, but only one argument of an item of `cli.argv` may be a list")
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
            raise ToolArgumentError(name, "contains an object, a list or null, which a command line cannot hold")
    return values


def _text(name: str, value: Any, *, bare: bool) -> str:
    """Return a value as text for the command line. `bare` means that the program's argument begins with the value."""
    text = value if isinstance(value, str) else canonical(value).decode()
    if "\0" in text:
        raise ToolArgumentError(name, "has a NUL character")
    if bare and text.startswith("-"):
        raise ToolArgumentError(name, "begins with `-`, which the program would read as an option")
    return text


async def _run_process(argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None, protocol: _Protocol) -> int:
    """Run a program without standard input, and return its exit code, which is negative if a signal ended it.

    If the caller is cancelled, the process group gets SIGTERM; after `TERM_SECONDS` or another cancellation, SIGKILL.
    """
    # The program runs in a separate task that is asked to end instead of being cancelled. A half-started program could
    # not be ended together with its children.
    running = asyncio.create_task(_run(argv, dict(env), cwd, protocol))
    cancelled = None
    while not running.done():
        try:
            await asyncio.wait((running,))
        except asyncio.CancelledError as error:
            _set(protocol.kill if cancelled else protocol.end)
            cancelled = error
    if cancelled is None:
        return running.result()
    running.exception()  # The exception is read, so that asyncio does not report it as never retrieved.
    raise cancelled


async def _run(argv: Sequence[str], env: dict[str, str], cwd: str | None, protocol: _Protocol) -> int:
    try:
        transport, _ = await asyncio.get_running_loop().subprocess_exec(
            lambda: protocol,
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT if protocol.combined else asyncio.subprocess.PIPE,
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
        await protocol.wait_for(protocol.exited)
        # The program has ended, but its children may still be writing its output.
        await protocol.wait_for(protocol.ended, timeout=TERM_SECONDS)
        return transport.get_returncode() or 0
    finally:
        try:
            if not protocol.exited.done():
                _signal(group, signal.SIGTERM)
                await asyncio.wait(
                    (protocol.ended, protocol.kill), timeout=TERM_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            # The rest of the group is killed even after a normal end, so that no process outlives the call.
            _signal(group, signal.SIGKILL)
            try:
                await asyncio.wait((protocol.exited,), timeout=TERM_SECONDS)
            finally:
                transport.close()


class _Protocol(asyncio.SubprocessProtocol):
    """Collects a program's output up to the limits. Does not wait for children that keep the pipes open."""

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

    async def wait_for(self, state: asyncio.Future[None], timeout: float | None = None) -> None:  # noqa: ASYNC109 - not an error when it ends
        """Wait until `state` is done, `end` is set or the time is up. Raise `ToolResultError` on too much output."""
        await asyncio.wait((state, self._overflowed, self.end), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if self._overflowed.done():
            raise ToolResultError(f"the program wrote more than {self._limits[_STDOUT]} bytes", "too_large")

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        # Output beyond the limit is read and dropped, so that the program does not block on a full pipe.
        room = self._limits[fd] - len(self.output[fd])
        self.output[fd] += data[:room]
        if fd == _STDOUT and len(data) > room:
            _set(self._overflowed)

    def process_exited(self) -> None:
        _set(self.exited)

    # asyncio calls this method after the program has exited and all its pipes are closed.
    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason does not matter
        _set(self.ended)


def _set(state: asyncio.Future[None]) -> None:
    if not state.done():
        state.set_result(None)


def _signal(group: int, number: signal.Signals) -> None:
    # The signal may fail: the whole group may have ended already, or its remaining processes may run as another user.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
