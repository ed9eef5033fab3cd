"""Background tasks of the service: they expire approvals, calls and recorded requests, and send webhooks."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

from pdp.clock import to_milliseconds
from pdp.errors import StoreError
from pdp.service.approvals.feed import ApprovalFeed
from pdp.service.approvals.webhooks import WebhookSender
from pdp.service.state import Service, Tenant
from pdp.service.telemetry import sweep_failures, swept

_log = logging.getLogger("pdp.service")

_SWEEP_SECONDS: Final = 30.0
_HOUR: Final = 3600.0
_SWEPT: Final = "audit.sweep"  # The row of the table of webhooks that is the lease of the hour's rotation.
_WATCH_SECONDS: Final = 5.0  # Engines and stores are checked this often, also if nobody asks for the readiness.
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

    async def watch() -> float:
        await service.readiness.answer()
        return _WATCH_SECONDS

    steps = [watch, *(sender.step for sender in senders), *map(_sweep_step, service.tenants.values())]
    steps += [partial(_rotate, tenant, service.ending) for tenant in service.tenants.values()]
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
    failures, ended = sweep_failures.labels(tenant.name), swept.labels(tenant.name)

    async def sweep_tenant() -> float:
        with failures.count_exceptions():
            await asyncio.to_thread(tenant.approvals.sweep)
            await asyncio.to_thread(tenant.pep.sweep)
            await asyncio.to_thread(tenant.stores.requests.prune, time.time())
        ended.set_to_current_time()
        # The pause is random, so that several processes do not sweep at the same time.
        return random.uniform(0.5, 1.5) * _SWEEP_SECONDS  # noqa: S311 - not a secret

    return sweep_tenant


async def _rotate(tenant: Tenant, ending: asyncio.Event) -> float:
    await asyncio.to_thread(_move_old_events, tenant, ending)
    return random.uniform(0.5, 1.5) * _SWEEP_SECONDS  # noqa: S311 - not a secret


def _move_old_events(tenant: Tenant, ending: asyncio.Event) -> None:
    folder, days, now = tenant.settings.audit_archive, tenant.settings.audit_days, time.time()
    # The lease is not released, so that one process of all rotates, and once an hour.
    if folder and days and tenant.stores.webhooks.hold(_SWEPT, 0, now + _HOUR, now, 0) is not None:
        for part in tenant.stream.rotate(folder, to_milliseconds(now - days * 86_400)):
            _log.info("tenant %s: events %d to %d moved to %s", tenant.name, part.first, part.last, part.file)
            if ending.is_set():
                return


async def _repeat(step: Callable[[], Awaitable[float]], ending: asyncio.Event) -> None:
    while not ending.is_set():
        try:
            pause = await step()
        except Exception:  # noqa: BLE001 - the service keeps running
            _log.exception("a background task failed, retrying in %g s", _AFTER_FAULT)
            pause = _AFTER_FAULT
        with suppress(TimeoutError):
            await asyncio.wait_for(ending.wait(), pause)
