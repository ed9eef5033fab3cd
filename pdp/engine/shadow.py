"""A second engine that decides alongside and is never enforced, so that a release is watched on live traffic.

    engine = ShadowEngine(stable, canary, on_difference=collect)

One thread asks the shadow, from a bounded queue. What it cannot take is dropped and counted.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import queue
import threading
import weakref
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.decision import parse_decision
from pdp.engine.protocol import DECISION, PLAN, Engine
from pdp.engine.seconds import check_seconds
from pdp.errors import AnswerInvalidError, EngineError, PdpError, UsageError
from pdp.json import canonical

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pdp.decision import Decision

WAITING: Final = 1000
"""Default limit of the decisions that wait for the shadow."""

CLOSING: Final = 5.0
"""Default time to wait at the end for the shadow, in seconds."""

LINES: Final = 60
"""How many lines are logged a minute."""

_MAX_WAITING: Final = 100_000
_MAX_BYTES: Final = 32 * 1024 * 1024
_TEXT: Final = 256
_LISTED: Final = 50

_log = logging.getLogger("pdp.engine.shadow")


@dataclass(frozen=True, slots=True)
class ShadowDifference:
    """One request that the shadow decides differently.

    Attributes:
        kind: `ALLOW -> DENY` and the like; with one verdict on both sides `other codes`, else `other obligations`.
        document: `authz/decision`, or `authz/plan` for a whole plan.
        decision: the engine's. This one holds.
        shadow_decision: the shadow's.
        request: the canonical request, as a log for `pdp bundle diff --log` has it.
    """

    kind: str
    document: str
    decision: Decision
    shadow_decision: Decision
    request: bytes = field(repr=False)

    def as_json(self) -> dict[str, Any]:
        """Return what may be logged: no arguments, and no message, detail or parameter, which may quote the request.

        Texts have at most 256 characters, lists at most 50 items.
        """
        result: dict[str, Any] = {"kind": self.kind, "document": self.document, **_names(self.request)}
        for prefix, decision in (("", self.decision), ("shadow_", self.shadow_decision)):
            result[f"{prefix}verdict"] = decision.verdict
            result[f"{prefix}codes"] = [code[:_TEXT] for code in decision.codes[:_LISTED]]
            obligations = sorted({each.id for each in decision.obligations})
            result[f"{prefix}obligations"] = [each[:_TEXT] for each in obligations[:_LISTED]]
            result[f"{prefix}revision"] = _bounded(decision.bundle_revision)
            result[f"{prefix}release"] = decision.release
        return result


@dataclass(frozen=True, slots=True)
class ShadowCounts:
    """What shadowing has counted in this process. `decided` is the sum of all the others.

    Attributes:
        decided: how often the engine was asked for a decision, on a request or a plan.
        same: how often both gave the same verdict, reason codes and obligations.
        differing: how often they did not, by kind (`ShadowDifference.kind`).
        failed: how often the engine gave no decision, by code; the shadow is not asked then. `cancelled`: whoever asked
            was cancelled or interrupted before there was one.
        shadow_failed: how often the shadow gave none, by code.
        dropped: how often the shadow was not asked, because it is too slow or closed.
        waiting: how often the shadow has yet to answer.
    """

    decided: int
    same: int
    differing: dict[str, int]
    failed: dict[str, int]
    shadow_failed: dict[str, int]
    dropped: int
    waiting: int


class ShadowEngine(Engine):
    """Decides by `engine` alone, and lets `shadow` decide the same afterwards. Safe for threads and tasks.

    What `engine` answers or raises is handed on as it is; whatever the shadow does changes no decision. `findings` are
    not shadowed, nor are requests that are refused before any engine is asked. Open it after a fork, as all engines.

    Args:
        engine: whose answers hold.
        shadow: who decides alongside: any other engine. Both are closed with this one.
        on_difference: called with each difference, in the shadow's thread. What it raises is logged by its type.
        waiting: limit of the decisions that wait for the shadow (beside 32 MiB).
        closing: seconds that `close` gives the shadow for what still waits.

    Raises:
        UsageError: an argument that cannot be used, or the same engine on both sides.
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
        for name, side in (("engine", engine), ("shadow", shadow)):
            if not isinstance(side, Engine):
                raise UsageError(f"{name}: {type(side).__name__} is not an engine", hint="give two opened engines")
        if engine is shadow:
            raise UsageError("shadow: it is the engine itself", hint="open a second one with the other bundle")
        if on_difference is not None and (not callable(on_difference) or inspect.iscoroutinefunction(on_difference)):
            raise UsageError(
                f"on_difference: {on_difference!r:.80} is not a plain function", hint="it takes one argument"
            )
        if type(waiting) is not int or not 1 <= waiting <= _MAX_WAITING:
            raise UsageError(f"waiting: {waiting!r:.40} is out of range", hint=f"1 to {_MAX_WAITING}")
        check_seconds("closing", closing, most=3600, zero=True)
        self.name = engine.name
        self.engine: Final = engine
        self.shadow: Final = shadow
        self._closing = closing
        self._queue = _ShadowQueue(shadow, waiting, on_difference)
        # The thread knows the queue alone, so that an engine without users ends it, closed or not.
        weakref.finalize(self, self._queue.abandon)

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
        """Async variant of `evaluate`."""
        return await self._ashadowed(DECISION, self.engine.aevaluate, body)

    async def aevaluate_plan(self, body: bytes) -> bytes:
        """Async variant of `evaluate_plan`."""
        return await self._ashadowed(PLAN, self.engine.aevaluate_plan, body)

    def counts(self) -> ShadowCounts:
        """Return what was counted so far."""
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
        """Async variant of `close`."""
        try:
            await self.engine.aclose()
        finally:
            await asyncio.to_thread(self._queue.close, self._closing)

    def _shadowed(self, document: str, evaluate: Callable[[bytes], bytes], body: bytes) -> bytes:
        try:
            answer = evaluate(body)
        except BaseException as error:
            self._queue.count_failure(error)
            raise
        self._queue.offer(document, body, answer)
        return answer

    async def _ashadowed(self, document: str, evaluate: Callable[[bytes], Awaitable[bytes]], body: bytes) -> bytes:
        try:
            answer = await evaluate(body)
        except BaseException as error:
            self._queue.count_failure(error)
            raise
        self._queue.offer(document, body, answer)
        return answer


