"""Speed of a replay and of a first run under an idempotency key: `python -m benchmarks.idempotency`.

A replay is a `begin` that finds the result of an earlier run in SQLite. Its peer is the least that it can take: the
same row read by Python's own sqlite3, on a connection that is open.
"""

import sqlite3
import sys
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

from benchmarks.measuring import medians
from pdp.proposal import Execution
from pdp.stores.keys import Fresh, IdempotencyKey, IdempotencyStore, Stored
from pdp.stores.memory import MemoryIdempotency
from pdp.stores.sql.database import Database
from pdp.stores.sql.keys import SqlIdempotency

REPLAY_MICROSECONDS = 300
"""What a replay from SQLite may take at the median."""

_REPLAY = "idempotency: replay from SQLite"
_PEER = "idempotency: the same row by sqlite3 alone"
_NOW = 1_782_900_000.0
_RESULT = {"wire_id": "w-1", "status": "accepted", "amount": 20000}
_KEYS = 1000


def _key(number: int) -> IdempotencyKey:
    return IdempotencyKey("https://id.example", "officer-123", "initiate_wire", "2", f"idm-{number}")


def _run(store: IdempotencyStore, number: int) -> None:
    begun = store.begin(_key(number), "sha256:a", ttl=86400.0, now=_NOW)
    if not isinstance(begun, Fresh):
        raise TypeError("the key is not fresh")
    store.finish(begun.record, Execution(result=_RESULT), now=_NOW)


def _replay(store: IdempotencyStore) -> Callable[[], object]:
    for number in range(_KEYS):
        _run(store, number)
    key = _key(_KEYS // 2)

    def replay() -> object:
        found = store.begin(key, "sha256:a", ttl=86400.0, now=_NOW)
        if not isinstance(found, Stored):
            raise TypeError("the result is not stored")
        return found

    return replay


def figures(calls: int) -> dict[str, float]:
    """Return the medians in microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        with Database.open(f"sqlite:///{path}", upgrade=True) as store:
            kept, plain = SqlIdempotency(store), sqlite3.connect(path)
            replay = _replay(kept)
            numbers = count(_KEYS)
            key_id = _key(_KEYS // 2).id
            found = medians(
                {
                    _REPLAY: replay,
                    _PEER: lambda: plain.execute("SELECT * FROM pdp_idempotency WHERE id = ?", (key_id,)).fetchone(),
                    "idempotency: replay from memory": _replay(MemoryIdempotency()),
                },
                calls,
            )
            # Apart from the others, as it waits for the disk.
            found |= medians({"idempotency: begin and finish, SQLite": lambda: _run(kept, next(numbers))}, calls // 10)
            plain.close()
    return found


def main() -> int:
    """Print the figures; 1 when a replay takes too long."""
    found = figures(4000)
    for name, microseconds in found.items():
        print(f"{name:45} {microseconds:9.1f} µs")
    print(f"{'replay / sqlite3 alone':45} {found[_REPLAY] / found[_PEER]:9.1f}")
    return 0 if found[_REPLAY] <= REPLAY_MICROSECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
