"""Runs of agents: what an application states for all of them, what one remembers, and which ones are open.

A run is open from its first call until it is ended, or no call was made in it for a day. Nothing that it remembers
outlives it.

Nothing that protects is forgotten while it goes on: where there is no room for it, the call is refused. What only saves
work (records) or whose absence refuses (snapshots) is remembered as long as there is room. A run that had to make room
for others is closed when it remembers something that protects, and not begun anew without it.

Source: tool pattern library, patterns 2 and 6, 9.3, and 9.4: no state across runs in tool memory.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeVar

import orjson

from pdp.errors import StateError
from pdp.execution.runner import set_within
from pdp.json import canonical, check_json, digest, thawed
from pdp.patterns.exceptions import PatternFault, SourceUnavailableError

_log = logging.getLogger("pdp.patterns")

MOST_ENTRIES: Final = 10_000  # of one sort in a run; then the oldest goes, or what protects is refused: `run.full`
MOST_RUNS: Final = 1_000  # open at once; then the least recently used one is closed
MOST_CLOSED: Final = 1_000_000  # known as such; then no run is opened until one has ended
LIFETIME: Final = 24 * 3600.0  # seconds without a call after which a run, open or closed, is over

_RUN: ContextVar[Run | None] = ContextVar("pdp_run", default=None)

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Pin:
    """One version of a source, such as a table of exchange rates, that holds for a whole run. `value` is JSON."""

    version: str
    value: Any


@dataclass(frozen=True, slots=True)
class Deployment:
    """What the application states for all runs. Its functions are quick, or cache by themselves.

    Args:
        sources: by name, what reads a source that is pinned when a run starts (pattern 9).
        source_versions: by id, what returns a system of record's present version (pattern 2).
        markings_of: `(type, id) -> markings`, or None when they are not known (pattern 8).
    """

    sources: Mapping[str, Callable[[], Pin]] = field(default_factory=dict)
    source_versions: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    markings_of: Callable[[str, str], Iterable[str] | None] | None = None


def read_pins(deployment: Deployment) -> dict[str, Pin]:
    """Return the sources as they are now; one that cannot be read is missing, and logged."""
    pins = {}
    for source, read in deployment.sources.items():
        try:
            pin = read()
            check_json(pin.value)
            if not isinstance(pin.version, str) or not pin.version:
                raise TypeError("a pin without version")  # noqa: TRY301 - as if reading raised it
            # A copy: what the application changes later does not change a run.
            pins[source] = Pin(pin.version, orjson.loads(canonical(pin.value)))
        except Exception:  # noqa: BLE001 - a source that is not there fails what needs it, and nothing else
            _log.warning("source %s could not be pinned: what needs it fails in this run", source, exc_info=True)
    return pins


class Run:
    """One run of an agent. Made by `Runs`; safe to share between threads.

    Without a `run_id` nothing outlives the call. `used_at` is when the last call was made in it, as `Runs` has it. What
    protects is refused with a PatternFault where there is no room for it, `run.full`, or after `close`, `run.closed`.
    """

    def __init__(self, run_id: str | None, deployment: Deployment) -> None:
        self.run_id = run_id
        self.deployment = deployment
        self.used_at = 0.0
        self.pins: Mapping[str, Pin] = MappingProxyType(read_pins(deployment))
        self._lock = threading.Lock()
        self._records: OrderedDict[Any, bytes] = OrderedDict()
        self._answers: dict[Any, str] = {}
        self._snapshots: OrderedDict[str, frozenset[str]] = OrderedDict()
        self._markings: dict[tuple[str, str], frozenset[str]] = {}
        self._staged: dict[tuple[str, str], str] = {}
        self._bound: dict[str, str] = {}
        self._is_closed = False

    def close(self) -> bool:
        """Refuse from now on to remember what protects, and return whether something of that kind is remembered.

        If so, a run that began anew in its place would let through what this one does not.
        """
        with self._lock:
            self._is_closed = True
            return bool(self.pins or self._answers or self._markings or self._staged)

    def pin(self, source: str) -> Pin:
        """Return the pin of a source; SourceUnavailableError as of `pinned`."""
        pin = self.pins.get(source)
        if pin is None:
            raise SourceUnavailableError(f"{source} is not pinned in this run")
        # A copy: what one tool writes to it is not what the next one reads.
        return replace(pin, value=thawed(pin.value))

    def source_version(self, source: str) -> str | None:
        """Return the present version of a system of record, as the application states it; None: unknown."""
        ask = self.deployment.source_versions.get(source)
        try:
            version = ask() if ask is not None else None
        except Exception:  # noqa: BLE001 - an unknown version: no lookup is answered from the cache
            _log.warning("the version of source %s cannot be read", source, exc_info=True)
            return None
        return version if isinstance(version, str) and version else None

    def record(self, key: Any) -> bytes | None:
        """Return the cached result of a lookup, as JSON text."""
        return self._records.get(key)

    def keep_record(self, key: Any, text: bytes) -> None:
        """Cache a lookup's result."""
        with self._lock:
            _keep(self._records, key, text)

    def same_answer(self, key: Any, answer: Any) -> bool:
        """Return whether `key` has been answered so before in this run, or not at all."""
        this = digest(canonical(answer))
        with self._lock:
            first = self._answers.get(key)
            if first is None:
                self._add(self._answers, key, this, "answers")
        return first is None or first == this

    def keep_snapshot(self, snapshot: str, sources: Iterable[str]) -> None:
        """Remember a retrieval snapshot and the ids of the sources found in it."""
        with self._lock:
            _keep(self._snapshots, snapshot, self._snapshots.get(snapshot, frozenset()) | frozenset(sources))

    def knows_snapshot(self, snapshot: str) -> bool:
        """Return whether this run has retrieved from that snapshot."""
        return snapshot in self._snapshots

    def snapshot_of(self, source: str) -> str | None:
        """Return the newest snapshot in which this run found the source."""
        with self._lock:
            return next((name for name, sources in reversed(self._snapshots.items()) if source in sources), None)

    def mark(self, kind: str, name: str, markings: Iterable[str]) -> None:
        """Remember the markings of an object, by its type and id; they are added to those that it has."""
        with self._lock:
            known = self._markings.get((kind, name), frozenset())
            self._add(self._markings, (kind, name), known | frozenset(markings), "marked objects")

    def markings_of(self, kind: str, name: str) -> frozenset[str]:
        """Return the markings of an object that are known: those of this run and the application's."""
        known = self._markings.get((kind, name), frozenset())
        ask = self.deployment.markings_of
        try:
            stated = None if ask is None else ask(kind, name)
        except Exception:  # noqa: BLE001 - unknown markings
            _log.warning("the markings of %s %s cannot be read", kind, name, exc_info=True)
            return known
        return known if stated is None or isinstance(stated, str) else known | frozenset(stated)

    def keep_staged(self, kind: str, payload_digest: str, action_id: str) -> None:
        """Remember that an action was staged."""
        with self._lock:
            self._add(self._staged, (kind, payload_digest), action_id, "staged actions")

    def staged_action(self, kind: str, payload_digest: str) -> str | None:
        """Return the id of the action of this kind and payload that was staged in this run; None when none was."""
        return self._staged.get((kind, payload_digest))

    def bind_staged(self, kind: str, payload_digest: str, call_digest: str) -> str | None:
        """Return the staged action for exactly this call, which has it from now on; None: there is none, or another's.

        Of two approvals, neither then stands for the effect of the other.
        """
        with self._lock:
            action_id = self._staged.get((kind, payload_digest))
            if action_id is None or self._bound.setdefault(action_id, call_digest) != call_digest:
                return None
            return action_id

    def _add(self, entries: dict[Key, Value], key: Key, value: Value, plural: str) -> None:
        if self._is_closed:
            raise PatternFault(RunClosedError.code, "the run was closed to make room for others")
        if len(entries) >= MOST_ENTRIES and key not in entries:
            raise PatternFault("run.full", f"the run remembers {MOST_ENTRIES} {plural}, and has no room for more")
        entries[key] = value


