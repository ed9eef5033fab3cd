"""A gate between forking and the use of files that a child must not inherit in use.

SQLite keeps the locks of its process in a table of its own. A child gets a copy of the table, without the locks: what
another thread held at the fork stays held in the child for ever.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

FORK_SECONDS: Final = 10.0
"""How long a fork waits for what is under way, before it goes on nevertheless."""


class ForkGate:
    """Uses of places go through while nothing forks; a fork waits for those under way. Safe to share between threads.

    A thread that is inside goes in again without waiting, and waits for no use of its own when it forks.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[int, list[Hashable]] = {}
        self._forking: int | None = None

    @contextmanager
    def use(self, place: Hashable) -> Iterator[None]:
        """Use a place: no other thread forks meanwhile, unless it has waited for too long."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._forking in {None, me} or me in self._inside)
            self._inside.setdefault(me, []).append(place)
        try:
            yield
        finally:
            with self._changed:
                self._inside[me].remove(place)
                if not self._inside[me]:
                    del self._inside[me]
                self._changed.notify_all()

    def close(self) -> None:
        """Let nobody in any more, and wait at most `FORK_SECONDS` for the other threads that are inside."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._forking is None, FORK_SECONDS)
            self._forking = me
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._inside.keys() <= {me}, FORK_SECONDS)

    def open(self) -> None:
        """Let everybody in again."""
        with self._changed:
            self._forking = None
            self._changed.notify_all()

    def open_in_child(self) -> set[Hashable]:
        """Begin anew in a forked child, and return the places that were in use at the fork."""
        used = {place for places in self._inside.values() for place in places}
        # The condition, too: another thread of the parent may have held it.
        self._begin()
        return used
