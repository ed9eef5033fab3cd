"""What is remembered of the runs of agents: the labels that a run carries, and where values came from.

Nothing of a result is stored in clear: a value is a keyed hash. What protects is only added to, so that of several
writers none undoes what another wrote. A run whose time is over is not begun anew without what it knew.
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

MOST_VALUES: Final = 10_000  # how many values a run remembers; one that has more is full
RESERVED: Final = 2_000  # how many more a full run remembers of those that are no stranger's
LIFETIME: Final = 24 * 3600.0  # seconds without a call after which a run has expired
REMEMBERED: Final = 30 * LIFETIME  # seconds for which it is known that a run has expired; after that, its id is free
MOST_RUNS: Final = 100_000  # how many runs a ledger in memory remembers; beyond it, the least recently used one is over
MOST_IN_MEMORY: Final = 2_000_000  # how many values all runs of a ledger in memory remember together; likewise
MOST_OVER: Final = 1_000_000  # of how many runs a ledger in memory knows that they are over; then it takes no new ones
_ID_BYTES: Final = 16


class RunExpiredError(StateError):
    """Nobody called in the run for a day, or there was no room for it: what it had seen is forgotten."""

    code: ClassVar[str] = "flow.expired"

    def __init__(self) -> None:
        words = "the run is over: nobody called in it for a day, or a ledger in memory had no room for it"
        super().__init__(words, hint="begin the task again, in a new conversation and under a new run_id")


class Origin(NamedTuple):
    """Where a value came from first: its label, and the call whose result brought it in."""

    label: str
    tool: str
    call: str


class RunLabels(NamedTuple):
    """What a run carries: whose untrusted results it has read, their markings, the plan that was pinned before that.

    `full`: it has brought in more values than are remembered, so a value that is not known may be a stranger's.
    """

    untrusted: frozenset[str] = frozenset()
    markings: frozenset[str] = frozenset()
    plan: tuple[str, ...] | None = None
    full: bool = False

    @property
    def tainted(self) -> bool:
        """Whether a stranger's text was read."""
        return bool(self.untrusted)

    def joined(self, other: RunLabels) -> RunLabels:
        """Return both: labels only grow. The plan of this one counts, and none is pinned once the run is tainted."""
        if other == _NOTHING:
            return self
        plan = other.plan if self.plan is None and not self.tainted else self.plan
        untrusted, markings = self.untrusted | other.untrusted, self.markings | other.markings
        return RunLabels(untrusted, markings, plan, self.full or other.full)

    def beyond(self, known: RunLabels) -> RunLabels:
        """Return what of these a run does not carry that is known to carry those."""
        plan = self.plan if known.plan is None else None
        return RunLabels(self.untrusted - known.untrusted, self.markings - known.markings, plan, self.full)


_NOTHING: Final = RunLabels()


class RunView(NamedTuple):
    """What a call needs to know of its run: its labels, and the sources of the values asked for, by their ids."""

    labels: RunLabels
    sources: Mapping[str, Origin]


class LedgerStore(Protocol):
    """A store of runs, each by its id (`run_of`). Safe to share between threads; each method is one atomic step.

    `blocking`: whether its methods wait for a disk or a network. Times are seconds since 1970; where a clock goes
    back, what was later holds. Each member raises StoreError where the store cannot be used.
    """

    blocking: bool

    @property
    def key(self) -> bytes:
        """What ids are hashed with."""

    def read(self, run: str, ids: Collection[str], now: float) -> RunView:
        """Return what is known of a run; a run that is not known carries nothing.

        RunExpiredError: no call goes on in it.
        """

    def write(self, run: str, labels: RunLabels, sources: Mapping[str, Origin], now: float) -> None:
        """Add labels and sources to a run; a value that is known keeps the source that it had first.

        Where there is no room for all sources, the run is full, and `overfull` says which are left out. What is written
        together with labels outlives a power failure where the store does; that costs time, so give those alone that
        the run may not carry.

        RunExpiredError: its time is over; StoreFullError: the store holds as many runs as it can.
        """

    def end(self, run: str) -> None:
        """Forget a run and all that it knows."""

    def prune(self, now: float) -> int:
        """Forget what runs that have expired knew, and return of how many; later, forget the runs themselves.

        Each new run does so for some: that nobody prunes lets nothing pile up.
        """


