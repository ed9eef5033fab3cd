"""A server that acts like a faulty OPA, for example with malformed answers. Tests script its behaviour."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from pdp.engine.opa.versions import OLDEST_GOOD

ALLOW = (
    b'{"verdict":"ALLOW","reasons":[{"code":"effects.gate_satisfied","message":"","details":{}}],"obligations":[],'
    b'"bundle":null}'
)
"""A decision document that allows the call."""

GOOD = b'"provenance":{"version":"%b"}' % OLDEST_GOOD.encode()
"""The JSON field of OPA's answer that contains OPA's version."""


def http(body: bytes, *, status: bytes = b"200 OK", headers: bytes = b"") -> bytes:
    """Return an HTTP response with JSON. `headers` can make the response invalid. Each header ends with CR LF."""
    if b"Content-Type" not in headers:
        headers += b"Content-Type: application/json\r\n"
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, headers, len(body), body)


def result(document: bytes, said: bytes = GOOD) -> bytes:
    """Return an HTTP response of OPA with a decision document and OPA's version."""
    return http(b'{%b,"result":%b}' % (said, document))


class Peer:
    """A connection of a client to the server. The connections have numbers from 0."""

    def __init__(self, server: HostileOpa, sock: socket.socket, number: int) -> None:
        self._server = server
        self._sock = sock
        self.number = number
        self.last_request = b""

    def request(self) -> bool:
        """Read a whole request into the server's `requests`. Return False if the client closed the connection."""
        read = b""
        while b"\r\n\r\n" not in read:
            piece = self._receive()
            if not piece:
                return False
            read += piece
        head, _, body = read.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
        while len(body) < length:
            piece = self._receive()
            if not piece:
                return False
            body += piece
        self.last_request = head + b"\r\n\r\n" + body
        self._server.requests.append(self.last_request)
        return True

    def send(self, data: bytes) -> None:
        with suppress(OSError):
            self._sock.sendall(data)

    def drip(self, data: bytes) -> None:
        """Send data byte by byte, with pauses so short that no timeout for a single read expires."""
        for index in range(len(data)):
            self._sock.send(data[index : index + 1])
            if self._server.ended.wait(0.02):
                return

    def reset(self) -> None:
        """Close the connection with a TCP reset."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._sock.close()

    def wait_until_closed(self) -> None:
        while self._receive():
            pass

    def _receive(self) -> bytes:
        try:
            return self._sock.recv(65536)
        except OSError:
            return b""


class HostileOpa:
    """A scripted server as a context manager. `behave` runs in a thread for each connection.

    The server listens on 127.0.0.1 or on the Unix socket `path`. With `certificate`, a PEM file with key and
    certificate,
    the server uses TLS. With `clients`, the server requires a client certificate that a certificate in this file has
    signed.
    """

    def __init__(
        self,
        behave: Callable[[Peer], None],
        path: Path | None = None,
        *,
        certificate: Path | None = None,
        clients: Path | None = None,
    ) -> None:
        self._behave = behave
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if certificate else None
        if self._tls and certificate:
            self._tls.load_cert_chain(certificate)
            if clients:
                self._tls.load_verify_locations(clients)
                self._tls.verify_mode = ssl.CERT_REQUIRED
        self._threads: list[threading.Thread] = []
        self._socks: list[socket.socket] = []
        self.requests: list[bytes] = []
        self.ended = threading.Event()
        if path is None:
            self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
            scheme = "https" if certificate else "http"
            self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(path))
            self._listener.listen(256)
            self.url = f"unix://{path}"

    @property
    def connections(self) -> int:
        return len(self._socks)

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for sock in (self._listener, *self._socks):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for sock in (self._listener, *self._socks):
            sock.close()

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._socks.append(sock)
            self._start(partial(self._serve, sock, len(self._socks) - 1))

    def _serve(self, sock: socket.socket, number: int) -> None:
        with suppress(OSError):
            if self._tls:
                sock = self._socks[number] = self._tls.wrap_socket(sock, server_side=True)
            self._behave(Peer(self, sock, number))
        sock.close()


def answering(*responses: bytes) -> Callable[[Peer], None]:
    """Return a behaviour that answers the requests of each connection with these responses, in order.

    The last response is repeated.
    """

    def behave(peer: Peer) -> None:
        turn = 0
        while peer.request():
            peer.send(responses[min(turn, len(responses) - 1)])
            turn += 1

    return behave


def answering_once(response: bytes) -> Callable[[Peer], None]:
    """Return a behaviour that answers one request and then closes the connection."""

    def behave(peer: Peer) -> None:
        if peer.request():
            peer.send(response)

    return behave


def self_signed(folder: Path) -> Path:
    """Write a self-signed certificate for 127.0.0.1 and its key into one file, and return the file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "opa")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "both.pem"
    file.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + signed.public_bytes(Encoding.PEM)
    )
    return file
