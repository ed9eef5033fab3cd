from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdp.engine.opa.response import MAX_BODY, MAX_HEAD, Response, ResponseError, ResponseReader

USUAL = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nVary: Accept-Encoding\r\n"
    b"Date: Sat, 21 Nov 2026 09:24:13 GMT\r\nContent-Length: 3\r\n\r\n{}\n"
)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def read(data: bytes) -> Response | None:
    return ResponseReader().feed(data)


@pytest.mark.parametrize(
    ("data", "response"),
    [
        pytest.param(USUAL, Response(200, b"{}\n", reusable=True), id="as OPA sends it"),
        pytest.param(
            USUAL.replace(b"Vary: Accept-Encoding\r\n", b""), Response(200, b"{}\n", reusable=True), id="without Vary"
        ),
        pytest.param(
            USUAL.replace(b"Date:", b"Connection: close\r\nDate:"),
            Response(200, b"{}\n", reusable=False),
            id="last one",
        ),
        pytest.param(
            b"HTTP/1.1 500 Internal Server Error\r\ncontent-length:2 \r\nConnection: Keep-Alive\r\n\r\n{}",
            Response(500, b"{}", reusable=True),
            id="other spellings",
        ),
        pytest.param(
            b"HTTP/1.1 200\r\nX: \r\nContent-Encoding: identity\r\nContent-Length: 0\r\n\r\n",
            Response(200, b"", reusable=True),
            id="empty",
        ),
        pytest.param(CHUNKED + b"2\r\n{}\r\n0\r\n\r\n", Response(200, b"{}", reusable=True), id="one chunk"),
        pytest.param(
            CHUNKED + b"1\r\n{\r\n00A\r\n\r\n\r\n\r\n\r\n\r\n\r\n1\r\n}\r\n0\r\n\r\n",
            Response(200, b"{\r\n\r\n\r\n\r\n\r\n}", reusable=True),
            id="chunks that look like their own frame",
        ),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", Response(204, b"", reusable=True), id="no content"),
    ],
)
@given(cuts=st.lists(st.integers(0, 200), max_size=6))
def test_a_response_is_read_in_whatever_pieces_it_comes(data: bytes, response: Response, cuts: list[int]) -> None:
    reader = ResponseReader()
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in pairwise(places)]

    found = [reader.feed(piece) for piece in pieces]

    assert found == [None] * (len(pieces) - 1) + [response]


@given(st.integers(0, len(USUAL) - 1))
def test_what_is_cut_off_is_no_response(end: int) -> None:
    assert read(USUAL[:end]) is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "did not answer in HTTP/1.1", id="another protocol"),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", "did not answer in HTTP/1.1", id="HTTP/1.0"),
        pytest.param(b"HTTP/1.1 2OO OK\r\nContent-Length: 0\r\n\r\n", "did not answer in HTTP/1.1", id="no status"),
        pytest.param(b"HTTP/1.1 600 X\r\nContent-Length: 0\r\n\r\n", "did not answer in HTTP/1.1", id="status beyond"),
        pytest.param(
            b"HTTP/1.1 100 Continue\r\n\r\n", "sent an interim response (100), which nobody asked for", id="interim"
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\n\r\n{}", "does not say where its answer ends", id="neither length nor chunks"
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
            "does not say clearly where its answer ends",
            id="length and chunks",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "does not say clearly where its answer ends",
            id="another coding",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
            "sent the header content-length twice",
            id="two lengths",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "sent a length that is not a number", id="negative length"
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n", "sent a length that is not a number", id="odd length"
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY + 1),
            f"sent an answer of more than {MAX_BODY} bytes",
            id="length beyond the bound",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{}", "sent more than it announced", id="length too small"
        ),
        pytest.param(USUAL + b"{}", "sent more than it announced", id="something behind it"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
            "compressed its answer, although nobody asked for it",
            id="compressed",
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "sent a malformed header", id="no colon"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", "sent a malformed header", id="folded header"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n", "sent a malformed header", id="blank before the colon"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA: b\0\r\n\r\n", "sent a malformed header", id="NUL"),
        pytest.param(b"A" * (MAX_HEAD + 1), f"sent more than {MAX_HEAD} bytes of headers", id="endless line"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * MAX_HEAD + b"\r\n",
            f"sent more than {MAX_HEAD} bytes of headers",
            id="endless headers",
        ),
        pytest.param(CHUNKED + b"g\r\n", "sent a chunk without a proper size", id="chunk size no number"),
        pytest.param(CHUNKED + b"\r\n", "sent a chunk without a proper size", id="chunk size absent"),
        pytest.param(CHUNKED + b"2;a=b\r\n{}\r\n", "sent a chunk without a proper size", id="chunk extension"),
        pytest.param(CHUNKED + b"0" * 100, "sent a chunk without a proper size", id="chunk size endless"),
        pytest.param(
            CHUNKED + b"ffffffff\r\n", f"sent an answer of more than {MAX_BODY} bytes", id="chunk beyond the bound"
        ),
        pytest.param(
            CHUNKED + (b"100000\r\n" + b"x" * 0x100000 + b"\r\n") * 5,
            f"sent an answer of more than {MAX_BODY} bytes",
            id="chunks beyond the bound together",
        ),
        pytest.param(CHUNKED + b"2\r\n{}}\r\n", "sent a chunk of another size than announced", id="chunk too long"),
        pytest.param(CHUNKED + b"0\r\nA: b\r\n\r\n", "sent a chunk of another size than announced", id="trailer"),
        pytest.param(CHUNKED + b"0\r\n\r\nHTTP/1.1", "sent more than it announced", id="something behind the chunks"),
    ],
)
def test_anything_else_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ResponseError) as caught:
        read(data)

    assert str(caught.value) == message


@given(st.binary(max_size=300), st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", CHUNKED]), st.integers(0, 300))
def test_no_bytes_lead_to_another_error(data: bytes, start: bytes, cut: int) -> None:
    reader = ResponseReader()
    try:
        first = reader.feed(start + data[:cut])
        response = first or reader.feed(data[cut:])
    except ResponseError:
        return
    assert response is None or 200 <= response.status <= 599


def test_begun_says_whether_anything_came() -> None:
    reader = ResponseReader()

    assert [reader.begun, reader.feed(b"H"), reader.begun] == [False, None, True]
