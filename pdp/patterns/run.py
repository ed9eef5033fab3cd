"""The memory of agents' runs, the open runs, and the application's settings for all runs.

A run is open from its first call until the application ends the run or a day passes without a call. Then its memory
is deleted. An open run never forgets its pins, answers, markings and staged actions, because later calls are checked
against these data. Without room for more data, a call is rejected. A run that was closed to make room stays closed.

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

# The maximum number of items of each type in a run. Beyond it, old records and snapshots are dropped, and new items of
# other types are rejected.
MAX_ENTRIES: Final = 10_000
MAX_RUNS: Final = 1_000  # The maximum number of open runs. Beyond it, the run that was unused for longest is closed.
# The maximum number of closed runs that are remembered. Beyond it, no new run can be opened.
MAX_CLOSED_RUNS: Final = 1_000_000
LIFETIME: Final = 24 * 3600.0  # An open or closed run ends after this many seconds without a call.

_RUN: ContextVar[Run | None] = ContextVar("pdp_run", default=None)

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Pin:
    """One version of a source, such as a table of exchange rates, that is fixed for a whole run.

    Attributes:
        version: the version, such as a date.
        value: the content of the source as JSON.
    """

    version: str
    value: Any


@dataclass(frozen=True, slots=True)
class Deployment:
    """Settings of the application for all runs. The functions should be fast, or cache their results.

    Args:
        sources: by name, a function that reads a source, called at the start of a run (pattern 9).
        source_versions: by id, a function that returns the current version of a system of record (pattern 2).
        markings_of: returns the markings of a resource `(type, id)`, or None if the markings are unknown (pattern 8).

    Examples:
        >>> from pdp.tools import Pin
        >>> deployment = Deployment(sources={"ecb": lambda: Pin("2026-07-01", {"USD": 1.17})})
        >>> deployment.sources["ecb"]().value["USD"]
        1.17
    """

    sources: Mapping[str, Callable[[], Pin]] = field(default_factory=dict)
    source_versions: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    markings_of: Callable[[str, str], Iterable[str] | None] | None = None


def read_pins(deployment: Deployment) -> dict[str, Pin]:
    """Return the current versions of all sources. A source that cannot be read is left out and logged."""
    pins = {}
    for source, read in deployment.sources.items():
        try:
            pin = read()
            check_json(pin.value)
            if not isinstance(pin.version, str) or not pin.version:
                raise TypeError("a pin needs a version")  # noqa: TRY301 - handled like an error of the source
            # The value is copied, so that later changes by the application do not change the run.
            pins[source] = Pin(pin.version, orjson.loads(canonical(pin.value)))
        except Exception:  # noqa: BLE001 - only tools that need the source fail
            _log.warning("source %s could not be pinned: tools that need it fail in this run", source, exc_info=True)
    return pins


class Run:
    """The memory of one run of an agent, or of one call without a `run_id`. Created by `Runs`; thread-safe.

    A new answer, marking or staged action raises `PatternFault`: `run.full` without room, `run.closed` after `close`.
    """

    def __init__(self, run_id: str | None, deployment: Deployment) -> None:
        self.run_id = run_id
        self.deployment = deployment
        self.used_at = 0.0  # Time of the last call.
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
        """Reject new answers, markings and staged actions from now on, and return whether the run must stay closed.

        A run with such data or pins must stay closed: a new run with its id would allow calls that this run rejects.
        """
        with self._lock:
            self._is_closed = True
            return bool(self.pins or self._answers or self._markings or self._staged)

    def pin(self, source: str) -> Pin:
        """Return the version of a source that is pinned for this run, or raise `SourceUnavailableError`."""
        pin = self.pins.get(source)
        if pin is None:
            raise SourceUnavailableError(f"{source} is not pinned in this run")
        # The value is copied, so that a tool that changes it does not change it for other tools.
        return replace(pin, value=thawed(pin.value))

    def source_version(self, source: str) -> str | None:
        """Return the current version of a data source, as the application reports it; None if unknown."""
        read = self.deployment.source_versions.get(source)
        try:
            version = read() if read is not None else None
        except Exception:  # noqa: BLE001 - with an unknown version, lookups are not cached
            _log.warning("the version of source %s cannot be read", source, exc_info=True)
            return None
        return version if isinstance(version, str) and version else None

    def record(self, key: Any) -> bytes | None:
        """Return the cached result of a lookup as JSON text; None if there is no cached result."""
        return self._records.get(key)

    def keep_record(self, key: Any, text: bytes) -> None:
        """Cache the result of a lookup."""
        with self._lock:
            _keep(self._records, key, text)

    def same_answer(self, key: Any, answer: Any) -> bool:
        """Return whether an answer to a call (`key`) is, or equals, the first answer to this call in this run."""
        this = digest(canonical(answer))
        with self._lock:
            first = self._answers.get(key)
            if first is None:
                self._add(self._answers, key, this, "answers")
        return first is None or first == this

    def keep_snapshot(self, snapshot: str, sources: Iterable[str]) -> None:
        """Remember a retrieval snapshot and the ids of the sources that a search found there."""
        with self._lock:
            _keep(self._snapshots, snapshot, self._snapshots.get(snapshot, frozenset()) | frozenset(sources))

    def knows_snapshot(self, snapshot: str) -> bool:
        """Return whether a search of this run returned this snapshot."""
        return snapshot in self._snapshots

    def snapshot_of(self, source: str) -> str | None:
        """Return the newest snapshot in which a search of this run found the source."""
        with self._lock:
            return next((name for name, sources in reversed(self._snapshots.items()) if source in sources), None)

    def mark(self, kind: str, name: str, markings: Iterable[str]) -> None:
        """Add markings to an object, which is identified by its type and id."""
        with self._lock:
            known = self._markings.get((kind, name), frozenset())
            self._add(self._markings, (kind, name), known | frozenset(markings), "marked objects")

    def markings_of(self, kind: str, name: str) -> frozenset[str]:
        """Return the markings of an object that this run or the application knows."""
        known = self._markings.get((kind, name), frozenset())
        read = self.deployment.markings_of
        try:
            markings = None if read is None else read(kind, name)
        except Exception:  # noqa: BLE001 - the markings count as unknown
            _log.warning("the markings of %s %s cannot be read", kind, name, exc_info=True)
            return known
        return known if markings is None or isinstance(markings, str) else known | frozenset(markings)

    def keep_staged(self, kind: str, payload_digest: str, action_id: str) -> None:
        """Remember a staged action, so that a later call of this run can commit the action."""
        with self._lock:
            self._add(self._staged, (kind, payload_digest), action_id, "staged actions")

    def staged_action(self, kind: str, payload_digest: str) -> str | None:
        """Return the id of the action with this kind and payload that was staged in this run, or None."""
        return self._staged.get((kind, payload_digest))

    def bind_staged(self, kind: str, payload_digest: str, call_digest: str) -> str | None:
        """Reserve the staged action for one call, and return its id; None if another call has reserved it.

        Without this reservation, two approvals could commit the same action.
        """
        with self._lock:
            action_id = self._staged.get((kind, payload_digest))
            if action_id is None or self._bound.setdefault(action_id, call_digest) != call_digest:
                return None
            return action_id

    def _add(self, entries: dict[Key, Value], key: Key, value: Value, plural: str) -> None:
        if self._is_closed:
            raise PatternFault(RunClosedError.code, "the run was closed to make room for others")
        if len(entries) >= MAX_ENTRIES and key not in entries:
            raise PatternFault("run.full", f"the run remembers {MAX_ENTRIES} {plural}, which is the maximum")
        entries[key] = value


class RunClosedError(StateError):
    """The run was closed to make room for other runs. The run's memory is lost, so the run cannot continue."""

    code: ClassVar[str] = "run.closed"


