"""Instances of one policy for many threads, and the clock that stops their evaluations.

A call borrows an instance and gives it back, so threads run in parallel (a call drops the interpreter's lock), a thread
that ends owes nothing, and there are never more instances than calls at once.
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

MAX_INSTANCES: Final = 32  # how many evaluations of one pool run at once, unless given; more of them wait

_IDLE_TICKS: Final = 100


@cache
def fastest_instance_type() -> type[WasmInstance]:
    """Return how modules are called: directly where this wasmtime is what that expects, else by its public calls."""
    try:
        from pdp.engine.wasm.direct import DirectInstance, fits  # noqa: PLC0415 - uses names that may be missing
    except (ImportError, AttributeError):
        return WasmInstance
    return DirectInstance if fits() else WasmInstance


class InstancePool:
    """A policy with its data, for any thread of the process that made it to evaluate.

    Args:
        data: the base documents, as JSON.
        deadline: seconds that an evaluation may take, and that it may wait for an instance before. Evaluations are
            stopped within 20 ms of it while the interpreter has time for its threads, else somewhat later.
        memory_limit: bytes that an evaluation may use, beyond what policy and data occupy.
        max_instances: how many evaluations run at once; each instance holds the data and what it used at most.
        instance_type: how the module is called; the fastest way that this wasmtime admits unless given.

    Attributes:
        entrypoints: the number of each entrypoint by its path, as `authz/decision`.

    Raises:
        BundleError: the module is not a policy that can be evaluated with this data.
        EngineError: the machine has no room for an instance, or no thread for the clock.
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
        # Weak, so that an instance which an interrupt made its borrower forget does not count for ever.
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
        """Whether an instance is out or being made, so that time must pass for it."""
        return self._making > 0 or len(self._free) < len(self._all)

    def evaluate(self, entrypoint: int, body: bytes) -> bytes:
        """Evaluate one entrypoint, as `WasmInstance.evaluate` does.

        Raises:
            EngineError: as there; EngineTimeoutError also when no instance gets free, EngineError when closed, or in
                a forked child: other threads, which are no more there, may have held any lock.
        """
        if os.getpid() != self._process:
            raise EngineError("the engine was opened before the process was forked", hint="open it after the fork")
        try:
            instance = self._free.pop()
        except IndexError:
            instance = self._borrow()
        try:
            # The clock may be asked only now: before it rests, it looks once more whether an instance is out.
            if self._clock.resting:
                self._clock.wake()
            answer = instance.evaluate(entrypoint, body, self._ticks)
        except BaseException as error:
            # Whatever broke it off, a Ctrl-C included: the instance is in no known state.
            if not isinstance(error, RequestRefusedError):
                instance.close()
            self._give_back(instance)
            raise
        self._give_back(instance)
        return answer

    def close(self) -> None:
        """Give all memory back and end the clock. Evaluations that are under way end as usual."""
        self._closed = True
        self._wake_waiters()
        self._clock.stop()

    def _borrow(self) -> WasmInstance:
        """Take an instance when none seems to be free: wait for one, or make one."""
        until = time.monotonic() + self._deadline
        with self._changed:
            # Who gives an instance back looks at `_waiting` after that, who takes one counts it up before.
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
        """Let one of those who wait look again; once closed, let all do so and close what is free."""
        with self._changed:
            self._changed.notify(self._waiting if self._closed else 1)
            while self._closed and self._free:
                instance = self._free.pop()
                instance.close()
                self._all.discard(instance)


class _Clock:
    """A thread that ticks while a pool is busy, and rests after a second without need."""

    def __init__(self, pool: InstancePool) -> None:
        self.resting = False
        self._pool = weakref.ref(pool)
        self._module = pool._module  # noqa: SLF001 - a part of the pool
        self._ended = False
        # Not an Event: broken off by a Ctrl-C within `set`, it would keep its lock for ever.
        self._woken: SimpleQueue[None] = SimpleQueue()
        try:
            threading.Thread(target=self._run, name="pdp-clock", daemon=True).start()
        except RuntimeError as error:
            raise EngineError(f"no thread for the engine's clock: {error}") from error

    def wake(self) -> None:
        self.resting = False
        self._woken.put(None)

    def stop(self) -> None:
        """End the thread as soon as the pool is no longer busy; it is not waited for."""
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
        # Who took an instance before this look is seen by it; who takes one after it sees `resting`.
        if self._busy():
            self.resting = False
        elif not self._ended:
            self._woken.get()

    def _busy(self) -> bool:
        pool = self._pool()
        return pool is not None and pool.busy


# When nobody holds the pool any longer, or the program ends: wasmtime's own clean-up may come too late and complain.
def _end(clock: _Clock, free: deque[WasmInstance], process: int) -> None:
    if os.getpid() != process:
        return
    clock.stop()
    while free:
        free.pop().close()
