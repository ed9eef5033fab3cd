"""What the clients of all adapters do alike in the conformance suite; each adds how its framework makes a call."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any, Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from pdp import Pep
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World
from tests.conformance.local import opened_pep
from tests.support import PATIENCE, until


class AdapterClient(ABC):
    """A client in an event loop of its own. `turn` is one turn of a model that proposes one call."""

    def __init__(self, world: World, pep: Pep, portal: BlockingPortal) -> None:
        self.world, self.pep, self.portal = world, pep, portal

    @classmethod
    @contextmanager
    def opened(cls, world: World) -> Iterator[Self]:
        """Open one on the world's files, with an enforcement point of this process."""
        with opened_pep(world) as pep, start_blocking_portal() as portal:
            yield cls(world, pep, portal)

    @abstractmethod
    async def turn(self, tool: str, arguments: dict[str, Any], call_id: str) -> Observed:
        """Make the call, or resume the run that waits with it, and return what the model sees."""

    @abstractmethod
    async def alisted(self) -> Sequence[str]:
        """Return the names of the tools that the model is told of."""

    def call(self, tool: str, arguments: Mapping[str, Any], *, call_id: str, by_position: bool = False) -> Observed:
        if by_position:
            raise NotImplementedError
        seen: Observed = self.portal.call(self.turn, tool, dict(arguments), call_id)
        return seen

    def cancel(self, tool: str, arguments: Mapping[str, Any], *, call_id: str) -> None:
        ended = threading.Event()

        async def turn() -> None:
            try:
                await self.turn(tool, dict(arguments), call_id)
            finally:
                ended.set()

        called = self.portal.start_task_soon(turn)
        assert until(lambda: self.world.engine.asked.is_set() or called.done())
        called.cancel()  # which the loop has still to hear of: until then, an answer of the engine would have it run
        assert ended.wait(PATIENCE)
        with suppress(CancelledError, asyncio.CancelledError):
            called.result()

    def approve(self, held: str) -> None:
        assert self.pep.approvals is not None
        self.pep.approvals.grant(held, self.world.approver)

    def listed(self) -> Sequence[str]:
        names: Sequence[str] = self.portal.call(self.alisted)
        return names
