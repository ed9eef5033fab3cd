"""A second bundle that decides alongside and is never enforced, so that a release is watched on live traffic.

    stable = WatchingEngine("https://bundles.example", BundleTrust(keys), channel="stable")
    canary = WatchingEngine("https://bundles.example", BundleTrust(keys), channel="canary")
    engine = ShadowEngine(stable, canary)

`engine.counts()` then says where the two differ, and the logger `pdp.engine.shadow` has a line for each difference.
"""

from __future__ import annotations

import asyncio
import hmac
import inspect
import os
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Final

from pdp.engine.protocol import DECISION, PLAN, Engine
from pdp.engine.seconds import check_clock, check_seconds
from pdp.engine.shadow.queue import ShadowQueue
from pdp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdp.decision import Decision
    from pdp.engine.shadow.difference import Difference
    from pdp.engine.shadow.record import ShadowCounts
    from pdp.request import Request

WAITING: Final = 1000
"""Default number of decisions that wait for the shadow at most."""

CLOSING: Final = 5.0
"""Default time to wait at the end for the shadow, in seconds."""

_MOST_WAITING: Final = 100_000
_LONGEST: Final = 3600.0
_KEY_BYTES: Final = 32
_BATCH: Final = 16


class ShadowEngine(Engine):
    """Decides by `engine` alone, and lets `shadow` decide the same afterwards. Safe for threads, tasks and forks.

    What `engine` answers or raises is handed on as it is. The shadow is asked in a thread of its own, from a queue
    that never makes anybody wait: what it cannot take is dropped and counted. So a shadow that is slow, fails, never
    answers or was closed changes no decision; it takes at most one evaluation more of the machine's time for each.

    Requests that are refused before any engine is asked, and `findings`, are not shadowed.

    Args:
        engine: whose answers hold.
        shadow: who decides alongside: any other engine. Both are closed with this one.
        on_difference: told each difference, in the shadow's thread. What it raises is logged by its type.
        input_digest: names a request, given as canonical bytes, in a difference: `audit.digest` gives the keyed
            digest of an audit stream. Without it, HMAC-SHA-256 with a key that nobody has and that ends with the
            process, since a plain digest of a small request could be guessed.
        waiting: how many decisions wait for the shadow at most (and 32 MiB).
        closing: seconds that `close` waits for what still waits, and once more for the shadow's own closing.
        clock: seconds that never go back, for tests.

    Raises:
        UsageError: an argument that cannot be used, or the same engine on both sides.
    """

    def __init__(
        self,
        engine: Engine,
        shadow: Engine,
        *,
        on_difference: Callable[[Difference], object] | None = None,
        input_digest: Callable[[bytes], str] | None = None,
        waiting: int = WAITING,
        closing: float = CLOSING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, side in (("engine", engine), ("shadow", shadow)):
            if not isinstance(side, Engine):
                raise UsageError(f"{name}: {type(side).__name__} is not an engine", hint="give two opened engines")
        if engine is shadow:
            raise UsageError("shadow: it is the engine itself", hint="open a second one with the other bundle")
        for name, function in (("on_difference", on_difference), ("input_digest", input_digest)):
            if function is not None and (not callable(function) or inspect.iscoroutinefunction(function)):
                raise UsageError(f"{name}: {function!r:.80} is no plain function", hint="it takes one argument")
        if type(waiting) is not int or not 1 <= waiting <= _MOST_WAITING:
            raise UsageError(f"waiting: {waiting!r:.40} is out of range", hint=f"1 to {_MOST_WAITING}")
        check_seconds("closing", closing, most=_LONGEST, zero=True)
        check_clock(clock)
        self.name = engine.name
        self.engine: Final = engine
        self.shadow: Final = shadow
        self._closing = closing
        self._queue = ShadowQueue(
            shadow,
            size=waiting,
            input_digest=input_digest or partial(_keyed_digest, os.urandom(_KEY_BYTES)),
            on_difference=on_difference,
            clock=clock,
        )
        # The thread knows the queue alone, so that an engine that nobody has any longer ends it, closed or not.
        weakref.finalize(self, self._queue.end).atexit = False

    def evaluate(self, body: bytes) -> bytes:
        """Evaluate `authz/decision` on the engine; errors as there."""
        return self._shadowed(DECISION, self.engine.evaluate, body)

    def evaluate_plan(self, body: bytes) -> bytes:
        """Evaluate `authz/plan` on the engine; errors as there."""
        return self._shadowed(PLAN, self.engine.evaluate_plan, body)

    def evaluate_findings(self, body: bytes) -> bytes:
        """Evaluate `authz/findings` on the engine, which decides nothing and is not shadowed; errors as there."""
        return self.engine.evaluate_findings(body)

    async def aevaluate(self, body: bytes) -> bytes:
        """Do as `evaluate`, as asynchronously as the engine does."""
        try:
            answer = await self.engine.aevaluate(body)
        except BaseException as error:
            self._queue.failed(error)
            raise
        self._queue.offer(DECISION, body, answer)
        return answer

    async def aevaluate_plan(self, body: bytes) -> bytes:
        """Do as `evaluate_plan`, as asynchronously as the engine does."""
        try:
            answer = await self.engine.aevaluate_plan(body)
        except BaseException as error:
            self._queue.failed(error)
            raise
        self._queue.offer(PLAN, body, answer)
        return answer

    async def adecide_batch(self, requests: Sequence[Request]) -> list[Decision]:
        """Decide many requests, 16 at a time; the decisions stand in the requests' order."""
        decisions: dict[int, Decision] = {}
        left = iter(enumerate(requests))

        async def decide() -> None:
            for index, request in left:
                decisions[index] = await self.adecide(request)
                # An engine in the process never waits: let other tasks run in between.
                await asyncio.sleep(0)

        await asyncio.gather(*(decide() for _ in range(min(_BATCH, len(requests)))))
        return [decisions[index] for index in range(len(requests))]

    def counts(self) -> ShadowCounts:
        """Return what came of shadowing so far."""
        return self._queue.counts()

    def drain(self, seconds: float = CLOSING) -> bool:
        """Wait until the shadow was asked about everything that was decided; False when that takes longer."""
        return self._queue.drain(seconds)

    def close(self) -> None:
        """Close both engines; deciding afterwards is a DENY `engine.unavailable`, and `counts` stay.

        The shadow gets `closing` seconds for what still waits; the rest is dropped.
        """
        try:
            self.engine.close()
        finally:
            self._queue.close(self._closing)

    async def aclose(self) -> None:
        """Do as `close`, without blocking the event loop."""
        try:
            await self.engine.aclose()
        finally:
            await asyncio.to_thread(self._queue.close, self._closing)

    def _shadowed(self, document: str, evaluate: Callable[[bytes], bytes], body: bytes) -> bytes:
        try:
            answer = evaluate(body)
        except BaseException as error:
            self._queue.failed(error)
            raise
        self._queue.offer(document, body, answer)
        return answer


def _keyed_digest(key: bytes, body: bytes) -> str:
    return "hmac-sha256:" + hmac.digest(key, body, "sha256").hex()
