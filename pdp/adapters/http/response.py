"""A buffered response of an application, and problem details for calls without a result."""

from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any, Final

import orjson

from pdp.adapters.guard.guard import CallOutcome
from pdp.execution.failures import ToolError

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_FAILED: Final = 400  # Responses from this HTTP status on are errors.
_UNUSABLE: Final = 502


class HeldResponse:
    """Buffers an application's response to one request, with a body of at most `longest` bytes."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._start: MutableMapping[str, Any] = {"status": 500, "headers": []}
        self._body = bytearray()

    async def take(self, message: MutableMapping[str, Any]) -> None:
        """Add an ASGI message; only response start and body are kept. Raise `ToolError` if the body is too long."""
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body" and self._start["status"] != _UNUSABLE:
            self._body += message.get("body", b"")
            if len(self._body) > self._longest:
                self._drop()
                raise ToolError(f"the response is longer than {self._longest} bytes")

    def check(self) -> None:
        """Raise `ToolError` if the status is an error, or if the body is compressed, so that it cannot be read."""
        if self._header(b"content-encoding") not in ("", "identity"):
            self._drop()
        if self.status >= _FAILED:
            detail = self.content.get("detail") if isinstance(self.content, dict) else None
            raise ToolError(detail if isinstance(detail, str) else f"HTTP {self.status}")

    @property
    def status(self) -> int:
        """The HTTP status; 500 if the application sent none."""
        return int(self._start["status"])

    @property
    def error(self) -> int:
        """The HTTP status to report for a failed tool: the application's error status, else 500."""
        return self.status if self.status >= _FAILED else 500

    @property
    def content(self) -> Any:
        """The body as parsed JSON or as text; None if the body is empty."""
        kind = self._header(b"content-type").partition(";")[0].strip()
        if kind == "application/json" or kind.endswith("+json"):
            try:
                return orjson.loads(self._body)
            except ValueError:
                pass
        return self._body.decode(errors="replace") if self._body else None

    async def send(self, send: Send) -> None:
        """Send the buffered response unchanged."""
        await send(self._start)
        await send({"type": "http.response.body", "body": bytes(self._body)})

    def _drop(self) -> None:
        self._start, self._body = {"status": _UNUSABLE, "headers": []}, bytearray()

    def _header(self, name: bytes) -> str:
        values = [value for own, value in self._start.get("headers", ()) if own.lower() == name]
        return values[0].decode("latin-1").lower() if values else ""


async def send_json(send: Send, status: int, value: Any, kind: bytes = b"application/json") -> None:
    """Send a response with a JSON body."""
    body = orjson.dumps(value)
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_problem(send: Send, status: int, text: str, outcome: CallOutcome | None = None) -> None:
    """Send problem details (RFC 9457) with `code` and `detail`, and the `approval` of a held call."""
    problem = {"title": HTTPStatus(status).phrase, "status": status, "code": text.partition(":")[0], "detail": text}
    if outcome is not None:
        problem["outcome"] = outcome.kind
        problem |= {"approval": outcome.pending} if outcome.pending else {}
    await send_json(send, status, problem, b"application/problem+json")
