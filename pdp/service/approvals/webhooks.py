"""Signed messages to other systems: what happens to approvals, ids only, as Standard Webhooks does it.

Of all processes one sends, the events in their order, each at least once: `webhook-id` says which are the same. A name
is resolved once for each attempt, and the address that was checked is the one that is connected to.
"""

from __future__ import annotations

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
from typing import TYPE_CHECKING, Final

import httpx
import orjson
import tenacity

from pdp.errors import PdpError
from pdp.json import canonical, digest

if TYPE_CHECKING:
    from pdp.service.approvals.feed import ApprovalFeed
    from pdp.service.settings import WebhookSettings
    from pdp.service.tenant import Tenant
    from pdp.stores.sql.audit import AuditRow

_log = logging.getLogger("pdp.service")

_ATTEMPTS: Final = 10
_ATTEMPT_SECONDS: Final = 10.0
_FIRST_PAUSE: Final = 1.0  # seconds between two attempts, at most; then twice as many each time, up to
_LONGEST_PAUSE: Final = 30.0
_LEASE: Final = 60.0  # seconds for which a process holds a webhook: longer than an attempt and a pause
_OTHERS: Final = 5.0  # seconds between two looks whether the process that holds it is still there
_QUIET: Final = 20.0
_UNICAST: Final = ip_network("2000::/3")
_PRIVATE: Final = tuple(
    map(ip_network, ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7"))
)


class WebhookError(PdpError):
    """A message that could not be delivered at one attempt, or an address that none is sent to."""


class WebhookSender:
    """Sends a tenant's events to one webhook, while this process holds it."""

    def __init__(self, settings: WebhookSettings, tenant: Tenant, feed: ApprovalFeed) -> None:
        self._settings = settings
        self._tenant = tenant
        self._feed = feed
        self._url = httpx.URL(settings.url)
        self._host = self._url.raw_host.decode("ascii")
        self._id = digest(canonical(settings.url))
        secret = settings.secret.get_secret_value()
        is_encoded = secret.startswith("whsec_")
        self._secret = base64.b64decode(secret.removeprefix("whsec_")) if is_encoded else secret.encode()
        self._tls = ssl.create_default_context()
        self._held = 0.0

    async def step(self) -> float:
        """Send what there is to send, or wait for it; return the seconds until the next step.

        StoreError: the store cannot be used.
        """
        seq = await self._hold()
        if seq is None:
            return random.uniform(_OTHERS / 2, _OTHERS)  # noqa: S311 - no secret
        for event in await self._feed.after(seq, _QUIET):
            await self._deliver(event)
            done = await asyncio.to_thread(self._tenant.stores.webhooks.advance, self._id, self._held, event.seq)
            if not done or self._feed.ending.is_set():
                break
        return 0

    def release(self) -> None:
        """Let another process send at once."""
        if self._held:
            self._tenant.stores.webhooks.hold(self._id, self._held, time.time(), time.time(), 0)

    async def _hold(self) -> int | None:
        now, first = time.time(), 0 if self._held else await self._feed.end()
        stored = self._tenant.stores.webhooks
        seq = await asyncio.to_thread(stored.hold, self._id, self._held, now + _LEASE, now, first)
        self._held = 0.0 if seq is None else now + _LEASE
        return seq

    async def _deliver(self, event: AuditRow) -> None:
        """Send one event, with attempts ever further apart; that it is given up is logged."""
        attempts = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(_ATTEMPTS),
            wait=tenacity.wait_random_exponential(_FIRST_PAUSE, _LONGEST_PAUSE),
            retry=tenacity.retry_if_exception_type(WebhookError),
            reraise=True,
        )
        try:
            async for attempt in attempts:
                with attempt:
                    if await self._hold() is None:
                        return
                    await self._send(event, attempt.retry_state.attempt_number)
        except WebhookError as error:
            _log.warning("event %s is not delivered to %s: %s", event.seq, self._host, error.message)

    async def _send(self, event: AuditRow, attempt: int) -> None:
        body = orjson.dumps(
            {"type": event.type, "approval_id": event.approval_id, "seq": event.seq, "time": _time_of(event)}
        )
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
                        # The certificate has to be that of the name, and not of the address.
                        extensions={"sni_hostname": self._host},
                    ) as response,
                ):
                    if not response.is_success:
                        raise WebhookError(f"the answer is {response.status_code}")
        except (httpx.HTTPError, OSError, UnicodeError) as error:
            raise WebhookError(f"{type(error).__name__}: {error}") from error


async def checked_addresses(url: httpx.URL, *, private: bool) -> Sequence[str]:
    """Return the addresses of a URL's host. WebhookError: it has one that no message is sent to.

    Public ones will do; with `private` also those of this machine and of private networks, and no others.
    """
    port = url.port or (443 if url.scheme == "https" else 80)
    host = url.raw_host.decode("ascii")
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [ip_address(address[0]) for *_, address in found]
    for address in addresses:
        if not (_is_public(address) or (private and any(address in network for network in _PRIVATE))):
            raise WebhookError(f"{host} is {address}, to which nothing is sent")
    return [str(address) for address in addresses]


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast
    # No address that has an IPv4 address in it: that one would have to be checked as well.
    return address in _UNICAST and address.is_global and address.sixtofour is None and address.teredo is None


def _time_of(event: AuditRow) -> str:
    time_of: str = orjson.loads(event.line)["time"]
    return time_of
