"""One HTTP/1.1 response, read strictly from whatever pieces it arrives in; no input or output happens here.

Only what OPA sends is admitted: a length or chunks, uncompressed. A response that ends with its connection is refused,
since half of it looks like the whole. Source: RFC 9112, sections 4 to 7.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MAX_HEAD: Final = 16 * 1024
"""Longest status line with headers, in bytes."""

MAX_BODY: Final = 4 * 1024 * 1024
"""Longest body, in bytes: a request has at most 1 MiB, and an answer may quote all of it."""

_STATUS: Final = re.compile(rb"HTTP/1\.1 ([1-5][0-9]{2})(?: [^\r\n\0]*)?")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*")
# What OPA sends, almost always in one piece. Asking for exactly that first is worth 5 % of a decision's time.
_USUAL: Final = re.compile(
    rb"HTTP/1\.1 200 OK\r\nContent-Type: application/json\r\n(?:Vary: Accept-Encoding\r\n)?"
    rb"Date: [A-Za-z0-9,: ]{29}\r\nContent-Length: ([0-9]{1,5})\r\n\r\n"
)
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_CHUNK: Final = re.compile(rb"[0-9A-Fa-f]{1,8}")
_MAX_CHUNK_LINE: Final = 8
_END: Final = b"\r\n\r\n"
_FRAMING: Final = frozenset((b"content-length", b"transfer-encoding", b"content-encoding", b"connection"))
_WITHOUT_BODY: Final = frozenset((204, 304))
_FINAL: Final = 200


class ResponseError(Exception):
    """The bytes are not a response of the admitted form. The message says how, to follow the server's name."""


class Response(NamedTuple):
    """A whole response. `reusable`: the server keeps the connection open for the next request."""

    status: int
    body: bytes
    reusable: bool


class ResponseReader:
    """Takes the bytes that arrive after one request and makes the response of them."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._status = 0
        self._length: int | None = None
        self._reusable = True
        self._chunks = bytearray()

    @property
    def begun(self) -> bool:
        """Whether any byte has arrived."""
        return bool(self._status or self._buffer)

    def feed(self, data: bytes) -> Response | None:
        """Take the next bytes, in whatever pieces; return the response once it is whole.

        Raises:
            ResponseError: not HTTP, not of the admitted form, too long, or more than the response.
        """
        if not self.begun and (usual := _USUAL.match(data)) and len(data) - usual.end() == int(usual[1]):
            return Response(_FINAL, data[usual.end() :], reusable=True)
        self._buffer += data
        if not self._status and not self._read_head():
            return None
        if self._length is None:
            return self._read_chunks()
        if len(self._buffer) < self._length:
            return None
        return self._whole(bytes(self._buffer[: self._length]), self._length)

    def _read_head(self) -> bool:
        end = self._buffer.find(_END)
        if end > MAX_HEAD or (end < 0 and len(self._buffer) > MAX_HEAD):
            raise ResponseError(f"sent more than {MAX_HEAD} bytes of headers")
        if end < 0:
            return False
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + len(_END)]
        status = _STATUS.fullmatch(lines[0])
        if not status:
            raise ResponseError("did not answer in HTTP/1.1")
        self._status = int(status[1])
        if self._status < _FINAL:
            raise ResponseError(f"sent an interim response ({self._status}), which nobody asked for")
        self._set_framing(_fields(lines[1:]))
        return True

    def _set_framing(self, fields: dict[bytes, bytes]) -> None:
        length, coding = fields.get(b"content-length"), fields.get(b"transfer-encoding")
        self._reusable = fields.get(b"connection", b"keep-alive").lower() == b"keep-alive"
        if fields.get(b"content-encoding", b"identity").lower() != b"identity":
            raise ResponseError("compressed its answer, although nobody asked for it")
        if self._status in _WITHOUT_BODY:
            self._length = 0
        elif coding is not None:
            if coding.lower() != b"chunked" or length is not None:
                raise ResponseError("does not say clearly where its answer ends")
        elif length is None:
            raise ResponseError("does not say where its answer ends")
        elif not _LENGTH.fullmatch(length):
            raise ResponseError("sent a length that is not a number")
        else:
            self._length = int(length)
            _check_size(self._length)

    def _read_chunks(self) -> Response | None:
        at = 0
        try:
            while (end := self._buffer.find(b"\r\n", at, at + _MAX_CHUNK_LINE + 2)) >= 0:
                size = bytes(self._buffer[at:end])
                if not _CHUNK.fullmatch(size):
                    raise ResponseError("sent a chunk without a proper size")
                start, after = end + 2, end + 2 + int(size, 16)
                _check_size(len(self._chunks) + after - start)
                if len(self._buffer) < after + 2:
                    return None
                if self._buffer[after : after + 2] != b"\r\n":
                    raise ResponseError("sent a chunk of another size than announced")
                self._chunks += self._buffer[start:after]
                at = after + 2
                if after == start:
                    return self._whole(bytes(self._chunks), at)
            if len(self._buffer) - at >= _MAX_CHUNK_LINE + 2:
                raise ResponseError("sent a chunk without a proper size")
            return None
        finally:
            del self._buffer[:at]

    def _whole(self, body: bytes, end: int) -> Response:
        if len(self._buffer) > end:
            raise ResponseError("sent more than it announced")
        return Response(self._status, body, self._reusable)


def _fields(lines: list[bytes]) -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if not field:
            raise ResponseError("sent a malformed header")
        name = field[1].lower()
        if name in fields and name in _FRAMING:
            raise ResponseError(f"sent the header {name.decode()} twice")
        fields[name] = field[2]
    return fields


def _check_size(size: int) -> None:
    if size > MAX_BODY:
        raise ResponseError(f"sent an answer of more than {MAX_BODY} bytes")
