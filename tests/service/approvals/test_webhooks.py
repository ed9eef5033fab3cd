"""Webhook messages about approvals are signed, delivered in order, and sent only to allowed addresses."""

import asyncio
import base64
import hmac
import json
import logging
import queue
import socket
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Self

import httpx
import pytest
from pydantic import ValidationError

from pdp.service.approvals.webhooks import WebhookError, checked_addresses
from pdp.service.settings import WebhookSettings
from pdp.stores.sql.database import Database
from pdp.stores.sql.tokens import SqlWebhooks
from tests.service.approvals.test_routes import opened
from tests.support import PATIENCE, until
from tests.support.postgres import DATABASES, empty_database
from tests.support.servers.certificates import certificate
from tests.support.service import APPROVER, ServedApp, service, tenant_on

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


class Message(NamedTuple):
    """A webhook message that the receiver got."""

    id: str
    body: dict[str, Any]
    path: str
    host: str


class Receiver:
    """An HTTP server that verifies message signatures. It answers with the statuses in `answers`, then with 204."""

    def __init__(self, *answers: int, tls: ssl.SSLContext | None = None) -> None:
        self.messages: queue.Queue[Message] = queue.Queue()
        self._answers = [*answers]
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.take(self.path, {**self.headers}, body)
                self.send_response(receiver._answers.pop(0) if receiver._answers else 204)
                self.send_header("Location", receiver.url + "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the signature of http.server
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        given = {name.lower(): value for name, value in headers.items()}
        signed = f"{given['webhook-id']}.{given['webhook-timestamp']}.".encode() + body
        mac = base64.b64encode(hmac.digest(b"k" * 32, signed, "sha256")).decode()
        assert hmac.compare_digest(given["webhook-signature"], f"v1,{mac}")
        assert abs(int(given["webhook-timestamp"]) - time.time()) < PATIENCE
        assert given["content-type"] == "application/json"
        self.messages.put(Message(given["webhook-id"], json.loads(body), path, given["host"]))

    async def next(self) -> Message:
        return await asyncio.to_thread(self.messages.get, timeout=PATIENCE)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdp.service.approvals.webhooks._FIRST_PAUSE", 0.001)
    monkeypatch.setattr("pdp.service.approvals.webhooks._LONGEST_PAUSE", 0.01)


def webhook(url: str, **changes: Any) -> dict[str, Any]:
    return {"url": url, "secret": SECRET, "private": True, **changes}


def messages_of(served: ServedApp) -> list[dict[str, Any]]:
    """Return the messages that the receiver should get for the events of the audit stream, in order."""
    rows = served.service.tenants["default"].stream.lines(-1, 100, approvals_only=True)
    return [
        {
            "type": row.type,
            "approval_id": row.approval_id,
            "url": f"{served.service.settings.url}/console/approvals/{row.approval_id}",
            "seq": row.seq,
            "time": json.loads(row.line)["time"],
        }
        for row in rows
    ]


@pytest.mark.parametrize("database", DATABASES)
async def test_only_one_of_two_services_sends_each_webhook_event(database: str, tmp_path: Path) -> None:
    url = empty_database(database, tmp_path)
    with Receiver() as receiver:
        tenants = {"default": tenant_on(url, webhooks=[webhook(receiver.url + "/hook")])}
        async with service(tmp_path, url=url, tenants=tenants) as second:
            async with service(tmp_path, url=url, tenants=tenants) as first:
                await until_held(first)
                approval = await opened(first)
                approver = second.client(["approve"], APPROVER)
                await approver.post(f"/v1/approvals/{approval.id}/grant")
                await approver.post(f"/v1/approvals/{approval.id}/deny")
                sent = [await receiver.next() for _ in range(3)]
            # Only one service is still running. It must send the next messages, even if the other service sent the
            # earlier messages.
            other = await opened(second, purpose="another")
            sent.append(await receiver.next())
            expected = messages_of(second)
        assert [message.body for message in sent] == expected
        assert [message.id for message in sent] == [f"default-{body['seq']}" for body in expected]
        assert {(message.path, message.host) for message in sent} == {("/hook", f"127.0.0.1:{receiver.port}")}
        assert [body["type"] for body in expected] == [
            "approval.opened", "approval.granted", "approval.denied", "approval.opened",
        ]  # fmt: skip
        assert expected[-1]["approval_id"] == other.id
        assert receiver.messages.empty()


async def until_held(served: ServedApp) -> None:
    """Wait until a service has taken over the webhook, because no messages are sent about events before that."""
    database = served.service.tenants["default"].stores.webhooks._database

    def rows() -> int:
        with database.read() as connection:
            return int(connection.exec_driver_sql("SELECT count(*) FROM pdp_webhooks").scalar_one())

    assert await asyncio.to_thread(until, rows)


async def test_failed_webhook_delivery_is_repeated_and_follows_no_redirects(tmp_path: Path) -> None:
    with Receiver(500, 302, 307, 410) as receiver:
        tenants = {"default": tenant_on(url := empty_database("sqlite", tmp_path), webhooks=[webhook(receiver.url)])}
        async with service(tmp_path, url=url, tenants=tenants) as served:
            await until_held(served)
            await opened(served)
            sent = [await receiver.next() for _ in range(5)]
        assert {(message.id, message.path) for message in sent} == {(sent[0].id, "/")}


async def test_undeliverable_webhook_event_is_logged_and_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Receiver(*[503] * 10) as receiver:
        tenants = {"default": tenant_on(url := empty_database("sqlite", tmp_path), webhooks=[webhook(receiver.url)])}
        async with service(tmp_path, url=url, tenants=tenants) as served:
            await until_held(served)
            first, second = await opened(served), await opened(served, purpose="another")
            sent = [await receiver.next() for _ in range(11)]
        assert [message.body["approval_id"] for message in sent] == [first.id] * 10 + [second.id]
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert (
        record.getMessage() == f"event {sent[0].body['seq']} was not delivered to 127.0.0.1: the receiver answered 503"
    )
    assert SECRET not in caplog.text


@pytest.mark.parametrize(("name", "delivered"), [("inbox.example", True), ("other.example", False)])
async def test_webhook_host_is_resolved_once_and_its_certificate_is_verified(
    name: str, delivered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    resolved: list[str] = []
    resolve = socket.getaddrinfo

    def resolving(host: Any, *arguments: Any, **options: Any) -> Any:
        if host == "inbox.example":
            resolved.append(host)
            host = "127.0.0.1" if len(resolved) % 2 else "192.0.2.1"
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolving)
    monkeypatch.setattr("pdp.service.approvals.webhooks._ATTEMPTS", 1)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate(tmp_path, name)[0]))
    with Receiver(tls=tls_of(tmp_path)) as receiver:
        hook = webhook(f"https://inbox.example:{receiver.port}/")
        tenants = {"default": tenant_on(url := empty_database("sqlite", tmp_path), webhooks=[hook])}
        async with service(tmp_path, url=url, tenants=tenants) as served:
            await until_held(served)
            await opened(served)
            if delivered:
                assert (await receiver.next()).host == f"inbox.example:{receiver.port}"
            else:
                assert await asyncio.to_thread(until, lambda: "was not delivered to inbox.example" in caplog.text)
        assert resolved == ["inbox.example"]
        assert receiver.messages.empty()