class RunClosedError(StateError):
    """The run was closed to make room for others: what it remembered is gone, and it does not go on without."""

    code: ClassVar[str] = "run.closed"


class RunsFullError(StateError):
    """No run can be opened without forgetting which ones were closed."""

    code: ClassVar[str] = "run.too_many"


class Runs:
    """The runs that are open, each of one caller. Safe to share between threads.

    Where there are too many, the one that was used least recently gives way. If it remembers something that protects,
    no call is made in it any more, until its caller has ended it or no call was tried for a day.
    """

    def __init__(self, deployment: Deployment | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.deployment = Deployment() if deployment is None else deployment
        self._clock = clock
        # Both in the order of their last call.
        self._runs: OrderedDict[bytes, Run] = OrderedDict()
        self._closed: OrderedDict[bytes, float] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, run_id: str | None, caller: str) -> Run:
        """Return the run of that id, a new one when it is not open; without an id one that nobody else gets.

        Equal ids of two callers have nothing in common. RunClosedError: it was closed to make room for others;
        RunsFullError: it is not open, and there is no room.
        """
        if run_id is None:
            return Run(None, self.deployment)
        key = _key(run_id, caller)
        with self._lock:
            run = self._open_run(key, run_id)
        if run is None:
            # Reading sources may take a while: not under the lock. Of two that start at once, the first to be done is
            # the run for both.
            new = Run(run_id, self.deployment)
            with self._lock:
                run = self._open_run(key, run_id)
                if run is None:
                    self._make_room()
                    new.used_at = self._clock()
                    run = self._runs[key] = new
        return run

    def end(self, run_id: str, caller: str) -> None:
        """Forget a run, open or closed, and all that it remembers. Nothing happens when there is none."""
        key = _key(run_id, caller)
        with self._lock:
            self._runs.pop(key, None)
            self._closed.pop(key, None)

    def _open_run(self, key: bytes, run_id: str) -> Run | None:
        now = self._clock()
        while self._runs and next(iter(self._runs.values())).used_at + LIFETIME <= now:
            self._runs.popitem(last=False)
        while self._closed and next(iter(self._closed.values())) + LIFETIME <= now:
            self._closed.popitem(last=False)
        if key in self._closed:
            self._closed[key] = now
            self._closed.move_to_end(key)
            raise RunClosedError(
                f"run {run_id:.60} was closed to make room for others, and what it remembered is gone",
                hint="go on under another run_id, or end it; end runs that are over",
            )
        run = self._runs.get(key)
        if run is not None:
            self._runs.move_to_end(key)
            run.used_at = now
        return run

    def _make_room(self) -> None:
        while len(self._runs) >= MOST_RUNS:
            if len(self._closed) >= MOST_CLOSED:
                raise RunsFullError(f"{MOST_RUNS} runs are open, and no more can be closed", hint="end what is over")
            key, run = self._runs.popitem(last=False)
            if run.close():
                self._closed[key] = self._clock()


def pinned(source: str) -> Pin:
    """Return what a source was pinned to when the run started; for use in a tool.

        def convert_currency(value, target):
            rates = pinned("ecb").value
            return {"amount": round(value["amount"] * rates[target["currency"]], 2), ...}

    SourceUnavailableError: no such source is declared, it could not be read then, or no run is going on.
    """
    run = _RUN.get()
    if run is None:
        raise SourceUnavailableError(f"{source} is not pinned: no run is going on")
    return run.pin(source)


def within_run(run: Run) -> AbstractContextManager[Run]:
    """Let `pinned` find this run within the block, in this thread or task and in those that it starts."""
    return set_within(_RUN, run)


def _keep(entries: OrderedDict[Key, Value], key: Key, value: Value) -> None:
    entries[key] = value
    entries.move_to_end(key)
    while len(entries) > MOST_ENTRIES:
        entries.popitem(last=False)


# Sixteen bytes for each run that was closed, whatever ids and callers look like.
def _key(run_id: str, caller: str) -> bytes:
    return hashlib.sha256(canonical([caller, run_id])).digest()[:16]