class RunIds:
    """Names the values of one run by keyed hashes, as 32 hexadecimal digits. Immutable, safe to share."""

    __slots__ = ("_several", "_value")

    def __init__(self, key: bytes, run: str) -> None:
        self._value = hashlib.blake2b(run.encode(), key=key, digest_size=_ID_BYTES)
        self._several = hashlib.blake2b(run.encode(), key=key, digest_size=_ID_BYTES, person=b"several")

    def known_as(self, value: str, label: str) -> str:
        """Return the id of a value that a result brought in.

        What is short stands everywhere: it has every source that it had, and not the first one alone.
        """
        if len(value) < SHORTEST:
            return self.of(value, label)
        hashed = self._value.copy()
        hashed.update(value.encode(errors="surrogatepass"))
        return hashed.hexdigest()

    def of(self, *parts: str) -> str:
        """Return the id of several texts together."""
        hashed = self._several.copy()
        # The same in all releases of Python, and of no two lists of parts.
        hashed.update(ascii(parts).encode())
        return hashed.hexdigest()


def run_of(key: bytes, caller: str, run_id: str) -> str:
    """Return the id of a run: equal `run_id` of two callers, or of two tenants, have nothing in common."""
    return RunIds(key, "").of(caller, run_id)


@dataclass(slots=True)
class _MemoryRun:
    used_at: float
    labels: RunLabels = field(default_factory=RunLabels)
    sources: dict[str, Origin] = field(default_factory=dict)


class MemoryLedger:
    """Runs in memory, at most 100,000 of them with 2,000,000 values; a `LedgerStore`.

    Where there are more, the least recently used one is over. Whether an id is that of a run that is over is known for
    a month: what a run had seen is never lost while the run goes on.
    """

    blocking = False

    def __init__(self) -> None:
        self.key = secrets.token_bytes(32)
        self._lock = threading.RLock()
        self._runs: OrderedDict[str, _MemoryRun] = OrderedDict()  # in the order of their last use
        self._over: dict[str, float] = {}  # when they were last used; in the order of being over
        self._values = 0

    def read(self, run: str, ids: Collection[str], now: float) -> RunView:
        with self._lock:
            known = self._used(run, now)
            if known is None:
                return RunView(RunLabels(), {})
            sources = known.sources
            return RunView(known.labels, {name: sources[name] for name in ids if name in sources})

    def write(self, run: str, labels: RunLabels, sources: Mapping[str, Origin], now: float) -> None:
        with self._lock:
            known = self._used(run, now)
            if known is None:
                self.prune(now)
                if len(self._over) >= MOST_OVER:
                    raise StoreFullError(
                        f"{MOST_OVER} runs are over, and in memory", hint="end runs, or use a database"
                    )
                known = self._runs[run] = _MemoryRun(now)
            new = {name: source for name, source in sources.items() if name not in known.sources}
            if len(known.sources) + len(new) > MOST_VALUES:
                labels, new = overfull(len(known.sources), labels, new)
            known.sources.update(new)
            self._values += len(new)
            known.labels = known.labels.joined(labels)
            while self._values > MOST_IN_MEMORY or len(self._runs) > MOST_RUNS:
                self._end_oldest()

    def _used(self, run: str, now: float) -> _MemoryRun | None:
        known = self._runs.get(run)
        if known is None:
            if run in self._over:
                raise RunExpiredError
            return None
        if known.used_at + LIFETIME <= now:
            raise RunExpiredError
        known.used_at = max(known.used_at, now)
        self._runs.move_to_end(run)
        return known

    def end(self, run: str) -> None:
        with self._lock:
            self._over.pop(run, None)
            known = self._runs.pop(run, None)
            self._values -= 0 if known is None else len(known.sources)

    def prune(self, now: float) -> int:
        with self._lock:
            count = 0
            while self._runs and next(iter(self._runs.values())).used_at + LIFETIME <= now:
                self._end_oldest()
                count += 1
            while self._over and next(iter(self._over.values())) + REMEMBERED <= now:
                del self._over[next(iter(self._over))]
            return count

    def _end_oldest(self) -> None:
        run, known = self._runs.popitem(last=False)
        self._over[run] = known.used_at
        self._values -= len(known.sources)


def overfull(count: int, labels: RunLabels, sources: Mapping[str, Origin]) -> tuple[RunLabels, dict[str, Origin]]:
    """Return what is written to a run of `count` values that has no room for all of these sources.

    A value of a stranger counts as one in a full run, known or not: only the others need room.
    """
    kept = {name: source for name, source in sources.items() if source.label != "untrusted"}
    return labels._replace(full=True), kept if count + len(kept) <= MOST_VALUES + RESERVED else {}
