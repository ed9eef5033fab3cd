"""The resident process, which answers the hooks of one user's clients. The first call starts the process; see ask.py.

It ends after 30 minutes without a call, when its program or socket is removed, or on SIGTERM. Open calls are answered.
"""

import asyncio
import fcntl
import hashlib
import logging
import os
import signal
import socket
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from pdp.errors import PdpError, UsageError
from pdp.hooks.ask import LARGEST, STATE, WAIT_SECONDS, open_folder, peer, socket_name, wait_seconds
from pdp.hooks.call import Behaviour, HookAnswer, Moment, Output
from pdp.hooks.decide import answer
from pdp.hooks.dialects import DIALECTS
from pdp.hooks.home import HookPolicy, open_policy
from pdp.json import JsonValueError, parse_json

IDLE_SECONDS: Final = 30 * 60.0
_ROUND_SECONDS: Final = 30.0  # The process checks every 30 s whether it is still needed.

_CLOSING_SECONDS: Final = 5.0  # An ending process waits this long for open calls.

_log = logging.getLogger("pdp.hooks")


class Resident:
    """Answers the calls for one HOME. The process must run in the folder `state`, and hold the lock file there."""

    def __init__(self, home: Path) -> None:
        self._home, self._owned = home, ExitStack()
        self._loaded: HookPolicy | None = None
        self._asked = time.monotonic()

    async def run(self, listener: socket.socket) -> None:
        """Listen on the socket, and answer calls until the process should end."""
        # An error is ignored here, because each call loads the policy again and reports the error.
        with suppress(Exception):
            self._loaded = open_policy(self._home, self._owned)
        server = await asyncio.start_unix_server(self._connected, sock=listener)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        _log.info("process %d answers for %s", os.getpid(), self._home)
        with suppress(OSError):  # This error means that HOME or this program was removed, so the process ends.
            while (self._home / STATE / socket_name()).samefile(socket_name()):
                with suppress(PdpError):
                    if self._loaded is not None:
                        await asyncio.to_thread(self._loaded.pep.sweep)
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), _ROUND_SECONDS)
                if ended.is_set() or time.monotonic() > self._asked + IDLE_SECONDS:
                    break
        server.close()
        if calls := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(calls, timeout=_CLOSING_SECONDS)
        self._owned.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._asked = time.monotonic()
        # There is no answer to a client that has disconnected or sent an unreadable request.
        with suppress(OSError, EOFError, TimeoutError, ValueError):
            async with asyncio.timeout(WAIT_SECONDS + _CLOSING_SECONDS):
                if peer(writer.get_extra_info("socket"))[0] == os.geteuid():
                    head = await reader.readline()
                    client, digest, length = head.decode().split(" ")
                    body = await reader.readexactly(min(int(length), LARGEST))
                    output = await self._output(client, digest, body)
                    answered = (digest, str(output.exit_code), output.stdout, output.stderr, "")
                    writer.write("\0".join((hashlib.sha256(head + body).hexdigest(), *answered)).encode())
                    await writer.drain()
        writer.close()

    async def _output(self, client: str, digest: str, body: bytes) -> Output:
        if (dialect := DIALECTS.get(client)) is None:
            return Output(2, stderr=f"pdp denies this call: no client is called {client!a:.40}\n")
        moment = Moment.BEFORE
        try:
            call = dialect.read(parse_json(body))
            moment = call.moment
            async with asyncio.timeout(wait_seconds(client) - 0.5):
                given = await answer(call, self._policy(digest), can_ask=dialect.can_ask)
        except Exception as error:  # noqa: BLE001 - any failure denies this call only
            if not isinstance(error, PdpError | JsonValueError | TimeoutError):
                _log.exception("could not answer a call of %s", client)
            reason = str(error).partition("\n")[0] or "no decision in time"
            given = HookAnswer(Behaviour.DENY, f"the call cannot be decided: {reason}")
        return dialect.write(given, moment)

    def _policy(self, digest: str) -> HookPolicy:
        if self._loaded is None or self._loaded.digest != digest:
            # The old policy is closed later, because it may still be deciding calls.
            asyncio.get_running_loop().call_later(WAIT_SECONDS + _CLOSING_SECONDS, self._owned.close)
            self._loaded, self._owned = None, ExitStack()
            self._loaded = open_policy(self._home, self._owned)
        if self._loaded.digest != digest:
            raise UsageError("the policy's files are being written", hint="try again")
        return self._loaded


def reside() -> None:
    """Run the resident process for the HOME on the command line. End if such a process is already running."""
    home = Path(sys.argv[1])
    os.fchdir(open_folder(f"{home}/{STATE}", open_folder(str(home))))
    name = socket_name()
    lock = os.open(f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    signal.alarm(1)  # The alarm ends this process, unless the process that holds the lock ends within a second.
    fcntl.flock(lock, fcntl.LOCK_EX)
    signal.alarm(0)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    _log.setLevel(logging.INFO)
    Path(name).unlink(missing_ok=True)  # A killed process leaves its socket file behind, so the file is removed first.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(name)
        asyncio.run(Resident(home).run(listener))
