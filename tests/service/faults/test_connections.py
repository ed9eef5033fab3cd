"""The service closes connections of clients that send too much, too slowly or no HTTP, and answers other clients."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import httpx
import pytest

from tests.support import PATIENCE
from tests.support.service import RunningService, running_service

pytestmark = pytest.mark.process

HUGE = 40 * 1024 * 1024
PART = b"x" * 65536


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("service"), limits={"body_seconds": 1}) as service:
        yield service


@pytest.fixture(autouse=True)
def _answers_afterwards(running: RunningService) -> Iterator[None]:
    yield
    assert httpx.get(f"{running.url}/healthz").json() == {"status": "ok"}


def head(running: RunningService, path: str = "/v1/proposals", *more: str) -> bytes:
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {running.token()}",
        "Content-Type: application/json",
    )
    return "\r\n".join((*lines, *more, "", "")).encode("latin-1")


def connected(running: RunningService) -> closing[socket.socket]:
    url = httpx.URL(running.url)
    return closing(socket.create_connection((url.host, url.port or 0), timeout=PATIENCE))


def most_memory(running: RunningService) -> int:
    """Return the peak memory of the service in bytes."""
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def answered(connection: socket.socket) -> bytes:
    """Return all bytes that the service sends until it closes the connection."""
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionError:
        pass  # The service closed the connection while the test was sending.
    return received


def send_all(connection: socket.socket, parts: Iterator[bytes]) -> int:
    """Send `parts` until the service closes the connection, and return how many bytes were sent."""
    sent = 0
    try:
        for part in parts:
            connection.sendall(part)
            sent += len(part)
    except ConnectionError:
        pass
    return sent


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_service_rejects_a_body_of_40_mb_without_buffering_it(running: RunningService, framing: str) -> None:
    before = most_memory(running)
    parts = HUGE // len(PART)
    with connected(running) as connection:
        if framing == "length":
            connection.sendall(head(running, "/v1/tokens", f"Content-Length: {HUGE}"))
            send_all(connection, (PART for _ in range(parts)))
        else:
            connection.sendall(head(running, "/v1/tokens", "Transfer-Encoding: chunked"))
            send_all(connection, (b"%x\r\n%s\r\n" % (len(PART), PART) for _ in range(parts)))
        assert answered(connection).startswith(b"HTTP/1.1 413 ")
    assert most_memory(running) - before < HUGE / 2


def test_service_rejects_many_long_bodies_without_buffering_them(running: RunningService) -> None:
    before = most_memory(running)

    def sent(_: int) -> bytes:
        with connected(running) as connection:
            connection.sendall(head(running, "/v1/tokens", "Transfer-Encoding: chunked"))
            send_all(connection, (b"%x\r\n%s\r\n" % (len(PART), PART) for _ in range(400)))
            return answered(connection)[:13]

    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(sent, range(16))) == {b"HTTP/1.1 413 "}
    assert most_memory(running) - before < HUGE


def drip(running: RunningService, beginning: bytes) -> bytes:
    """Send one byte at a time until the service closes the connection, and return its answer.

    If `beginning` is empty, send nothing at all.
    """
    with connected(running) as connection:
        connection.sendall(beginning)
        connection.settimeout(0.2)
        received, end = b"", time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                part = connection.recv(65536)
                received += part
                if not part:
                    return received
            except TimeoutError:
                if beginning and send_all(connection, iter([b"a"])) == 0:
                    return received
            except ConnectionError:
                return received
    pytest.fail("the service holds a connection that sends a byte from time to time")


def test_service_closes_a_slow_connection(running: RunningService) -> None:
    slow = {
        "nothing": b"",
        "header": b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        "second request": b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nX-Slow: ",
        "body": head(running, "/v1/tokens", "Content-Length: 1000") + b"{",
        "chunk": head(running, "/v1/tokens", "Transfer-Encoding: chunked") + b"400\r\n{",
        "chunk size": head(running, "/v1/tokens", "Transfer-Encoding: chunked"),
    }
    with ThreadPoolExecutor(64 * len(slow)) as threads:
        ended = {name: [threads.submit(drip, running, each) for _ in range(8)] for name, each in slow.items()}
        assert httpx.get(f"{running.url}/healthz").json() == {"status": "ok"}
        statuses = {name: {each.result()[9:12] for each in answers} for name, answers in ended.items()}
    none, late = {b""}, {b"408"}
    assert statuses == {
        "nothing": none, "header": none, "second request": {b"200"}, "body": late, "chunk": late,
        "chunk size": late,
    }  # fmt: skip


def test_request_with_too_many_header_fields_is_rejected(running: RunningService) -> None:
    with connected(running) as connection:
        connection.sendall(GET + b"X-Field: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n" * 1_200 + b"\r\n")
        assert answered(connection).startswith(b"HTTP/1.1 400 ")


def test_service_closes_idle_connections_to_accept_new_connections(tmp_path: Path) -> None:
    with running_service(tmp_path, limits={"connections": 40}) as running, ExitStack() as owned:
        client = running.client()
        assert client.get("/readyz").status_code == 200
        for content in (b"", b"GET /healthz HTTP/1.1\r\nHost: ", GET + b"\r\n"):
            for _ in range(60):
                owned.enter_context(connected(running)).sendall(content)
            assert httpx.get(f"{running.url}/readyz").status_code == 200
            assert httpx.get(f"{running.url}/openapi.json", headers=client.headers).status_code == 200
        # The service does not close a connection with an open event stream, because an open stream is an active
        # request.
        opened = head(running, "/v1/approvals/events").replace(b"POST", b"GET", 1)
        for _ in range(40):
            stream = owned.enter_context(connected(running))
            stream.sendall(opened)
            assert stream.recv(16).startswith(b"HTTP/1.1 ")
        assert httpx.get(f"{running.url}/openapi.json", headers=client.headers).status_code == 503
        assert [httpx.get(f"{running.url}{path}").status_code for path in ("/healthz", "/readyz")] == [200, 200]


def test_size_of_a_pipelined_request_head_is_limited(running: RunningService) -> None:
    opened = head(running, "/v1/approvals/events").replace(b"POST", b"GET", 1)
    parts = 400
    with connected(running) as connection:
        connection.sendall(opened + b"GET /healthz HTTP/1.1\r\nX-Long: ")
        assert send_all(connection, (PART for _ in range(parts))) < parts * len(PART)


GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /v1/tokens HTTP/1.1\r\nHost: x\r\n"
ODD = {
    "a long header": GET + b"X-Long: " + b"a" * 1_000_000 + b"\r\n\r\n",
    "many headers": GET + b"" + b"X-Many: aaaaaaaa\r\n" * 50_000 + b"\r\n",
    "a long path": b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "a long method": b"G" * 1_000_000 + b" / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 50,
    "HTTP/9.9": b"GET /healthz HTTP/9.9\r\nHost: x\r\n\r\n",
    "no HTTP": b"\x00\xff" * 5_000,
    "a length and chunks": POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 4\r\n\r\n{}{}",
    "a negative length": POST + b"Content-Length: -1\r\n\r\n",
    "a malformed chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    "a folded header": GET + b"X-Request-ID: a\r\n Set-Cookie: b\r\n\r\n",
    "a bare carriage return": GET + b"X-Request-ID: a\rSet-Cookie: b\r\n\r\n",
    "a bare line feed": GET + b"X-Request-ID: a\nSet-Cookie: b\r\n\r\n",
    "a null in a header": GET + b"X-Request-ID: a\x00b\r\n\r\n",
    "a null in the path": b"GET /\x00healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "an absolute path": b"GET http://other/v1/audit HTTP/1.1\r\nHost: x\r\n\r\n",
    "CONNECT": b"CONNECT other:443 HTTP/1.1\r\nHost: other:443\r\n\r\n",
    "all of the server": b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    "an upgrade": GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "a thousand at once": b"GET /v1/audit HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000,
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_malformed_http_is_rejected(running: RunningService, name: str) -> None:
    with connected(running) as connection:
        send_all(connection, iter([ODD[name]]))
        with suppress(OSError):  # The service may close the connection while the test is sending.
            connection.shutdown(socket.SHUT_WR)
        received = answered(connection)
    lines = received.split(b"\r\n")
    statuses = [line[9:12] for line in lines if line.startswith(b"HTTP/1.1 ")]
    assert all(b"200" <= status < b"500" for status in statuses)
    assert not any(line.lower().startswith(b"set-cookie") for line in lines)
