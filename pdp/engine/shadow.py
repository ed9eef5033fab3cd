"""A second engine that decides alongside and is never enforced, so that a release is watched on live traffic.

    engine = ShadowEngine(stable, canary, on_difference=collect)

One thread asks the shadow, from a bounded queue. What it cannot take is dropped and counted.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import queue
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.decision import parse_decision
from pdp.engine.protocol import DECISION, PLAN, Engine
from pdp.engine.seconds import check_seconds
from pdp.errors import AnswerInvalidError, EngineError, PdpError, UsageError
from pdp.json import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pdp.decision import Decision

WAITING: Final = 1000
"""Default limit of the decisions that wait for the shadow."""

CLOSING: Final = 5.0
"""Default time to wait at the end for the shadow, in seconds."""

_MAX_WAITING: Final = 100_000

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
        """Return what may be logged: no arguments, and no message, detail or parameter, which may quote the request."""
        try:
            request = orjson.loads(self.request)
        except ValueError:
            request = None
        result: dict[str, Any] = {
            "kind": self.kind,
            "document": self.document,
            "request_id": _text_at(request, "context", "request_id"),
            "tool": _text_at(request, "action", "properties", "tool"),
        }
        for prefix, decision in (("", self.decision), ("shadow_", self.shadow_decision)):
            result[f"{prefix}verdict"] = decision.verdict
            result[f"{prefix}codes"] = list(decision.codes)
            result[f"{prefix}obligations"] = sorted({obligation.id for obligation in decision.obligations})
            result[f"{prefix}revision"] = decision.bundle_revision
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
    not shadowed, nor are requests that are refused before any engine is asked. Open it after a fork, as all engines,
    and close it: its thread ends then.

    Args:
        engine: whose answers hold.
        shadow: who decides alongside: any other engine. Both are closed with this one.
        on_difference: called with each difference, in the shadow's thread. What it raises is logged by its type.
        waiting: limit of the decisions that wait for the shadow.
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
        if engine is shadow:
            raise UsageError("shadow: it is the engine itself", hint="open a second one with the other bundle")
        if inspect.iscoroutinefunction(on_difference):
            raise UsageError(
                f"on_difference: {on_difference!r:.80} is not a plain function", hint="it takes one argument"
            )
        if type(waiting) is not int or not 1 <= waiting <= _MAX_WAITING:
            raise UsageError(f"waiting: {waiting!r:.40} is out of range", hint=f"1 to {_MAX_WAITING}")
        check_seconds("closing", closing, most=3600, zero=True)
        self.name = engine.name
        self.engine: Final = engine
        self.shadow: Final = shadow
        self._on_difference = on_difference
        self._limit = waiting
        self._closing = closing
        self._process = os.getpid()
        self._changed = threading.Condition(threading.Lock())
        self._items: queue.SimpleQueue[tuple[str, bytes, bytes] | None] = queue.SimpleQueue()
        self._waiting = 0
        self._tally: Counter[tuple[str, str]] = Counter()
        self._closed = self._dropping = False
        self._failing: str | None = None
        self._thread = threading.Thread(target=self._run, name="pdp-shadow", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise EngineError(f"no thread to ask the shadow: {error}") from error

    def evaluate(self, body: bytes) -> bytes:
        """Evaluate `authz/decision` on the engine; errors as there."""
        with self._failures_counted():
            answer = self.engine.evaluate(body)
        return self._offered(DECISION, body, answer)

    def evaluate_plan(self, body: bytes) -> bytes:
        """Evaluate `authz/plan` on the engine; errors as there."""
        with self._failures_counted():
            answer = self.engine.evaluate_plan(body)
        return self._offered(PLAN, body, answer)

    def evaluate_findings(self, body: bytes) -> bytes:
        """Evaluate `authz/findings` on the engine, which decides nothing and is not shadowed; errors as there."""
        return self.engine.evaluate_findings(body)

    async def aevaluate(self, body: bytes) -> bytes:
        """Async variant of `evaluate`."""
        with self._failures_counted():
            answer = await self.engine.aevaluate(body)
        return self._offered(DECISION, body, answer)

    async def aevaluate_plan(self, body: bytes) -> bytes:
        """Async variant of `evaluate_plan`."""
        with self._failures_counted():
            answer = await self.engine.aevaluate_plan(body)
        return self._offered(PLAN, body, answer)

    def counts(self) -> ShadowCounts:
        """Return what was counted so far."""
        with self._changed:
            tally, waiting = self._tally.copy(), self._waiting
        by_name = {
            group: {name: count for (counted, name), count in tally.items() if counted == group}
            for group in ("differing", "failed", "shadow_failed")
        }
        same, dropped = tally["same", ""], tally["dropped", ""]
        return ShadowCounts(tally.total() + waiting, same, dropped=dropped, waiting=waiting, **by_name)

    def drain(self, seconds: float = CLOSING) -> bool:
        """Wait until the shadow was asked about everything that was decided; False when that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self._waiting == 0, seconds)

    def close(self) -> None:
        """Close both engines; deciding afterwards is a DENY `engine.unavailable`, and `counts` stay.

        The shadow gets `closing` seconds for what still waits; the rest is dropped. One that does not come to an end is
        left to its thread.
        """
        try:
            self.engine.close()
        finally:
            self._close_queue()

    async def aclose(self) -> None:
        """Async variant of `close`."""
        try:
            await self.engine.aclose()
        finally:
            await asyncio.to_thread(self._close_queue)

    @contextmanager
    def _failures_counted(self) -> Iterator[None]:
        if os.getpid() != self._process:
            # The lock may be held by a thread of the parent, which the child does not have.
            raise EngineError("the engine was opened before the process was forked", hint="open it after the fork")
        try:
            yield
        except BaseException as error:
            with self._changed:
                self._tally["failed", _code(error) if isinstance(error, Exception) else "cancelled"] += 1
            raise

    def _offered(self, document: str, body: bytes, answer: bytes) -> bytes:
        with self._changed:
            if self._closed or self._waiting >= self._limit:
                self._tally["dropped", ""] += 1
            else:
                self._waiting += 1
                # Under the lock, so that nothing comes after what ends the thread.
                self._items.put((document, body, answer))
        return answer

    def _close_queue(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._items.put(None)
        # An observer that closes the engine runs in the very thread that it would wait for.
        if self._thread is not threading.current_thread():
            self._thread.join(self._closing)
        self._dropping = True

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            result = ("dropped", "") if self._dropping else self._compared(*item)
            with self._changed:
                self._tally[result] += 1
                self._waiting -= 1
                self._changed.notify_all()
        try:
            self.shadow.close()
        except BaseException as error:  # noqa: BLE001 - nothing that a shadow does is a failure of the engine
            _log.warning("the shadow could not be closed: %s", type(error).__name__)

    def _compared(self, document: str, body: bytes, answer: bytes) -> tuple[str, str]:
        """Ask the shadow, report a difference, and return what to count."""
        try:
            ours, our_obligations = _read(answer)
        except AnswerInvalidError as error:
            return "failed", error.code
        try:
            evaluate = self.shadow.evaluate_plan if document == PLAN else self.shadow.evaluate
            theirs, their_obligations = _read(evaluate(body))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the shadow's, and ends nothing here
            code = _code(error)
            if code != self._failing:
                _log.warning("the shadow fails: %s", code)
            self._failing = code
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
        try:
            if self._on_difference is not None:
                self._on_difference(ShadowDifference(kind, document, ours, theirs, body))
        except BaseException as error:  # noqa: BLE001 - the application's, which may raise anything
            # Without its text and traceback, which could quote anything.
            _log.warning("on_difference failed: %s", type(error).__name__)
        return "differing", kind


def _code(error: BaseException) -> str:
    return error.code if isinstance(error, PdpError) else EngineError.code


def _read(document: bytes) -> tuple[Decision, frozenset[bytes]]:
    """Return a decision, and its obligations as they are compared."""
    try:
        decision = parse_decision(document)
        return decision, frozenset(canonical(asdict(obligation)) for obligation in decision.obligations)
    except ValueError as error:
        raise AnswerInvalidError("the policy engine's answer is not plain JSON") from error


def _text_at(value: Any, *path: str) -> str | None:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None