class RunsFullError(StateError):
    """No run can be opened, because the open runs and the list of closed runs are full."""

    code: ClassVar[str] = "run.too_many"


class Runs:
    """The open runs of all callers. Beyond `MAX_RUNS`, the least recently used run is closed (see `Run.close`)."""

    def __init__(self, deployment: Deployment | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.deployment = Deployment() if deployment is None else deployment
        self._clock = clock
        # Open and closed runs are both ordered by their last calls.
        self._runs: OrderedDict[bytes, Run] = OrderedDict()
        self._closed: OrderedDict[bytes, float] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, run_id: str | None, caller: str) -> Run:
        """Return the caller's open run with this id, or open a new run. Without an id, the run is for one call only.

        Raises `RunClosedError` if the run was closed to make room, and `RunsFullError` if no more runs fit.
        """
        if run_id is None:
            return Run(None, self.deployment)
        key = _key(run_id, caller)
        with self._lock:
            run = self._open_run(key, run_id)
        if run is None:
            # The sources are read without the lock, because reading may be slow. If two threads open the same run, the
            # run of the first thread is used.
            new = Run(run_id, self.deployment)
            with self._lock:
                run = self._open_run(key, run_id)
                if run is None:
                    self._make_room()
                    new.used_at = self._clock()
                    run = self._runs[key] = new
        return run

    def end(self, run_id: str, caller: str) -> None:
        """Delete an open or closed run and its memory. An unknown run is ignored."""
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
                f"run {run_id:.60} was closed to make room for others, and its memory is lost",
                hint="use another run_id, or end this run; end finished runs",
            )
        run = self._runs.get(key)
        if run is not None:
            self._runs.move_to_end(key)
            run.used_at = now
        return run

    def _make_room(self) -> None:
        while len(self._runs) >= MAX_RUNS:
            if len(self._closed) >= MAX_CLOSED_RUNS:
                raise RunsFullError(f"{MAX_RUNS} runs are open, and no more can be closed", hint="end finished runs")
            key, run = self._runs.popitem(last=False)
            if run.close():
                self._closed[key] = self._clock()


def pinned(source: str) -> Pin:
    """Return the version of a source that was fixed when the run started. Call this function in a tool.

    Args:
        source: a name in `Deployment.sources`.

    Raises:
        SourceUnavailableError: the source is not declared, could not be read, or no run is active.

    Examples:
        >>> def convert_currency(amount, target):
        ...     return round(amount * pinned("ecb").value[target], 2)
        >>> convert_currency(100, "USD")  # outside a run
        Traceback (most recent call last):
        pdp.patterns.exceptions.SourceUnavailableError: source_unavailable: ecb is not pinned, because ...
    """
    run = _RUN.get()
    if run is None:
        raise SourceUnavailableError(f"{source} is not pinned, because no run is active")
    return run.pin(source)


def within_run(run: Run) -> AbstractContextManager[Run]:
    """Return a context manager in which `pinned` reads from this run, also in threads and tasks that start there."""
    return set_within(_RUN, run)


def _keep(entries: OrderedDict[Key, Value], key: Key, value: Value) -> None:
    entries[key] = value
    entries.move_to_end(key)
    while len(entries) > MAX_ENTRIES:
        entries.popitem(last=False)


# The key is a hash, so that each closed run takes 16 bytes, however long its id and its caller's name are.
def _key(run_id: str, caller: str) -> bytes:
    return hashlib.sha256(canonical([caller, run_id])).digest()[:16]
