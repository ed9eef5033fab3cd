"""Measure the life of a long audit stream: `python -m benchmarks.stream`, or with `--quick` on a twentieth.

SQLite and PostgreSQL get 1,000,000 events of the payments example. `pdp audit verify` has to check 25,000 a second of
processor time. `pdp audit rotate` has to move half of them to files within 2 minutes, while this process appends, and
no event may be lost.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from benchmarks.console import examples
from pdp.clock import to_milliseconds
from pdp.stores.sql.audit import SqlAudit
from pdp.stores.sql.database import Database
from tests.support.postgres import made_database

_VERIFIED: Final = 25_000  # events a second
_SECONDS: Final = 120.0
_KEY: Final = "k" * 32
_START: Final = 1_780_000_000.0
_BATCH: Final = 2000


def run(*arguments: object) -> tuple[float, float, str]:
    """Run a command of `pdp`. Return how long it takes, how much processor time it takes, and what it prints."""
    start, before = time.perf_counter(), os.times()
    command = [sys.executable, "-m", "pdp", *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PDP_AUDIT_KEY": _KEY}
    )
    if done.returncode:
        sys.exit(f"{command}: {done.stdout} {done.stderr}")
    now = os.times()
    used = now.children_user + now.children_system - before.children_user - before.children_system
    return time.perf_counter() - start, used, done.stdout


class Writer(threading.Thread):
    """Appends events, one after another, until `stop` is set. `slowest` is the longest time that one takes."""

    def __init__(self, log: SqlAudit, event: dict[str, Any]) -> None:
        super().__init__()
        self.stop = threading.Event()
        self.count, self.slowest = 0, 0.0
        self._log, self._event = log, event

    def run(self) -> None:
        while not self.stop.is_set():
            start = time.perf_counter()
            self._log.append({**self._event, "time": to_milliseconds(time.time())})  # type: ignore[typeddict-item]
            self.slowest = max(self.slowest, time.perf_counter() - start)
            self.count += 1


def measure(kind: str, events: int, place: Path) -> bool:
    """Measure one kind of database, print the figures, and return whether they reach the bounds."""
    folder = place / "archive"
    folder.mkdir()
    url = made_database(kind, place)
    chosen = examples()[0]
    event = {name: value for name, value in chosen[0].items() if name not in ("seq", "hash", "prev_hash")}
    with Database.open(url) as database, closing(SqlAudit(database, _KEY.encode())) as log:
        for first in range(0, events, _BATCH):
            times = [to_milliseconds(_START + number) for number in range(first, min(events, first + _BATCH))]
            for waiting in [log.offer({**event, "time": when}) for when in times]:  # type: ignore[typeddict-item]
                waiting.result()
        verified, used, _ = run("audit", "verify", url)
        writer = Writer(log, event)
        writer.start()
        rotated, took, _ = run("audit", "rotate", url, "--to", folder, "--before", to_milliseconds(_START + events / 2))
        writer.stop.set()
        writer.join()
        files = sorted(folder.iterdir())
        again, _, answer = run("audit", "verify", *files, url)
        whole = log.last_seq() + 1
    size = sum(file.stat().st_size for file in files)
    is_whole = f"intact: events 0 to {whole - 1}\n" in answer and whole == events + writer.count + len(files)
    speed = events / used
    for is_reached, text in (
        (speed >= _VERIFIED, f"verify: {speed:,.0f} events/s of processor time, {events / verified:,.0f} elapsed"),
        (rotated <= _SECONDS, f"rotate {events // 2:,} events: {rotated:.1f} s, {took:.1f} s of processor time"),
        (True, f"{len(files)} files of {size:,} bytes together"),
        (is_whole, f"{writer.count:,} events appended meanwhile, none lost; slowest {writer.slowest * 1000:.0f} ms"),
        (True, f"verify files and database, {whole:,} events: {whole / again:,.0f} events/s elapsed"),
    ):
        print(f"{'reached' if is_reached else 'MISSED':8} {kind:10} {text}", flush=True)
    return speed >= _VERIFIED and rotated <= _SECONDS and is_whole


def main() -> int:
    """Measure, print the figures, and return 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description="Verification and rotation of a long audit stream.")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="50,000 events")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), help="only this database")
    chosen = parser.parse_args()
    reached = True
    for kind in [chosen.database] if chosen.database else ("sqlite", "postgresql"):
        with tempfile.TemporaryDirectory() as place:
            reached &= measure(kind, 50_000 if chosen.quick else chosen.events, Path(place))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