class _ShadowQueue:
    """What was decided and waits for the shadow, the thread that asks it, and the counters. Safe for threads."""

    def __init__(self, shadow: Engine, size: int, on_difference: Callable[[ShadowDifference], object] | None) -> None:
        self._shadow = shadow
        self._size = size
        self._on_difference = on_difference
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        # A decision to repeat, or at the end whether to close the shadow.
        self._items: queue.SimpleQueue[tuple[str, bytes, bytes] | bool] = queue.SimpleQueue()
        self._tally: Counter[tuple[str, str]] = Counter()
        self._thread: threading.Thread | None = None
        self._waiting = self._bytes = 0
        self._dropping = False
        self._window, self._lines, self._left_out = monotonic(), 0, 0
        self._failing: str | None = None
        self._process = os.getpid()

    def _lock(self) -> threading.Condition:
        # In a forked child, where engines refuse to decide: a thread of the parent may have held the lock at the fork.
        if self._process != os.getpid():
            self._begin()
        return self._changed

    def offer(self, document: str, body: bytes, answer: bytes) -> None:
        size = _size(body, answer)
        with self._lock():
            full = self._waiting >= self._size or self._bytes + size > _MAX_BYTES
            if full or self._closed or not self._started():
                self._tally["dropped", ""] += 1
                return
            self._waiting += 1
            self._bytes += size
            # Under the lock, so that nothing comes after what ends the thread.
            self._items.put((document, body, answer))

    def count_failure(self, error: BaseException) -> None:
        with self._lock():
            self._tally["failed", _code(error) if isinstance(error, Exception) else "cancelled"] += 1

    def counts(self) -> ShadowCounts:
        with self._lock():
            tally, waiting = self._tally.copy(), self._waiting
        groups: dict[str, dict[str, int]] = {
            "differing": {},
            "failed": {},
            "shadow_failed": {},
            "same": {},
            "dropped": {},
        }
        for (group, name), count in tally.items():
            groups[group][name] = count
        same, dropped = (groups.pop(group).get("", 0) for group in ("same", "dropped"))
        return ShadowCounts(tally.total() + waiting, same=same, dropped=dropped, waiting=waiting, **groups)

    def drain(self, seconds: float) -> bool:
        with self._lock():
            return self._changed.wait_for(lambda: self._waiting == 0, seconds)

    def close(self, seconds: float) -> None:
        """Take nothing more, wait for what is there, and drop the rest. The thread closes the shadow at its end.

        A shadow that does not come to an end is left to its thread.
        """
        with self._lock():
            if self._closed:
                return
            self._closed = True
            thread = self._thread
            self._items.put(True)
        if thread is None:
            self._close_shadow()
        # An observer that closes the engine runs in the very thread that it would wait for.
        elif thread is not threading.current_thread():
            thread.join(seconds)
        self._dropping = True

    def abandon(self) -> None:
        """Drop what waits and end the thread. An evaluation under way gets a second to end."""
        self._dropping = self._closed = True
        self._items.put(False)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1)

    def _started(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="pdp-shadow", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while not isinstance(item := self._items.get(), bool):
            result = ("dropped", "") if self._dropping else self._compared(*item)
            with self._changed:
                self._tally[result] += 1
                self._waiting -= 1
                self._bytes -= _size(*item[1:])
                self._changed.notify_all()
        if item:
            self._close_shadow()

    def _compared(self, document: str, body: bytes, answer: bytes) -> tuple[str, str]:
        """Ask the shadow, report a difference, and return what to count."""
        try:
            ours, our_obligations = _read(answer)
        except AnswerInvalidError as error:
            return "failed", error.code
        try:
            evaluate = self._shadow.evaluate_plan if document == PLAN else self._shadow.evaluate
            theirs, their_obligations = _read(evaluate(body))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the shadow's, and ends nothing here
            code, before = _code(error), self._failing
            self._failing = code
            if code != before:
                self._report("shadow.failed", code=code)
            return "shadow_failed", code
        self._failing = None
        if ours.verdict is not theirs.verdict:
            kind = f"{ours.verdict} -> {theirs.verdict}"
        elif ours.codes != theirs.codes:
            kind = "other codes"
        elif our_obligations != their_obligations:
            kind = "other obligations"
        else:
            return "same", ""
        difference = ShadowDifference(kind, document, ours, theirs, body)
        self._report("shadow.differs", **difference.as_json())
        try:
            if self._on_difference is not None:
                self._on_difference(difference)
        except BaseException as error:  # noqa: BLE001 - the application's, which may raise anything
            # Without its text and traceback, which could quote anything.
            self._report("shadow.observer_failed", error=type(error).__name__)
        return "differing", kind

    def _report(self, event: str, **fields: Any) -> None:
        now = monotonic()
        if now - self._window >= 60:  # noqa: PLR2004 - a minute
            self._window, self._lines = now, 0
        if self._lines >= LINES:
            self._left_out += 1
            return
        self._lines += 1
        # ASCII, so that no text of a request or an answer can begin a line of its own.
        line = json.dumps({"event": event, **fields, "left_out": self._left_out})
        self._left_out = 0
        with suppress(Exception):
            _log.warning("%s", line)

    def _close_shadow(self) -> None:
        try:
            self._shadow.close()
        except BaseException as error:  # noqa: BLE001 - nothing that a shadow does is a failure of the engine
            _log.warning("the shadow could not be closed: %s", type(error).__name__)


def _size(body: bytes, answer: bytes) -> int:
    # An engine of the application's may answer anything, which fails where it is parsed and not here.
    return len(body) + (len(answer) if isinstance(answer, bytes) else 0)


def _code(error: BaseException) -> str:
    return error.code if isinstance(error, PdpError) else EngineError.code


def _read(document: bytes) -> tuple[Decision, frozenset[bytes]]:
    """Return a decision, and its obligations as they are compared."""
    try:
        decision = parse_decision(document)
        return decision, frozenset(canonical(asdict(each)) for each in decision.obligations)
    except ValueError as error:
        raise AnswerInvalidError("the policy engine's answer is not plain JSON") from error


def _names(body: bytes) -> dict[str, str | None]:
    """Return request id and tool of a request of whatever shape."""
    try:
        request = orjson.loads(body)
    except ValueError:
        request = None
    return {
        "request_id": _text_at(request, "context", "request_id"),
        "tool": _text_at(request, "action", "properties", "tool"),
    }


def _text_at(value: Any, *path: str) -> str | None:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return _bounded(value)


def _bounded(value: object) -> str | None:
    return value[:_TEXT] if isinstance(value, str) else None