def tls_of(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


@pytest.mark.parametrize(
    ("address", "public", "private"),
    [
        ("93.184.216.34", True, True),
        ("[2606:2800:220:1:248:1893:25c8:1946]", True, True),
        ("127.0.0.1", False, True),
        ("127.1", False, True),
        ("10.0.0.1", False, True),
        ("172.31.255.255", False, True),
        ("192.168.1.1", False, True),
        ("[::1]", False, True),
        ("[fd12:3456::1]", False, True),
        ("169.254.169.254", False, False),
        ("[fe80::1]", False, False),
        ("0.0.0.0", False, False),  # noqa: S104 - only an address to check
        ("[::]", False, False),
        ("100.64.0.1", False, False),
        ("192.0.2.1", False, False),
        ("198.18.0.1", False, False),
        ("224.0.0.1", False, False),
        ("239.255.255.250", False, False),
        ("240.0.0.1", False, False),
        ("255.255.255.255", False, False),
        ("[ff02::1]", False, False),
        ("[::ffff:127.0.0.1]", False, False),
        ("[::ffff:8.8.8.8]", False, False),
        ("[64:ff9b::a9fe:a9fe]", False, False),
        ("[2002:7f00:1::]", False, False),
        ("[2001:0:7f00:1::]", False, False),
        ("[2001:db8::1]", False, False),
    ],
)
async def test_webhook_messages_are_sent_only_to_allowed_addresses(address: str, public: bool, private: bool) -> None:
    url = httpx.URL(f"https://{address}/")
    for allowed, with_private in ((public, False), (private, True)):
        if allowed:
            assert len(await checked_addresses(url, private=with_private)) == 1
        else:
            with pytest.raises(WebhookError, match="which is not allowed"):
                await checked_addresses(url, private=with_private)


async def test_webhook_host_with_one_forbidden_address_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(*_: Any, **__: Any) -> Any:
        return [(socket.AF_INET, 1, 6, "", ("93.184.216.34", 443)), (socket.AF_INET, 1, 6, "", ("10.0.0.1", 443))]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    with pytest.raises(WebhookError, match=r"inbox.example has the address 10\.0\.0\.1, which is not allowed"):
        await checked_addresses(httpx.URL("https://inbox.example"), private=False)
    assert await checked_addresses(httpx.URL("https://inbox.example"), private=True) == ["93.184.216.34", "10.0.0.1"]


@pytest.mark.parametrize(
    "changes",
    [
        {"url": "http://example.com/"},
        {"url": "http://127.0.0.1/", "private": False},
        {"url": "http://localhost.example.com/"},
        {"url": "http://127.0.0.1@example.com/"},
        {"url": "https://user:secret@example.com/"},
        {"url": "https:///path"},
        {"url": "https://example .com/"},
        {"url": "https://example.com:port/"},
        {"url": "ftp://example.com/"},
        {"secret": "short"},
        {"secret": "whsec_" + base64.b64encode(b"k" * 23).decode()},
        {"secret": "whsec_%%%"},
        {"events": []},
    ],
)
def test_invalid_webhook_settings_are_rejected(changes: dict[str, Any]) -> None:
    WebhookSettings.model_validate(webhook("https://example.com/"))
    with pytest.raises(ValidationError):
        WebhookSettings.model_validate({**webhook("https://example.com/"), **changes})


@pytest.mark.parametrize("database", DATABASES)
def test_only_one_process_sends_a_webhook_until_the_lease_of_that_process_expires(
    database: str, tmp_path: Path
) -> None:
    with Database.open(empty_database(database, tmp_path), upgrade=True) as opened_database:
        webhooks = SqlWebhooks(opened_database)
        assert webhooks.hold("a", 0, 160.5, 100, 7) == 7
        assert webhooks.hold("a", 0, 170, 110, 9) is None
        assert webhooks.hold("b", 0, 170, 110, 9) == 9
        assert webhooks.hold("a", 160.5, 180.25, 120, 0) == 7
        assert not webhooks.advance("a", 160.5, 8)
        assert webhooks.advance("a", 180.25, 8)
        assert webhooks.hold("a", 0, 240, 180.25, 0) == 8
        assert webhooks.hold("a", 180.25, 250, 190, 0) is None
