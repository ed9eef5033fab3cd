"""Time cases alternately and take medians, so that a slow moment of the machine affects all of them equally."""

import statistics
import threading
import time
from collections.abc import Callable, Mapping

_ROUNDS = 20


def medians(
    cases: Mapping[str, Callable[[], object]], calls: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Return the median time of each case in microseconds; the cases alternate."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for case in cases.values():
        for _ in range(10):
            case()
    for _ in range(_ROUNDS):
        for name, case in cases.items():
            taken = times[name]
            for _ in range(max(1, calls // _ROUNDS)):
                start = clock()
                case()
                taken.append(clock() - start)
    return {name: statistics.median(taken) * 1e6 for name, taken in times.items()}


def throughput(case: Callable[[], object], threads: int, seconds: float) -> float:
    """Return how many calls of `case` a second this many threads make together."""
    stop = threading.Event()
    counts = [0] * threads

    def work(index: int) -> None:
        count = 0
        while not stop.is_set():
            case()
            count += 1
        counts[index] = count

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    time.sleep(seconds)
    stop.set()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - start)
