"""Instances of one policy for many threads, and the clock that stops their evaluations.

A call borrows an instance and then returns it. Threads run in parallel, because a call releases the interpreter lock.
There are never more instances than there were concurrent calls.
"""

import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from queue import SimpleQueue
from typing import Final

from pdp.engine.wasm.instance import TICK, WasmInstance, WasmModule
from pdp.errors import EngineError, EngineTimeoutError, RequestRefusedError

MAX_INSTANCES: Final = 32  # the default number of concurrent evaluations in one pool; other evaluations wait

_IDLE_TICKS: Final = 100


@cache
def fastest_instance_type() -> type[WasmInstance]:
    """Return `DirectInstance` if the installed wasmtime supports it, else `WasmInstance`."""
    try:
        from pdp.engine.wasm.direct import DirectInstance, fits  # noqa: PLC0415 - its imports may be missing
    except (ImportError, AttributeError):
        return WasmInstance
    return DirectInstance if fits() else WasmInstance


class InstancePool:
    """A policy with its JSON data, which all threads of the process that created it can evaluate.

    `deadline` limits an evaluation, and the wait for a free instance, in seconds. Evaluations stop within 20 ms after
    `deadline`, or later if the interpreter is overloaded. `memory_limit` is in bytes, in addition to policy and data.
    Each instance keeps its data and peak memory. `entrypoints` maps the path of a document to its number.

    Raises `BundleError` if the module cannot be evaluated with this data, `EngineError` if memory or threads are short.
    """

    def __init__(
        self,
        wasm: bytes,
        data: bytes,
        *,
        deadline: float,
        memory_limit: int,
        max_instances: int = MAX_INSTANCES,
        instance_type: type[WasmInstance] | None = None,
    ) -> None:
        self._module = WasmModule(wasm)
        self._data = data
        self._deadline = deadline
        self._ticks = math.ceil(deadline / TICK) + 1
        self._memory_limit = memory_limit
        self._max_instances = max_instances
        self._instance_type = instance_type or fastest_instance_type()
        self._process = os.getpid()
        self._closed = False
        self._free: deque[WasmInstance] = deque()
        # The set holds weak references, so that an instance that an interrupted borrower lost does not count for ever.
        self._all: weakref.WeakSet[WasmInstance] = weakref.WeakSet()
        self._making = 0
        self._waiting = 0
        self._changed = threading.Condition()
        self._clock = _Clock(self)
        weakref.finalize(self, _end, self._clock, self._free, self._process)
        first = self._borrow()
        self.entrypoints: Mapping[str, int] = first.entrypoints
        self._give_back(first)

    @property
    def busy(self) -> bool:
        """Whether an instance is in use or being created, so that the clock must run."""
        return self._making > 0 or len(self._free) < len(self._all)

    def evaluate(self, entrypoint: int, body: bytes) -> bytes:
        """Evaluate one entrypoint, as `WasmInstance.evaluate` does, with the same errors.

        Also raises `EngineTimeoutError` if no instance became free in time, and `EngineError` if the pool is closed, or
        in a forked child, which lacks the threads that may have held a lock.
        """
        if os.getpid() != self._process:
            raise EngineError(
                "the engine was opened before the process was forked", hint="open the engine after the fork"
            )
        try:
            instance = self._free.pop()
        except IndexError:
            instance = self._borrow()
        try:
            # The flag is checked after an instance is taken, because the clock looks for busy instances once more
            # before it rests.
            if self._clock.resting:
                self._clock.wake()
            answer = instance.evaluate(entrypoint, body, self._ticks)
        except BaseException as error:
            # After an interruption such as Ctrl-C, the instance is in an unknown state, so it is dropped.
            if not isinstance(error, RequestRefusedError):
                instance.close()
            self._give_back(instance)
            raise
        self._give_back(instance)
        return answer

    def close(self) -> None:
        """Release idle instances now, and busy instances after their evaluation. Then stop the clock."""
        self._closed = True
        self._wake_waiters()
        self._clock.stop()

    def _borrow(self) -> WasmInstance:
        until = time.monotonic() + self._deadline
        with self._changed:
            # No wakeup is lost: a borrower increments `_waiting` before it looks for an instance, and a returning
            # thread reads `_waiting` after it puts one back.
            self._waiting += 1
            try:
                while True:
                    if self._closed:
                        raise EngineError("the engine is closed")
                    with suppress(IndexError):
                        return self._free.pop()
                    if len(self._all) + self._making < self._max_instances:
                        self._making += 1
                        break
                    if not self._changed.wait(until - time.monotonic()):
                        raise EngineTimeoutError("all instances of the policy were busy until the deadline")
            finally:
                self._waiting -= 1
        made = None
        try:
            self._clock.wake()
            made = self._instance_type(self._module, self._data, self._memory_limit)
        finally:
            with self._changed:
                self._making -= 1
                if made is None:
                    self._changed.notify()
                else:
                    self._all.add(made)
        return made

    def _give_back(self, instance: WasmInstance) -> None:
        if instance.closed:
            self._all.discard(instance)
        else:
            self._free.append(instance)
        if self._waiting or self._closed:
            self._wake_waiters()

    def _wake_waiters(self) -> None:
        with self._changed:
            self._changed.notify(self._waiting if self._closed else 1)
            while self._closed and self._free:
                instance = self._free.pop()
                instance.close()
                self._all.discard(instance)


class _Clock:
    """A thread that advances wasmtime's deadline clock while a pool is busy, and sleeps after one idle second."""

    def __init__(self, pool: InstancePool) -> None:
        self.resting = False
        self._pool = weakref.ref(pool)
        self._module = pool._module  # noqa: SLF001 - the clock is part of the pool
        self._ended = False
        # An Event is not used, because a Ctrl-C within `set` would leave its lock held for ever.
        self._woken: SimpleQueue[None] = SimpleQueue()
        try:
            threading.Thread(target=self._run, name="pdp-clock", daemon=True).start()
        except RuntimeError as error:
            raise EngineError(f"cannot start the thread of the engine's clock: {error}") from error

    def wake(self) -> None:
        self.resting = False
        self._woken.put(None)

    def stop(self) -> None:
        """Ask the thread to end when the pool is no longer busy. Return without waiting for the end."""
        self._ended = True
        self._woken.put(None)

    def _run(self) -> None:
        idle = 0
        while self._busy() or not self._ended:
            time.sleep(TICK)
            self._module.engine.increment_epoch()
            idle = 0 if self._busy() else idle + 1
            if idle >= _IDLE_TICKS:
                self._rest()
                idle = 0

    def _rest(self) -> None:
        while not self._woken.empty():
            self._woken.get()
        self.resting = True
        # This check sees every instance that was taken before it. A thread that takes an instance later sees `resting`
        # and wakes the clock.
        if self._busy():
            self.resting = False
        elif not self._ended:
            self._woken.get()

    def _busy(self) -> bool:
        pool = self._pool()
        return pool is not None and pool.busy


# The finalizer runs when the pool is garbage-collected or the program ends. wasmtime's own clean-up may run too late
# and fail.
def _end(clock: _Clock, free: deque[WasmInstance], process: int) -> None:
    if os.getpid() != process:
        return
    clock.stop()
    while free:
        free.pop().close()
