"""The run ledger: the labels of each agent run, and the sources of the values that the run has read.

Results are not stored in clear: the ledger keeps keyed hashes of values. Labels that restrict a run are only added, so
concurrent writers cannot undo each other's labels. An expired run cannot start again without its labels.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple, Protocol

from pdp.errors import StateError, StoreFullError
from pdp.ledger.values import SHORTEST

MOST_VALUES: Final = 10_000  # The maximum number of values that a run remembers. A run that reaches it is full.
RESERVED: Final = 2_000  # The number of trusted values that a full run can still remember.
LIFETIME: Final = 24 * 3600.0  # A run expires after this many seconds without a call.
# The id of an expired run is rejected for this many seconds, and can then be used for a new run.
REMEMBERED: Final = 30 * LIFETIME
# The maximum number of runs in memory. Beyond it, the run that was unused for longest expires.
MOST_RUNS: Final = 100_000
# The maximum number of values of all runs in memory. Beyond it, the run that was unused for longest expires.
MOST_IN_MEMORY: Final = 2_000_000
# The maximum number of expired runs in memory. When it is reached, the ledger accepts no new runs.
MOST_EXPIRED: Final = 1_000_000
_ID_BYTES: Final = 16


class RunExpiredError(StateError):
    """The run had no call for a day, or the ledger in memory had no room for the run. The run's labels are lost."""

    code: ClassVar[str] = "flow.expired"

    def __init__(self) -> None:
        text = "the run has expired: it had no call for a day, or the ledger in memory had no room for it"
        super().__init__(text, hint="start the task again with a new conversation and a new run_id")


class Origin(NamedTuple):
    """Where a run first read a value: the value's label, and the tool and id of the call whose result contained it."""

    label: str
    tool: str
    call: str


class RunLabels(NamedTuple):
    """The labels of a run, which restrict its later calls."""

    untrusted: frozenset[str] = frozenset()  # The tools whose untrusted results the run has read.
    markings: frozenset[str] = frozenset()
    plan: tuple[str, ...] | None = None  # The tools of a plan that was pinned earlier in the run.
    full: bool = False  # The run has more values than the ledger remembers, so unknown values may be untrusted.

    @property
    def tainted(self) -> bool:
        """Whether the run has read untrusted text."""
        return bool(self.untrusted)

    def joined(self, other: RunLabels) -> RunLabels:
        """Return the labels of both objects. The plan of `other` counts only if `self` is untainted and has no plan."""
        if other == _NO_LABELS:
            return self
        plan = other.plan if self.plan is None and not self.tainted else self.plan
        untrusted, markings = self.untrusted | other.untrusted, self.markings | other.markings
        return RunLabels(untrusted, markings, plan, self.full or other.full)

    def beyond(self, known: RunLabels) -> RunLabels:
        """Return the labels that are not in `known`, so that only new labels are written."""
        plan = self.plan if known.plan is None else None
        return RunLabels(self.untrusted - known.untrusted, self.markings - known.markings, plan, self.full)


_NO_LABELS: Final = RunLabels()


class RunView(NamedTuple):
    """The labels of a run, and the sources of the values whose ids were requested."""

    labels: RunLabels
    sources: Mapping[str, Origin]


class LedgerStore(Protocol):
    """A thread-safe store of runs, keyed by their ids (`run_of`). Each method is one atomic step.

    Times are seconds since 1970. If a clock goes back, the later time counts. Each member may raise `StoreError`.
    """

    blocking: bool  # Whether the methods wait for a disk or a network.

    @property
    def key(self) -> bytes:
        """The key with which the ids of runs and values are hashed."""

    def read(self, run: str, ids: Collection[str], now: float) -> RunView:
        """Return a run's labels and sources; an unknown run has none. Raise `RunExpiredError` for an expired run."""

    def write(self, run: str, labels: RunLabels, sources: Mapping[str, Origin], now: float) -> None:
        """Add labels and value sources to a run. A value that the run already has keeps its first source.

        A run without room for all sources becomes full, and `overfull` selects the sources to keep. Pass only
        labels that the run may lack, because durable writing takes time. Raises `RunExpiredError` for an expired run,
        and `StoreFullError` if the store holds its maximum number of runs.
        """

    def end(self, run: str) -> None:
        """Delete a run with its labels and sources."""

    def prune(self, now: float) -> int:
        """Delete the data of expired runs, and later their ids. Return how many runs expired. A new run prunes too."""


