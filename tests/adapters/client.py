"""The base of the conformance clients of all adapters. The client of an adapter adds how its framework makes a call."""

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
    """A client of a framework with its own event loop. `turn` runs one turn of a model that makes one call."""

    def __init__(self, world: World, pep: Pep, portal: BlockingPortal) -> None:
        self.world, self.pep, self.portal = world, pep, portal

    @classmethod
    @contextmanager
    def opened(cls, world: World) -> Iterator[Self]:
        """Open a client in this process, with an enforcement point that uses the files of the world."""
        with opened_pep(world) as pep, start_blocking_portal() as portal:
            yield cls(world, pep, portal)

    @abstractmethod
    async def turn(self, tool: str, arguments: dict[str, Any], call_id: str) -> Observed:
        """Make the call, or resume the run that waits for this call. Return what the model sees."""

    @abstractmethod
    async def alisted(self) -> Sequence[str]:
        """Return the names of the tools that the framework shows to the model."""

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
        # The event loop handles the cancellation later. If the engine answered before that, the call would run.
        called.cancel()
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
    """A conformance target that opens clients of the class `kind`.

    The target's row in the table shows the versions of `packages`. `others` lists further cases that are impossible for
    this target.
    """

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
    """Return a function for the tool `open_shell`, which the manifest does not declare."""

    def open_shell(command: str) -> str:
        return run_body(world.record, "open_shell", {"command": command})

    return open_shell


def grant(pep: Pep, held: str | None) -> None:
    assert pep.approvals is not None
    pep.approvals.grant(held or "", World.approver)
