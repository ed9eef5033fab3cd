"""What the clients of all adapters do alike in the conformance suite; each adds how its framework makes a call."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Any, Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from pdp import Pep
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World, run_body
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


class AdapterTarget:
    """A target whose client is of `kind`. `packages`: whose versions its row names; `others`: also impossible."""

    spelling = "{}"

    def __init__(
        self,
        name: str,
        kind: type[AdapterClient],
        *packages: str,
        why: str = "A model's calls name their arguments.",
        others: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.kind = name, kind
        self.impossible: Mapping[str, str] = {"positional arguments": why, **(others or {})}
        self.versions: Mapping[str, str] = {package: version(package) for package in packages}

    @contextmanager
    def open(self, world: World) -> Iterator[AdapterClient]:
        with self.kind.opened(world) as client:
            yield client


def shell(world: World) -> Callable[..., str]:
    """The body of `open_shell`, a tool that the manifest lacks."""

    def open_shell(command: str) -> str:
        return run_body(world.record, "open_shell", {"command": command})

    return open_shell


def grant(pep: Pep, held: str | None) -> None:
    assert pep.approvals is not None
    pep.approvals.grant(held or "", World.approver)
