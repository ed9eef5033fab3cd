"""What is done by itself, again and again: approvals and calls whose time is over, webhooks."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from pdp.errors import StoreError
from pdp.service.approvals.feed import ApprovalFeed
from pdp.service.approvals.webhooks import WebhookSender

if TYPE_CHECKING:
    from pdp.service.state import Service
    from pdp.service.tenant import Tenant

_log = logging.getLogger("pdp.service")

_SWEEP_SECONDS: Final = 30.0
_AFTER_FAULT: Final = 5.0
_END_SECONDS: Final = 2.0  # for a message that is being sent when the service ends


@asynccontextmanager
async def background(service: Service) -> AsyncIterator[None]:
    """Do what a service does by itself, for all its tenants, until the context ends."""
    senders = [
        WebhookSender(webhook, tenant, service.feeds[tenant.name])
        for tenant in service.tenants.values()
        for webhook in tenant.settings.webhooks
    ]
    steps = [sender.step for sender in senders] + [_sweeping(tenant) for tenant in service.tenants.values()]
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
            with suppress(StoreError):  # then others wait until its time is over
                await asyncio.to_thread(sender.release)


def _sweeping(tenant: Tenant) -> Callable[[], Awaitable[float]]:
    async def swept() -> float:
        await asyncio.to_thread(tenant.approvals.sweep)
        await asyncio.to_thread(tenant.pep.sweep)
        # Of several processes, seldom two at once.
        return random.uniform(0.5, 1.5) * _SWEEP_SECONDS  # noqa: S311 - no secret

    return swept


async def _repeat(step: Callable[[], Awaitable[float]], ending: asyncio.Event) -> None:
    """Take a step again and again; what fails is logged, and tried again a while later."""
    while not ending.is_set():
        try:
            pause = await step()
        except Exception:  # noqa: BLE001 - the service stays up
            _log.exception("what a service does by itself failed")
            pause = _AFTER_FAULT
        with suppress(TimeoutError):
            await asyncio.wait_for(ending.wait(), pause)
