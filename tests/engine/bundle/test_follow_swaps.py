"""Eight callers get decisions while new bundles replace old bundles. No decision is lost or mixes two policies."""

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pdp.audit.chain import MemoryAudit
from pdp.decision import Decision
from pdp.engine.bundle.file import read_bundle
from pdp.engine.bundle.follow import FollowingEngine
from pdp.engine.bundle.trust import BundleTrust
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.workbench.bundles.publish import publish_bundle
from tests.support import PATIENCE
from tests.support.bundle_releases import lax_file, strict_file, usual_file, wire_body

CALLERS = 8
LAST = 4
FILES = (usual_file, lax_file, strict_file)
BODIES = (wire_body(20000), wire_body(47500), wire_body(20000, "hit"), b"{}")


@pytest.fixture(autouse=True)
def _busy_interpreter() -> Iterator[None]:
    """Switch threads every 10 µs instead of 5 ms, so that calls meet each step of a swap."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@cache
def released_file(release: int) -> bytes:
    """Return the bundle of a release: release 1 has the usual policy, 2 a lax policy, 3 a strict policy, and so on."""
    return FILES[(release - 1) % len(FILES)](release)


@cache
def expected() -> dict[tuple[int, bytes], dict[str, Any]]:
    """Return the decision of each release on each request, from an engine that only this function uses."""
    decisions: dict[tuple[int, bytes], dict[str, Any]] = {}
    for release in range(1, LAST + 1):
        with EmbeddedEngine(read_bundle(released_file(release))) as engine:
            decisions |= {(release, body): whole(engine.decide_body(body)) for body in BODIES}
    return decisions


def whole(decision: Decision) -> dict[str, Any]:
    return {name: value for name, value in decision.as_json().items() if name != "decision_id"}


def put(folder: Path, release: int) -> None:
    packed = released_file(release)
    publish_bundle(folder, packed, channel="stable", by="ann", why="x", audit=MemoryAudit(), keys=None)


def following(folder: Path) -> FollowingEngine:
    return FollowingEngine(folder / "channels/stable.tar.gz", BundleTrust(), every=3600)


class Caller:
    """One of eight callers, with the releases of its answers in order. `seen` has an event for each release."""

    def __init__(self, seen: Mapping[int, threading.Event | asyncio.Event]) -> None:
        self.seen = seen
        self.asked = 0
        self.releases: list[int] = []
        self.wrong: list[tuple[bytes, Any]] = []

    def next_body(self) -> bytes:
        self.asked += 1
        return BODIES[self.asked % len(BODIES)]

    def take(self, body: bytes, decision: Decision) -> None:
        if (decision.release or 0) not in self.releases[-1:]:
            self.seen[decision.release or 0].set()
        self.releases.append(decision.release or 0)
        if whole(decision) != expected().get((decision.release or 0, body)):
            self.wrong.append((body, decision))
            for event in self.seen.values():
                event.set()

    @property
    def done(self) -> bool:
        """Return whether this caller can stop, because it got a wrong answer or an answer of the last release."""
        return bool(self.wrong) or LAST in self.releases[-1:]


def check(callers: list[Caller]) -> None:
    assert [caller.wrong for caller in callers] == [[]] * CALLERS
    # Every request was answered, no caller saw an older release after a newer one, and all callers saw the last
    # release.
    assert [len(caller.releases) for caller in callers] == [caller.asked for caller in callers]
    assert [caller.releases == sorted(caller.releases) for caller in callers] == [True] * CALLERS
    assert [caller.releases[-1] for caller in callers] == [LAST] * CALLERS
    seen = Counter(release for caller in callers for release in caller.releases)
    assert set(seen) == set(range(1, LAST + 1)), seen


def test_replacing_bundles_loses_or_mixes_up_no_decision_of_concurrent_threads(tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    expected()
    put(folder, 1)
    seen = {release: threading.Event() for release in range(LAST + 1)}
    callers = [Caller(seen) for _ in range(CALLERS)]
    began = threading.Barrier(CALLERS + 1)

    def call(caller: Caller) -> None:
        body = caller.next_body()
        caller.take(body, engine.decide_body(body))
        began.wait(PATIENCE)
        while not caller.done:
            body = caller.next_body()
            caller.take(body, engine.decide_body(body))

    with following(folder) as engine:
        threads = [threading.Thread(target=call, args=(caller,)) for caller in callers]
        for thread in threads:
            thread.start()
        began.wait(PATIENCE)
        for release in range(2, LAST + 1):
            put(folder, release)
            assert engine.refresh().release == release
            # The next release is published only after the current release has decided a call.
            assert seen[release].wait(PATIENCE)
        for thread in threads:
            thread.join(PATIENCE)
    check(callers)