class RunIds:
    """Computes the ids of one run's values: keyed hashes of 32 hexadecimal digits. Immutable and thread-safe."""

    __slots__ = ("_several", "_value")

    def __init__(self, key: bytes, run: str) -> None:
        self._value = hashlib.blake2b(run.encode(), key=key, digest_size=_ID_BYTES)
        self._several = hashlib.blake2b(run.encode(), key=key, digest_size=_ID_BYTES, person=b"several")

    def known_as(self, value: str, label: str) -> str:
        """Return the id of a value in a result. Short values occur in many results, so their ids include the label."""
        if len(value) < SHORTEST:
            return self.of(value, label)
        hashed = self._value.copy()
        hashed.update(value.encode(errors="surrogatepass"))
        return hashed.hexdigest()

    def of(self, *parts: str) -> str:
        """Return one id for several texts together."""
        hashed = self._several.copy()
        # `ascii` is used because it gives the same text in all releases of Python, and a different text for each tuple.
        hashed.update(ascii(parts).encode())
        return hashed.hexdigest()


def run_of(key: bytes, caller: str, run_id: str) -> str:
    """Return the id of a run in the ledger. The id depends on the caller, so two callers can use the same `run_id`."""
    return RunIds(key, "").of(caller, run_id)


@dataclass(slots=True)
class _MemoryRun:
    used_at: float
    labels: RunLabels = field(default_factory=RunLabels)
    sources: dict[str, Origin] = field(default_factory=dict)


class MemoryLedger:
    """A `LedgerStore` in memory. Beyond `MOST_RUNS` or `MOST_IN_MEMORY`, the least recently used run expires."""

    blocking = False

    def __init__(self) -> None:
        self.key = secrets.token_bytes(32)
        self._lock = threading.RLock()
        self._runs: OrderedDict[str, _MemoryRun] = OrderedDict()  # The runs are ordered by their last use.
        self._expired: dict[str, float] = {}  # The time when each expired run was last used, ordered by expiry.
        self._values = 0

    def read(self, run: str, ids: Collection[str], now: float) -> RunView:
        with self._lock:
            record = self._used(run, now)
            if record is None:
                return RunView(RunLabels(), {})
            sources = record.sources
            return RunView(record.labels, {name: sources[name] for name in ids if name in sources})

    def write(self, run: str, labels: RunLabels, sources: Mapping[str, Origin], now: float) -> None:
        with self._lock:
            record = self._used(run, now)
            if record is None:
                self.prune(now)
                if len(self._expired) >= MOST_EXPIRED:
                    raise StoreFullError(
                        f"the ledger in memory is full: it keeps {MOST_EXPIRED} expired runs",
                        hint="end runs, or use a database",
                    )
                record = self._runs[run] = _MemoryRun(now)
            new = {name: source for name, source in sources.items() if name not in record.sources}
            if len(record.sources) + len(new) > MOST_VALUES:
                labels, new = overfull(len(record.sources), labels, new)
            record.sources.update(new)
            self._values += len(new)
            record.labels = record.labels.joined(labels)
            while self._values > MOST_IN_MEMORY or len(self._runs) > MOST_RUNS:
                self._end_oldest()

    def _used(self, run: str, now: float) -> _MemoryRun | None:
        record = self._runs.get(run)
        if record is None:
            if run in self._expired:
                raise RunExpiredError
            return None
        if record.used_at + LIFETIME <= now:
            raise RunExpiredError
        record.used_at = max(record.used_at, now)
        self._runs.move_to_end(run)
        return record

    def end(self, run: str) -> None:
        with self._lock:
            self._expired.pop(run, None)
            record = self._runs.pop(run, None)
            self._values -= 0 if record is None else len(record.sources)

    def prune(self, now: float) -> int:
        with self._lock:
            count = 0
            while self._runs and next(iter(self._runs.values())).used_at + LIFETIME <= now:
                self._end_oldest()
                count += 1
            while self._expired and next(iter(self._expired.values())) + REMEMBERED <= now:
                del self._expired[next(iter(self._expired))]
            return count

    def _end_oldest(self) -> None:
        run, record = self._runs.popitem(last=False)
        self._expired[run] = record.used_at
        self._values -= len(record.sources)


def overfull(count: int, labels: RunLabels, sources: Mapping[str, Origin]) -> tuple[RunLabels, dict[str, Origin]]:
    """Return the labels and sources to write to a run that has `count` values and no room for all of `sources`.

    In a full run, unknown values count as untrusted, so the sources of untrusted values need not be stored.
    """
    kept = {name: source for name, source in sources.items() if source.label != "untrusted"}
    return labels._replace(full=True), kept if count + len(kept) <= MOST_VALUES + RESERVED else {}
