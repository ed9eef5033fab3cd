"""Receive webhook messages about approvals, and post one line about each new approval to a chat.

    WEBHOOK_SECRET=whsec_... CHAT_URL=https://chat.example.com/hooks/... python receiver.py

If PDP_URL and PDP_TOKEN are set, the line says in one sentence what the call would do. See
docs/how-to/chat-webhooks.md.
"""

import base64
import hmac
import json
import os
import re
import threading
import time
from collections import deque
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

from pdp import Client
from pdp.errors import PdpError
from pdp.files import sentence

LARGEST = 65_536  # The maximum size of a message in bytes.
LATEST = 300  # The maximum age of a message in seconds.
LONGEST = 300  # The maximum number of characters of a sentence in the chat.

# Characters that no chat reads as mark-up, a mention or a link. The texts in a sentence come from a model.
PLAIN = re.compile(r"""[^\W_]|[ ,;="'%+-]|(?<=[^\W_])_(?=[^\W_])|\.(?=[0-9])|:(?= )""")


def plain(text: str) -> str:
    """Return the start of a text, with a question mark in place of every character that could be mark-up."""
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]} and more"
    return "".join(letter if PLAIN.match(cut, place) else "?" for place, letter in enumerate(cut))


def is_signed(secret: bytes, headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether a message has a valid signature of Standard Webhooks, and was sent in the last minutes."""
    sent = headers.get("webhook-timestamp", "")
    if not re.fullmatch("[0-9]{1,12}", sent) or abs(time.time() - int(sent)) > LATEST:
        return False
    signed = f"{headers.get('webhook-id', '')}.{sent}.".encode() + body
    expected = b"v1," + base64.b64encode(hmac.digest(secret, signed, "sha256"))
    given = headers.get("webhook-signature", "").encode().split()
    return any(hmac.compare_digest(each, expected) for each in given)


class Bridge:
    """Posts a line about each new approval to the chat at `chat_url`. `client` reads what the call would do."""

    def __init__(self, chat_url: str, client: Client | None = None) -> None:
        self._chat_url, self._client = chat_url, client
        self._posted: deque[str] = deque(maxlen=1000)
        self._turn = threading.Lock()

    def take(self, message_id: str, message: Mapping[str, str]) -> None:
        """Post a line for a message, unless it is about another step or was posted already.

        Raises PdpError or httpx.HTTPError if the service or the chat fails. The service then sends the message again.
        """
        with self._turn:
            if message["type"] != "approval.opened" or message_id in self._posted:
                return
            what = "a tool call"
            if self._client is not None:
                approval = self._client.approvals.get(message["approval_id"])
                if approval.standing != "pending":
                    return
                what = plain(sentence(approval))
            text = f"Waits for approval: {what}\n{message['url']}"
            httpx.post(self._chat_url, json={"text": text}, timeout=5).raise_for_status()
            self._posted.append(message_id)


def served(port: int, secret: str, bridge: Bridge) -> ThreadingHTTPServer:
    """Return an HTTP server on this machine that gives signed messages to the bridge."""
    key = base64.b64decode(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else secret.encode()

    class Receiver(BaseHTTPRequestHandler):
        timeout = 10

        def do_POST(self) -> None:
            self.send_response(self._status())
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _status(self) -> HTTPStatus:
            size = self.headers.get("content-length", "")
            if not re.fullmatch("[0-9]{1,6}", size) or int(size) > LARGEST:
                return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            body = self.rfile.read(int(size))
            if not is_signed(key, self.headers, body):
                return HTTPStatus.UNAUTHORIZED
            try:
                bridge.take(self.headers["webhook-id"], json.loads(body))
            except (PdpError, httpx.HTTPError) as error:
                # The text of the error may contain the URL of the chat, which is a secret.
                self.log_error("not posted: %s", type(error).__name__)
                return HTTPStatus.BAD_GATEWAY
            return HTTPStatus.NO_CONTENT

    return ThreadingHTTPServer(("127.0.0.1", port), Receiver)


if __name__ == "__main__":
    service = os.environ.get("PDP_URL")  # The client reads its token from PDP_TOKEN.
    to_chat = Bridge(os.environ["CHAT_URL"], Client(service) if service else None)
    served(int(os.environ.get("PORT", "8090")), os.environ["WEBHOOK_SECRET"], to_chat).serve_forever()
