"""A second engine that decides alongside and is never enforced, so that a release is watched on live traffic.

    engine = ShadowEngine(stable, canary, on_difference=collect)

One thread asks the shadow, from a bounded queue. What it cannot take is dropped and counted.
"""

import asyncio
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from queue import SimpleQueue
from typing import Final

from pdp.decision import Decision
from pdp.engine.protocol import DECISION, FINDINGS, Engine, check_seconds, parse_answer
from pdp.errors import EngineError, PdpError, UsageError
from pdp.json import canonical

WAITING: Final = 1000  # default limit of the decisions that wait for the shadow
CLOSING: Final = 5.0  # default time to wait at the end for the shadow, in seconds

_log = logging.getLogger("pdp.engine.shadow")


@dataclass(frozen=True, slots=True)
class ShadowDifference:
    """One request that the shadow decides differently: in verdict, codes or obligations.

    Attributes:
        document: `authz/decision`, or `authz/plan` for a whole plan.
        decision: the engine's. This one holds.
        request: the canonical request, as a log for `pdp bundle diff --log` has it.
    """

    document: str
    decision: Decision
    shadow_decision: Decision
    request: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ShadowCounts:
    """What became of the decisions of the engine. Each of them counts once.

    Attributes:
        failed: the shadow gives no decision, or the engine's answer is none.
        dropped: it is not asked, because it is too slow or closed.
        waiting: it has yet to answer.
    """

    same: int = 0
    differing: int = 0
    failed: int = 0
    dropped: int = 0
    waiting: int = 0


class ShadowEngine(Engine):
    """Decides by `engine` alone, and lets `shadow` decide the same afterwards. Safe for threads and tasks.

    What `engine` answers or raises is handed on as it is; whatever the shadow does changes no decision. `findings` are
    not shadowed. Open it after a fork, as all engines, and close it: its thread ends then.

    Args:
        engine, shadow: any two engines; the answers of the first hold. Both are closed with this one.
        on_difference: called with each difference, in the shadow's thread. What it raises is logged by its type.
        waiting: limit of the decisions that wait for the shadow.
        closing: seconds that `close` gives the shadow for what still waits.

    Raises:
        UsageError: an argument that cannot be used.
        EngineError: the machine has no thread left.
    """

    def __init__(
        self,
        engine: Engine,
        shadow: Engine,
        *,
        on_difference: Callable[[ShadowDifference], object] | None = None,
        waiting: int = WAITING,
        closing: float = CLOSING,
    ) -> None:
        if type(waiting) is not int or waiting < 1:
            raise UsageError(f"waiting: {waiting!r:.40} is out of range", hint="at least 1")
        check_seconds("closing", closing)
        self.name = engine.name
        self.engine: Final = engine
        self.shadow: Final = shadow
        self._on_difference = on_difference
        self._limit = waiting
        self._closing = closing
        self._lock = threading.Lock()
        self._queue: SimpleQueue[tuple[str, bytes, bytes] | None] = SimpleQueue()
        self._tally: Counter[str] = Counter()
        self._process = os.getpid()
        self._closed_at: float | None = None
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="pdp-shadow", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise EngineError(f"no thread to ask the shadow: {error}") from error

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Evaluate a document on the engine; errors as there, and EngineError in a forked child."""
        self._check_process()
        return self._offered(document, body, self.engine.evaluate(body, document))

    async def aevaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Async variant of `evaluate`."""
        self._check_process()
        return self._offered(document, body, await self.engine.aevaluate(body, document))

    async def ahealthy(self) -> bool:
        """Return whether the deciding engine is healthy."""
        return await self.engine.ahealthy()

    def counts(self) -> ShadowCounts:
        """Return what was counted so far in the process that made the engine; EngineError in a forked child."""
        self._check_process()
        with self._lock:
            return ShadowCounts(**self._tally)

    def close(self) -> None:
        """Close both engines, the shadow after at most `closing` seconds in all; `counts` stay."""
        try:
            self.engine.close()
        finally:
            # A forked child has neither the thread nor, perhaps, anybody who lets the lock go.
            if os.getpid() == self._process:
                with self._lock:
                    if self._closed_at is None:
                        self._closed_at = time.monotonic()
                        self._queue.put(None)
                # An observer that closes the engine runs in the very thread that it would wait for.
                if self._thread is not threading.current_thread():
                    self._thread.join(max(0.0, self._closed_at + self._closing - time.monotonic()))

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise EngineError("the engine was opened before the process was forked", hint="open it after the fork")

    async def aclose(self) -> None:
        """Async variant of `close`."""
        try:
            await self.engine.aclose()
        finally:
            await asyncio.to_thread(self.close)

    def _offered(self, document: str, body: bytes, answer: bytes) -> bytes:
        if document != FINDINGS:
            with self._lock:
                if self._closed_at is not None or self._tally["waiting"] >= self._limit:
                    self._tally["dropped"] += 1
                else:
                    self._tally["waiting"] += 1
                    # Under the lock, so that nothing comes after what ends the thread.
                    self._queue.put((document, body, answer))
        return answer

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            result = self._compared(*item)
            with self._lock:
                self._tally[result] += 1
                self._tally["waiting"] -= 1
        try:
            self.shadow.close()
        except BaseException as error:  # noqa: BLE001 - nothing that a shadow does is a failure of the engine
            _log.warning("the shadow could not be closed: %s", type(error).__name__)

    def _compared(self, document: str, body: bytes, answer: bytes) -> str:
        """Ask the shadow, report a difference, and return what to count."""
        try:
            decision = parse_answer(answer, body, document)
            shadow_decision = parse_answer(self.shadow.evaluate(body, document), body, document)
            differs = _outcome(decision) != _outcome(shadow_decision)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it ends nothing here
            failure = error.code if isinstance(error, PdpError) else type(error).__name__
            if failure != self._failure:
                _log.warning("the shadow fails: %s", failure)
            self._failure = failure
            return "failed"
        self._failure = None
        if not differs:
            return "same"
        try:
            if self._on_difference is not None:
                self._on_difference(ShadowDifference(document, decision, shadow_decision, body))
        except BaseException as error:  # noqa: BLE001 - the application's, which may raise anything
            # Without its text and traceback, which could quote anything.
            _log.warning("on_difference failed: %s", type(error).__name__)
        return "differing"


def _outcome(decision: Decision) -> tuple[object, ...]:
    """What is compared: messages and details of reasons may be reworded."""
    obligations = frozenset(canonical(asdict(obligation)) for obligation in decision.obligations)
    return decision.verdict, decision.codes, obligations
