"""Webhook messages about approvals, signed as in Standard Webhooks. A message contains no arguments or reasons.

One process at a time sends the events, in order. If an event is sent twice, both messages have the same `webhook-id`.
"""

import asyncio
import base64
import hmac
import logging
import random
import socket
import ssl
import time
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

import httpx
import orjson
import tenacity

from pdp.errors import PdpError
from pdp.service.approvals.feed import ApprovalFeed
from pdp.service.settings import WebhookSettings
from pdp.service.state import Tenant
from pdp.service.telemetry import webhook_failures
from pdp.stores.sql.events import AuditRow

_log = logging.getLogger("pdp.service")

_ATTEMPTS: Final = 10
_ATTEMPT_SECONDS: Final = 10.0
_FIRST_PAUSE: Final = 1.0  # The pause before the first retry is up to 1 s, and doubles with each further attempt.
_LONGEST_PAUSE: Final = 30.0
# A process holds a webhook's lease for 60 s, which is longer than an attempt and a pause together.
_LEASE: Final = 60.0
_OTHERS: Final = 5.0  # Other processes check once in this many seconds whether the lease is free.
_QUIET: Final = 20.0
_UNICAST: Final = ip_network("2000::/3")
_PRIVATE: Final = tuple(
    map(ip_network, ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7"))
)


class WebhookError(PdpError):
    """A webhook message could not be delivered, or the receiver's address is not allowed."""


class WebhookSender:
    """Sends a tenant's approval events to one webhook. Only one process at a time sends events to the webhook."""

    def __init__(self, settings: WebhookSettings, tenant: Tenant, feed: ApprovalFeed) -> None:
        self._settings = settings
        self._tenant = tenant
        self._feed = feed
        self._url = httpx.URL(settings.url)
        self._host = self._url.raw_host.decode("ascii")
        self._id = settings.id
        self._failures = webhook_failures.labels(tenant.name, settings.label)
        secret = settings.secret.get_secret_value()
        is_encoded = secret.startswith("whsec_")
        self._secret = base64.b64decode(secret.removeprefix("whsec_")) if is_encoded else secret.encode()
        self._tls = ssl.create_default_context()
        self._held_until = 0.0

    async def step(self) -> float:
        """Send the new events, if any. Return the seconds until the next call. Raise StoreError if the store fails."""
        seq = await self._hold()
        if seq is None:
            return random.uniform(_OTHERS / 2, _OTHERS)  # noqa: S311 - not a secret
        for event in await self._feed.after(seq, _QUIET):
            await self._deliver(event)
            done = await asyncio.to_thread(self._tenant.stores.webhooks.advance, self._id, self._held_until, event.seq)
            if not done or self._feed.ending.is_set():
                break
        return 0

    def release(self) -> None:
        """End this process's lease of the webhook, so that another process can send events to the webhook at once."""
        if self._held_until:
            self._tenant.stores.webhooks.hold(self._id, self._held_until, time.time(), time.time(), 0)

    async def _hold(self) -> int | None:
        now, first = time.time(), 0 if self._held_until else await self._feed.end()
        stored = self._tenant.stores.webhooks
        seq = await asyncio.to_thread(stored.hold, self._id, self._held_until, now + _LEASE, now, first)
        self._held_until = 0.0 if seq is None else now + _LEASE
        return seq

    async def _deliver(self, event: AuditRow) -> None:
        attempts = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(_ATTEMPTS),
            wait=tenacity.wait_random_exponential(_FIRST_PAUSE, _LONGEST_PAUSE),
            retry=tenacity.retry_if_exception_type(WebhookError),
            after=lambda _: self._failures.inc(),
            reraise=True,
        )
        try:
            async for attempt in attempts:
                with attempt:
                    if await self._hold() is None:
                        return
                    await self._send(event, attempt.retry_state.attempt_number)
        except WebhookError as error:
            _log.warning("event %s was not delivered to %s: %s", event.seq, self._host, error.message)

    async def _send(self, event: AuditRow, attempt: int) -> None:
        url = self._tenant.approvals.url(str(event.approval_id))
        content = {"type": event.type, "approval_id": event.approval_id, "url": url}
        body = orjson.dumps({**content, "seq": event.seq, "time": _time_of(event)})
        message_id, now = f"{self._tenant.name}-{event.seq}", str(int(time.time()))
        mac = hmac.digest(self._secret, f"{message_id}.{now}.".encode() + body, "sha256")
        headers = {
            "host": self._url.netloc.decode("ascii"),
            "content-type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": now,
            "webhook-signature": f"v1,{base64.b64encode(mac).decode()}",
        }
        try:
            async with asyncio.timeout(_ATTEMPT_SECONDS):
                addresses = await checked_addresses(self._url, private=self._settings.private)
                async with (
                    httpx.AsyncClient(verify=self._tls, trust_env=False, follow_redirects=False) as client,
                    client.stream(
                        "POST",
                        self._url.copy_with(host=addresses[(attempt - 1) % len(addresses)]),
                        content=body,
                        headers=headers,
                        # The connection goes to the checked address, but the certificate must be valid for the host's
                        # name.
                        extensions={"sni_hostname": self._host},
                    ) as response,
                ):
                    if not response.is_success:
                        raise WebhookError(f"the receiver answered {response.status_code}")
        except (httpx.HTTPError, OSError, UnicodeError) as error:
            raise WebhookError(f"{type(error).__name__}: {error}") from error


async def checked_addresses(url: httpx.URL, *, private: bool) -> Sequence[str]:
    """Return the IP addresses of a URL's host. Raise WebhookError if an address is not allowed.

    Public addresses are allowed. `private` also allows addresses of this machine and of private networks.
    """
    port = url.port or (443 if url.scheme == "https" else 80)
    host = url.raw_host.decode("ascii")
    resolved = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [ip_address(address[0]) for *_, address in resolved]
    for address in addresses:
        if not (_is_public(address) or (private and any(address in network for network in _PRIVATE))):
            raise WebhookError(f"{host} has the address {address}, which is not allowed")
    return [str(address) for address in addresses]


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast
    # IPv6 addresses that contain an IPv4 address are rejected, because the IPv4 address inside is not checked.
    return address in _UNICAST and address.is_global and address.sixtofour is None and address.teredo is None


def _time_of(event: AuditRow) -> str:
    time_of: str = orjson.loads(event.line)["time"]
    return time_of
