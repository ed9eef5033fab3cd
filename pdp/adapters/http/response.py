"""An application's response, held back until it is decided upon; and those that say why there is none."""

from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any, Final

import orjson

from pdp.adapters.guard.guard import CallOutcome
from pdp.execution.failures import ToolError

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_FAILED: Final = 400  # the first status that is an error
_UNUSABLE: Final = 502


class HeldResponse:
    """What an application sends in answer to one request: at most `longest` bytes."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._start: MutableMapping[str, Any] = {"status": 500, "headers": []}
        self._body = bytearray()

    async def take(self, message: MutableMapping[str, Any]) -> None:
        """Take a message; what is not the start or a part of the body is dropped. ToolError: it is too long."""
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body" and self._start["status"] != _UNUSABLE:
            self._body += message.get("body", b"")
            if len(self._body) > self._longest:
                self._drop()
                raise ToolError(f"the response is longer than {self._longest} bytes")

    def check(self) -> None:
        """ToolError: it says that the tool failed, or cannot be read."""
        if self._header(b"content-encoding") not in ("", "identity"):
            self._drop()
        if self.status >= _FAILED:
            detail = self.content.get("detail") if isinstance(self.content, dict) else None
            raise ToolError(detail if isinstance(detail, str) else f"HTTP {self.status}")

    @property
    def status(self) -> int:
        """The status; 500 where none was sent."""
        return int(self._start["status"])

    @property
    def error(self) -> int:
        """The status, of a tool that failed: that of an error."""
        return self.status if self.status >= _FAILED else 500

    @property
    def content(self) -> Any:
        """The body as JSON, or as text."""
        kind = self._header(b"content-type").partition(";")[0].strip()
        if kind == "application/json" or kind.endswith("+json"):
            try:
                return orjson.loads(self._body)
            except ValueError:
                pass
        return self._body.decode(errors="replace") if self._body else None

    async def send(self, send: Send) -> None:
        """Send it on as it is."""
        await send(self._start)
        await send({"type": "http.response.body", "body": bytes(self._body)})

    def _drop(self) -> None:
        self._start, self._body = {"status": _UNUSABLE, "headers": []}, bytearray()

    def _header(self, name: bytes) -> str:
        values = [value for own, value in self._start.get("headers", ()) if own.lower() == name]
        return values[0].decode("latin-1").lower() if values else ""


async def send_json(send: Send, status: int, value: Any, kind: bytes = b"application/json") -> None:
    """Send a response of our own."""
    body = orjson.dumps(value)
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_problem(send: Send, status: int, text: str, outcome: CallOutcome | None = None) -> None:
    """Send why there is no result (RFC 9457): `code`, `detail`, and of a held call its `approval`."""
    problem = {"title": HTTPStatus(status).phrase, "status": status, "code": text.partition(":")[0], "detail": text}
    if outcome is not None:
        problem["outcome"] = outcome.kind
        problem |= {"approval": outcome.pending} if outcome.pending else {}
    await send_json(send, status, problem, b"application/problem+json")
