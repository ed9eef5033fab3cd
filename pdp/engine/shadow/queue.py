"""The shadow's half of shadowing: a bounded queue of what was decided, and one thread that asks the shadow the same.

Whoever decides puts the request and the answer into the queue and goes on; when there is no room, it is dropped and
counted. So the shadow can be as slow, broken or blocked as it likes.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import queue
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from pdp.engine.protocol import PLAN
from pdp.engine.shadow.difference import Answer, bounded_text, difference_of, kind_of, read_answer
from pdp.engine.shadow.record import ShadowRecord
from pdp.errors import EngineError, PdpError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdp.engine.protocol import Engine
    from pdp.engine.shadow.difference import Difference
    from pdp.engine.shadow.record import ShadowCounts

MOST_BYTES: Final = 32 * 1024 * 1024
"""How many bytes of requests and answers wait for the shadow at most."""

CANCELLED: Final = "cancelled"
"""What is counted for a decision that nobody waited for any longer. Of counts alone: it is no reason code."""

_AT_EXIT: Final = 1.0

_log = logging.getLogger("pdp.engine.shadow")

_Item = tuple[str, bytes, bytes]


class ShadowQueue:
    """Asks `shadow` what was decided already, in a thread of its own, and counts what comes of it. Safe for threads.

    A forked child begins anew: an empty queue, counts of zero, a thread of its own when there is something to ask.

    Args:
        shadow: who is asked.
        size: how many decisions wait at most.
        input_digest: names a request in a difference.
        on_difference: told each difference, or None.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        shadow: Engine,
        *,
        size: int,
        input_digest: Callable[[bytes], str],
        on_difference: Callable[[Difference], object] | None,
        clock: Callable[[], float],
    ) -> None:
        self._shadow = shadow
        self._size = size
        self._input_digest = input_digest
        self._on_difference = on_difference
        self._clock = clock
        self._closed = False
        self._begin()
        _queues.add(self)

    def offer(self, document: str, body: bytes, answer: bytes) -> None:
        """Let the shadow decide `body` as well, some time later; or drop it. Takes no time and raises nothing."""
        size = _size(body, answer)
        with self._lock:
            full = self._waiting >= self._size or self._bytes + size > MOST_BYTES
            if full or self._closed or not self._started():
                self._record.dropped += 1
                return
            self._waiting += 1
            self._untold += 1
            self._bytes += size
            # Under the lock, so that nothing comes after what ends the thread.
            self._items.put((document, body, answer))

    def failed(self, error: BaseException) -> None:
        """Count that the engine itself gave no decision: it failed, or whoever asked was cancelled or interrupted."""
        with self._lock:
            self._record.failed(_code(error) if isinstance(error, Exception) else CANCELLED)

    def counts(self) -> ShadowCounts:
        """Return what came of it so far."""
        with self._lock:
            return self._record.counts(self._waiting)

    def drain(self, seconds: float) -> bool:
        """Wait until the shadow was asked about everything, and all of it was told; False when that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self._untold == 0, seconds)

    def close(self, seconds: float) -> None:
        """Take nothing more, wait so long for what is there, drop the rest, and close the shadow.

        A shadow that does not come to an end is left to a thread that nobody waits for longer than `seconds`.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
        # Not when an observer closes the engine, which runs in the very thread that it would wait for.
        if thread is not threading.current_thread():
            self.drain(seconds)
        self.end()
        closing = threading.Thread(target=self._close_shadow, name="pdp-shadow-closing", daemon=True)
        try:
            closing.start()
        except RuntimeError:
            self._close_shadow()
        else:
            closing.join(seconds)

    def end(self) -> None:
        """Drop what waits, and let the thread end; without waiting for either, as it stands in nobody's way."""
        self._dropping = True
        self._closed = True
        self._items.put(None)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._items: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._record = ShadowRecord(self._clock)
        self._thread: threading.Thread | None = None
        self._waiting = 0
        self._untold = 0
        self._bytes = 0
        self._dropping = False
        self._observer_fails = False

    def _started(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._run, args=(self._items,), name="pdp-shadow", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        return True

    def _run(self, items: queue.SimpleQueue[_Item | None]) -> None:
        while (item := items.get()) is not None:
            self._settle(item)

    def _settle(self, item: _Item) -> None:
        document, body, answered = item
        answer: Answer | None = None
        shadow: Answer | None = None
        difference: Difference | None = None
        code = None
        if not self._dropping:
            try:
                answer = read_answer(answered)
                shadow = self._asked(document, body)
                difference = self._difference(document, body, answer, shadow)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is the shadow's, and ends nothing here
                code = _code(error)
        with self._lock:
            record = self._record
            line = None
            if code is not None and answer is None:
                record.failed(code)
            elif code is not None:
                line = record.shadow_failed(code)
            elif answer is None or shadow is None:
                record.dropped += 1
            else:
                line = record.compared(answer.decision, shadow.decision, difference)
            self._waiting -= 1
            self._bytes -= _size(body, answered)
        with suppress(Exception):
            self._tell(difference, code, line)
        # Only now, so that whoever drains the queue has been told everything.
        with self._lock:
            self._untold -= 1
            if not self._untold:
                self._changed.notify_all()

    def _asked(self, document: str, body: bytes) -> Answer:
        evaluate = self._shadow.evaluate_plan if document == PLAN else self._shadow.evaluate
        return read_answer(evaluate(body))

    def _difference(self, document: str, body: bytes, answer: Answer, shadow: Answer) -> Difference | None:
        kind = kind_of(answer, shadow)
        if kind is None:
            return None
        input_digest = None
        # The application's own: the difference counts and is told whatever becomes of its name.
        with suppress(Exception):
            input_digest = bounded_text(self._input_digest(body))
        return difference_of(kind, answer, shadow, document=document, body=body, input_digest=input_digest)

    def _tell(self, difference: Difference | None, code: str | None, left_out: int | None) -> None:
        if left_out is not None:
            said: dict[str, Any] = {"event": "shadow.failed", "code": code}
            if difference is not None:
                said = {"event": "shadow.differs", **difference.as_json()}
            # ASCII, so that no text of a request or an answer can begin a line of its own.
            _log.warning("%s", json.dumps({**said, "left_out": left_out}))
        if difference is None or self._on_difference is None:
            return
        try:
            self._on_difference(difference)
        except BaseException as error:  # noqa: BLE001 - the application's, which may raise anything
            if not self._observer_fails:
                # Without its text and traceback, which could quote anything; once, until it works again.
                _log.error("on_difference failed: %s", type(error).__name__)
            self._observer_fails = True
        else:
            self._observer_fails = False

    def _close_shadow(self) -> None:
        try:
            self._shadow.close()
        except BaseException as error:  # noqa: BLE001 - nothing that a shadow does is a failure of the engine
            _log.warning("the shadow could not be closed: %s", type(error).__name__)

    def _at_exit(self) -> None:
        """Let an evaluation that is under way end before the interpreter does."""
        self.end()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_AT_EXIT)


def _size(body: bytes, answer: bytes) -> int:
    # An engine of the application's may answer anything, which fails where it is parsed and not here.
    return len(body) + (len(answer) if isinstance(answer, bytes) else 0)


# What no engine says itself is of the engine as well, as with `WatchingEngine`.
def _code(error: BaseException) -> str:
    return error.code if isinstance(error, PdpError) else EngineError.code


_queues: Final[WeakSet[ShadowQueue]] = WeakSet()


def _begin_in_child() -> None:
    for each in list(_queues):
        each._begin()  # noqa: SLF001 - the queue's own second half


def _at_exit() -> None:
    for each in list(_queues):
        each._at_exit()  # noqa: SLF001 - likewise


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
atexit.register(_at_exit)
