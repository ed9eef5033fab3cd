"""Turns: one writer at a time for each SQLite file, among the threads of this process.

SQLite's own waiting is not fair: of many threads that write, one may wait until its time is over.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from pdp.stores.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator


class Turn:
    """What the writers of one file take turns by."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writer: int | None = None

    @contextmanager
    def taken(self, name: str) -> Iterator[None]:
        """Wait for the turn, and have it.

        Raises:
            StoreError: this thread has it already, and would wait for itself; `name` is the database's, for people.
        """
        me = threading.get_ident()
        if self._writer == me:
            raise StoreError(
                f"database {name}: this thread is within a transaction that writes to it",
                hint="end that one first, or write on its connection",
            )
        with self._lock:
            self._writer = me
            try:
                yield
            finally:
                self._writer = None


class Turns:
    """The turn of each place, the same for all who ask for it. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: WeakValueDictionary[Hashable, Turn] = WeakValueDictionary()

    def at(self, place: Hashable) -> Turn:
        """Return the turn at a place; it lasts as long as somebody keeps it."""
        with self._lock:
            turn = self._turns.get(place)
            if turn is None:
                turn = self._turns[place] = Turn()
            return turn
