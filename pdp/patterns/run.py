"""What one run remembers: cached lookups, pinned sources, snapshots, markings, what was staged. It ends with the run.

Nothing that protects is forgotten while a run goes on: where there is no room for it, the call is refused. What only
saves work (records) or whose absence refuses (snapshots) is kept as long as there is room.

Source: tool pattern library, 9.3 (patterns 2, 3, 8, 9 and 10) and 9.4: no state across runs in tool memory.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pdp.json import canonical, digest
from pdp.patterns.deployment import read_pins
from pdp.patterns.exceptions import PatternFault, SourceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pdp.patterns.deployment import Deployment, Pin

_log = logging.getLogger("pdp.patterns")

MOST_ENTRIES: Final = 10_000
"""So many things of one sort a run remembers. Beyond them the oldest goes, or what protects is refused: `run.full`."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class Run:
    """One run of an agent. Made by `Runs`; safe to share between threads.

    Attributes:
        run_id: the session's, or None for a call that belongs to no run: then nothing outlives the call.
        deployment: what the application told all runs.
        pins: by source; taken when the run starts.
    """

    def __init__(self, run_id: str | None, deployment: Deployment, pins: Mapping[str, Pin] | None = None) -> None:
        self.run_id = run_id
        self.deployment = deployment
        self.pins: Mapping[str, Pin] = MappingProxyType(read_pins(deployment) if pins is None else dict(pins))
        self._lock = threading.Lock()
        self._records: OrderedDict[Any, bytes] = OrderedDict()
        self._answers: dict[Any, str] = {}
        self._snapshots: OrderedDict[str, frozenset[str]] = OrderedDict()
        self._markings: dict[tuple[str, str], frozenset[str]] = {}
        self._staged: dict[tuple[str, str], str] = {}
        self._bound: dict[str, str] = {}

    def pin(self, source: str) -> Pin:
        """Return the pin of a source.

        Raises:
            SourceUnavailableError: no such source is declared, or it could not be read when the run started.
        """
        pin = self.pins.get(source)
        if pin is None:
            raise SourceUnavailableError(f"{source} is not pinned in this run")
        return pin

    def recorded_pins(self) -> dict[str, Any]:
        """Return `{source: {version, value}}`, from which `Runs.open(..., pins=...)` replays the run."""
        return {source: {"version": pin.version, "value": pin.value} for source, pin in self.pins.items()}

    def source_version(self, source: str) -> str | None:
        """Return the version that a system of record has now, as the application tells; None when it is not known."""
        ask = self.deployment.source_versions.get(source)
        try:
            version = ask() if ask is not None else None
        except Exception:  # noqa: BLE001 - then it is not known, and nothing is answered from what was kept
            _log.warning("the version of source %s cannot be told", source, exc_info=True)
            return None
        return version if isinstance(version, str) and version else None

    def record(self, key: Any) -> bytes | None:
        """Return the cached result of a lookup, as JSON text."""
        with self._lock:
            return self._records.get(key)

    def keep_record(self, key: Any, text: bytes) -> None:
        """Cache a lookup's result."""
        with self._lock:
            _keep(self._records, key, text)

    def same_answer(self, key: Any, answer: Any) -> bool:
        """Return whether `key` has been answered so before in this run, or not at all.

        Raises:
            PatternFault: `run.full`.
        """
        told = digest(canonical(answer))
        with self._lock:
            first = self._answers.get(key)
            if first is None:
                _add(self._answers, key, told, "answers")
        return first is None or first == told

    def keep_snapshot(self, snapshot: str, sources: Iterable[str]) -> None:
        """Remember a retrieval snapshot and the ids of the sources found in it."""
        with self._lock:
            _keep(self._snapshots, snapshot, self._snapshots.get(snapshot, frozenset()) | frozenset(sources))

    def knows_snapshot(self, snapshot: str) -> bool:
        """Return whether this run has retrieved from that snapshot."""
        with self._lock:
            return snapshot in self._snapshots

    def snapshot_of(self, source: str) -> str | None:
        """Return the newest snapshot in which this run found the source."""
        with self._lock:
            return next((name for name, found in reversed(self._snapshots.items()) if source in found), None)

    def mark(self, kind: str, name: str, markings: Iterable[str]) -> None:
        """Remember the markings of an object, by its type and id; they are added to those that it has.

        Raises:
            PatternFault: `run.full`.
        """
        with self._lock:
            known = self._markings.get((kind, name), frozenset())
            _add(self._markings, (kind, name), known | frozenset(markings), "marked objects")

    def check_markable(self, kind: str, name: str) -> None:
        """Check that markings of this object could be remembered; for use before a tool runs.

        Raises:
            PatternFault: `run.full`.
        """
        with self._lock:
            _check_room(self._markings, (kind, name), "marked objects")

    def markings_of(self, kind: str, name: str) -> frozenset[str] | None:
        """Return the markings of an object: those of this run and the application's; None when nobody knows any."""
        with self._lock:
            known = self._markings.get((kind, name))
        ask = self.deployment.markings_of
        try:
            told = None if ask is None else ask(kind, name)
        except Exception:  # noqa: BLE001 - then they are not known
            _log.warning("the markings of %s %s cannot be told", kind, name, exc_info=True)
            return None
        if told is None or isinstance(told, str):
            return known
        return (known or frozenset()) | frozenset(told)

    def keep_staged(self, kind: str, payload_digest: str, action_id: str) -> None:
        """Remember that an action was staged.

        Raises:
            PatternFault: `run.full`.
        """
        with self._lock:
            _add(self._staged, (kind, payload_digest), action_id, "staged actions")

    def staged_action(self, kind: str, payload_digest: str) -> str | None:
        """Return the id of the action of this kind and payload that was staged in this run; None when none was."""
        with self._lock:
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


def _check_room(kept: Mapping[Key, Any], key: Key, what: str) -> None:
    if len(kept) >= MOST_ENTRIES and key not in kept:
        raise PatternFault("run.full", f"the run remembers {MOST_ENTRIES} {what}, and has no room for more")


def _add(kept: dict[Key, Value], key: Key, value: Value, what: str) -> None:
    _check_room(kept, key, what)
    kept[key] = value


def _keep(kept: OrderedDict[Key, Value], key: Key, value: Value) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > MOST_ENTRIES:
        kept.popitem(last=False)
