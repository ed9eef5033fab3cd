"""Background tasks of the service: they expire approvals, calls and recorded requests, and send webhooks."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from pdp.errors import StoreError
from pdp.service.approvals.feed import ApprovalFeed
from pdp.service.approvals.webhooks import WebhookSender
from pdp.service.state import Service, Tenant

_log = logging.getLogger("pdp.service")

_SWEEP_SECONDS: Final = 30.0
_AFTER_FAULT: Final = 5.0
_END_SECONDS: Final = 2.0  # At shutdown, a message that is being sent has this many seconds to finish.


@asynccontextmanager
async def background(service: Service) -> AsyncIterator[None]:
    """Run the background tasks of all tenants until the `with` block ends."""
    senders = [
        WebhookSender(webhook, tenant, service.feeds[tenant.name])
        for tenant in service.tenants.values()
        for webhook in tenant.settings.webhooks
    ]
    steps = [sender.step for sender in senders] + [_sweep_step(tenant) for tenant in service.tenants.values()]
    tasks = [asyncio.create_task(_repeat(step, service.ending)) for step in steps]
    try:
        yield
    finally:
        service.ending.set()
        _, late = await asyncio.wait(tasks, timeout=_END_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, *map(ApprovalFeed.close, service.feeds.values()), return_exceptions=True)
        for sender in senders:
            # If the webhook cannot be released, other processes wait until its lease expires.
            with suppress(StoreError):
                await asyncio.to_thread(sender.release)


def _sweep_step(tenant: Tenant) -> Callable[[], Awaitable[float]]:
    async def sweep_tenant() -> float:
        await asyncio.to_thread(tenant.approvals.sweep)
        await asyncio.to_thread(tenant.pep.sweep)
        await asyncio.to_thread(tenant.stores.requests.prune, time.time())
        # The pause is random, so that several processes do not sweep at the same time.
        return random.uniform(0.5, 1.5) * _SWEEP_SECONDS  # noqa: S311 - not a secret

    return sweep_tenant


async def _repeat(step: Callable[[], Awaitable[float]], ending: asyncio.Event) -> None:
    while not ending.is_set():
        try:
            pause = await step()
        except Exception:  # noqa: BLE001 - the service keeps running
            _log.exception("a background task failed, retrying in %g s", _AFTER_FAULT)
            pause = _AFTER_FAULT
        with suppress(TimeoutError):
            await asyncio.wait_for(ending.wait(), pause)
