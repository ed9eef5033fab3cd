"""A second engine that decides the same requests, but is never enforced, to compare a new release on live traffic.

    engine = ShadowEngine(stable, canary, on_difference=collect)

One thread asks the second engine, from a bounded queue, so a slow second engine delays no decision. Decisions that do
not fit into the queue are only counted.
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

WAITING: Final = 1000  # The default maximum number of decisions that wait for the shadow engine.
CLOSING: Final = 5.0  # The default number of seconds that `close` waits for the shadow engine.

_log = logging.getLogger("pdp.engine.shadow")


@dataclass(frozen=True, slots=True)
class ShadowDifference:
    """A request that both engines decide differently: the verdict, the codes or the obligations differ.

    Only `decision` is enforced. `request` is canonical JSON. A log for `pdp bundle diff --log` has it as `{"input":
    REQUEST}`.
    """

    document: str
    decision: Decision
    shadow_decision: Decision
    request: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ShadowCounts:
    """The numbers of decisions, by the result of the comparison. Each decision is counted once.

    `failed`: one of the two engines gave no valid decision. `dropped`: the shadow was not asked, because the queue was
    full or the engine closed. `waiting`: the shadow has not answered yet.
    """

    same: int = 0
    differing: int = 0
    failed: int = 0
    dropped: int = 0
    waiting: int = 0


class ShadowEngine(Engine):
    """An engine that decides with `engine`, and compares the decisions with the decisions of `shadow`.

    Safe for threads and tasks. The shadow decides later, in a separate thread, so it cannot change a decision. Results
    for the document `FINDINGS` are not compared. Open the engine after a fork, and close it to end the thread.

    Args:
        engine: the engine that decides. It is closed with the shadow engine.
        shadow: the engine to compare with. It is closed with the shadow engine.
        on_difference: a function called with each difference, in the shadow's thread. The function's errors are logged.
        waiting: the maximum number of decisions that wait for the shadow.
        closing: seconds that `close` waits for the shadow.

    Raises:
        UsageError: an argument is invalid.
        EngineError: no thread can be started.

    Examples:
        >>> from pdp import EmbeddedEngine
        >>> with ShadowEngine(EmbeddedEngine.baseline(), EmbeddedEngine.baseline()) as engine:
        ...     decision = engine.decide_body(b"{}")
        >>> engine.counts().same, engine.counts().differing
        (1, 0)
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
            raise UsageError(f"waiting: {waiting!r:.40} is out of range", hint="give at least 1")
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
            raise EngineError(f"cannot start the thread of the shadow: {error}") from error

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Evaluate a document with `engine`, with the same errors. In a forked process, raise `EngineError`."""
        self._check_process()
        return self._enqueue(document, body, self.engine.evaluate(body, document))

    async def aevaluate(self, body: bytes, document: str = DECISION) -> bytes:
        """Async variant of `evaluate`."""
        self._check_process()
        return self._enqueue(document, body, await self.engine.aevaluate(body, document))

    async def ahealthy(self) -> bool:
        """Return whether the deciding `engine` is ready."""
        return await self.engine.ahealthy()

    def counts(self) -> ShadowCounts:
        """Return the comparison counts so far. Raise `EngineError` in a forked process."""
        self._check_process()
        with self._lock:
            return ShadowCounts(**self._tally)

    def close(self) -> None:
        """Close both engines, and wait at most `closing` seconds for the shadow. `counts` remains available."""
        try:
            self.engine.close()
        finally:
            # A forked child does not have the shadow's thread, and its copy of the lock may never be released.
            if os.getpid() == self._process:
                with self._lock:
                    if self._closed_at is None:
                        self._closed_at = time.monotonic()
                        self._queue.put(None)
                # If an observer closes the engine, `close` runs in this thread, which cannot join itself.
                if self._thread is not threading.current_thread():
                    self._thread.join(max(0.0, self._closed_at + self._closing - time.monotonic()))

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise EngineError(
                "the engine was opened before the process was forked", hint="open the engine after the fork"
            )

    async def aclose(self) -> None:
        """Async variant of `close`."""
        try:
            await self.engine.aclose()
        finally:
            await asyncio.to_thread(self.close)

    def _enqueue(self, document: str, body: bytes, answer: bytes) -> bytes:
        if document != FINDINGS:
            with self._lock:
                if self._closed_at is not None or self._tally["waiting"] >= self._limit:
                    self._tally["dropped"] += 1
                else:
                    self._tally["waiting"] += 1
                    # The last item is queued under the lock, so that nothing is queued after it.
                    self._queue.put((document, body, answer))
        return answer

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            result = self._compare(*item)
            with self._lock:
                self._tally[result] += 1
                self._tally["waiting"] -= 1
        try:
            self.shadow.close()
        except BaseException as error:  # noqa: BLE001 - a failure of the shadow must not fail the engine
            _log.warning("the shadow engine could not be closed: %s", type(error).__name__)

    def _compare(self, document: str, body: bytes, answer: bytes) -> str:
        try:
            decision = parse_answer(answer, body, document)
            shadow_decision = parse_answer(self.shadow.evaluate(body, document), body, document)
            differs = _outcome(decision) != _outcome(shadow_decision)
        except BaseException as error:  # noqa: BLE001 - a failure of the shadow must not end its thread
            failure = error.code if isinstance(error, PdpError) else type(error).__name__
            if failure != self._failure:
                _log.warning("the shadow engine failed: %s", failure)
            self._failure = failure
            return "failed"
        self._failure = None
        if not differs:
            return "same"
        try:
            if self._on_difference is not None:
                self._on_difference(ShadowDifference(document, decision, shadow_decision, body))
        except BaseException as error:  # noqa: BLE001 - the application's callback may raise anything
            # Only the type of the error is logged, because its text and traceback could quote arguments.
            _log.warning("on_difference raised %s", type(error).__name__)
        return "differing"


def _outcome(decision: Decision) -> tuple[object, ...]:
    """Return the parts of a decision to compare, without messages and details, because a release may reword both."""
    obligations = frozenset(canonical(asdict(obligation)) for obligation in decision.obligations)
    return decision.verdict, decision.codes, obligations
