"""An HTTP server of a bundle repository. It sends files with ETag and Cache-Control, and can simulate faults."""

import hashlib
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

from tests.support import PATIENCE

Fault = Literal["cut", "slow", "drip", "broken", "garbage", "endless", "moved"]

_SLOW = ("", 0)


class BundleServer:
    """A server for the files in a folder.

    Attributes:
        url: The URL of the folder.
        fault: The simulated fault of all following answers. None: no fault.
        asked: The path and the status of each request so far.
        headers: The headers of the latest request.
        released: An event. When it is set, slow answers continue.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fault: Fault | None = None
        self.asked: list[tuple[str, int]] = []
        self.headers: Mapping[str, str] = {}
        self.released = threading.Event()
        self._arrived = threading.Condition()
        self._server: ThreadingHTTPServer | None = None
        # This socket keeps the port while the server is stopped, so that no other process can take the port.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self._port = self._reserved.getsockname()[1]
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the server again at the same address."""
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), _handler(self))
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def kill(self) -> None:
        """Stop the server at once, so that connections are refused until the next start."""
        if self._server is not None:
            self.released.set()
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def forget(self) -> None:
        """Release the reserved port."""
        self._reserved.close()

    def note(self, path: str, status: int) -> None:
        with self._arrived:
            self.asked.append((path, status))
            self._arrived.notify_all()

    def wait_for(self, path: str, status: int, *, times: int = 1, seconds: float = PATIENCE) -> bool:
        """Wait until the server has answered `times` more requests for `path` with `status`."""
        with self._arrived:
            seen = len(self.asked)
            return self._arrived.wait_for(lambda: self.asked[seen:].count((path, status)) >= times, seconds)

    def wait_until_slow(self, *, seconds: float = PATIENCE) -> bool:
        """Wait until the server has begun a slow answer."""
        with self._arrived:
            return self._arrived.wait_for(lambda: _SLOW in self.asked, seconds)


@contextmanager
def serving(folder: Path) -> Iterator[BundleServer]:
    server = BundleServer(folder)
    try:
        yield server
    finally:
        server.kill()
        server.forget()


def _handler(server: BundleServer) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        served = server

    return Handler


class _Handler(BaseHTTPRequestHandler):
    served: BundleServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.served.headers = dict(self.headers)
        try:
            self._answer(self.path.partition("?")[0])
        except OSError:
            self.close_connection = True

    def _answer(self, path: str) -> None:
        try:
            content = (self.served.folder / path.lstrip("/")).read_bytes()
        except OSError:
            self._send(404, b"", path)
            return
        fault = self.served.fault
        if fault == "moved":
            self._send(302, b"", path, Location="file:///etc/passwd")
            return
        if fault == "broken":
            self._send(500, b"", path)
            return
        if fault == "garbage":
            content = b"<html>Sign in to the hotel's network</html>"
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        if self.headers.get("If-None-Match") == tag:
            self._send(304, b"", path, ETag=tag)
            return
        self._send(200, content, path, ETag=tag, **{"Cache-Control": "no-cache"})

    def _send(self, status: int, content: bytes, path: str, **headers: str) -> None:
        self.served.note(path, status)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != HTTPStatus.NOT_MODIFIED:
            length = 10**12 if self.served.fault == "endless" else len(content)
            self.send_header("Content-Length", str(length))
        # The headers never end, but the next byte always arrives before the time-out of a single read.
        while self.served.fault == "drip" and not self.served.released.wait(0.02):
            self.send_header("X-Drip", "x")
            self.flush_headers()
        self.end_headers()
        self._write(content)

    def _write(self, content: bytes) -> None:
        fault = self.served.fault
        if fault == "cut":
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
            return
        if fault == "slow":
            self.wfile.write(content[:1])
            self.wfile.flush()
            self.served.note(*_SLOW)
            self.served.released.wait(PATIENCE)
            content = content[1:]
        self.wfile.write(content)
        while fault == "endless":
            self.wfile.write(b" " * 65536)

    def log_message(self, *_: object) -> None:
        pass
