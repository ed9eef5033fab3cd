"""What it costs 16 callers that bundles are swapped under them, within one run: `python -m benchmarks.swap`.

Threads and, apart from them, tasks of one event loop decide through a `FollowingEngine`, in turns with and without new
releases. Every decision has to be one of the release that it names; the slowest single decision is shown as well, as
information only, since it is mostly the machine's.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from pdp import MemoryAudit
from pdp.decision import Decision
from pdp.engine.bundle.follow import FollowingEngine
from pdp.engine.bundle.trust import BundleTrust
from pdp.workbench.bundles.publish import publish_bundle
from tests.support.bundle_releases import lax_file, usual_file, wire_body

CALLERS = 16
ROUNDS = 4
SECONDS = 2.0
PAUSE = 0.5
"""Seconds between two releases: far more often than anybody releases."""

VERDICTS = {0: "ALLOW", 1: "DENY"}
"""What the wire of a beneficiary who is not clear is: odd releases are the usual ones, even ones the lax."""


class Load:
    """What sixteen callers came to in one stretch of time."""

    def __init__(self) -> None:
        self.decisions = 0
        self.longest = 0.0
        self.wrong = 0

    def add(self, decisions: int, longest: float, wrong: int) -> None:
        self.decisions += decisions
        self.longest = max(self.longest, longest)
        self.wrong += wrong


def _wrong(decision: Decision) -> bool:
    return decision.release is None or decision.verdict != VERDICTS[decision.release % 2]


def by_threads(engine: FollowingEngine, body: bytes, ended: threading.Event, load: Load) -> None:
    """Decide in sixteen threads until `ended`."""
    adding = threading.Lock()

    def work() -> None:
        decisions, longest, wrong = 0, 0.0, 0
        while not ended.is_set():
            start = time.perf_counter()
            wrong += _wrong(engine.decide_body(body))
            longest = max(longest, time.perf_counter() - start)
            decisions += 1
        with adding:
            load.add(decisions, longest, wrong)

    workers = [threading.Thread(target=work) for _ in range(CALLERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def by_tasks(engine: FollowingEngine, body: bytes, ended: threading.Event, load: Load) -> None:
    """Decide in sixteen tasks of one event loop until `ended`."""

    async def work() -> None:
        decisions, longest, wrong = 0, 0.0, 0
        while not ended.is_set():
            start = time.perf_counter()
            wrong += _wrong(await engine.adecide_body(body))
            longest = max(longest, time.perf_counter() - start)
            decisions += 1
            await asyncio.sleep(0)
        load.add(decisions, longest, wrong)

    async def all_of_them() -> None:
        await asyncio.gather(*(work() for _ in range(CALLERS)))

    asyncio.run(all_of_them())


def put(folder: Path, release: int) -> None:
    """Publish a release."""
    packed = (usual_file if release % 2 else lax_file)(release)
    publish_bundle(folder, packed, channel="stable", by="bench", why="load", audit=MemoryAudit(), keys=None)


def stretch(decide: Callable[[threading.Event, Load], None], swap: Callable[[], object] | None) -> tuple[Load, float]:
    """Return what is decided in one stretch of time, and the seconds that it took."""
    ended, load = threading.Event(), Load()
    caller = threading.Thread(target=decide, args=(ended, load))
    start = time.perf_counter()
    caller.start()
    while time.perf_counter() < start + SECONDS:
        if swap is not None:
            swap()
        ended.wait(PAUSE)
    ended.set()
    caller.join()
    return load, time.perf_counter() - start


def measure(name: str, engine: FollowingEngine, decide: Callable[..., None], swap: Callable[[], object]) -> int:
    """Print the figures of one kind of callers, and return how many decisions were wrong."""
    body = wire_body(20000, "hit")
    rates: dict[bool, list[float]] = {False: [], True: []}
    longest: dict[bool, float] = {False: 0.0, True: 0.0}
    wrong = 0
    for _ in range(ROUNDS):
        for swapped, taken_rates in rates.items():
            found, seconds = stretch(
                lambda ended, load: decide(engine, body, ended, load), swap if swapped else None
            )  # fmt: skip
            taken_rates.append(found.decisions / seconds)
            longest[swapped] = max(longest[swapped], found.longest)
            wrong += found.wrong
    without, with_swaps = (statistics.median(rates[swapped]) for swapped in (False, True))
    print(f"{f'{CALLERS} {name}, without swaps, per s':45} {without:10.0f}")
    print(f"{f'{CALLERS} {name}, swapped again and again, per s':45} {with_swaps:10.0f}")
    print(f"{f'{name}: with / without':45} {with_swaps / without:10.2f}")
    for swapped, taken in longest.items():
        label = f"{name}: slowest decision, {'with' if swapped else 'without'} swaps, ms"
        print(f"{label:45} {taken * 1000:10.1f}")
    return wrong


def main() -> int:
    """Print the figures; 1 when a decision was wrong."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "repository"
        releases: Iterator[int] = count(1)
        put(folder, next(releases))
        with FollowingEngine(folder / "channels/stable.tar.gz", BundleTrust(), every=3600) as engine:

            def swap() -> None:
                put(folder, next(releases))
                engine.refresh()

            wrong = measure("threads", engine, by_threads, swap) + measure("tasks", engine, by_tasks, swap)
            swaps = engine.bundle.release - 1
    print(f"{'swaps':45} {swaps:10}")
    print(f"goal: no decision lost or wrong: {'reached' if wrong == 0 else f'missed, {wrong} were'}")
    return 0 if wrong == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
