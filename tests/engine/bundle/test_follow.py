"""An engine and OPA's own bundle plugin follow a channel: new bundles are swapped in, bad ones are not."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from pdp.audit.file import MemoryAudit
from pdp.engine.bundle.events import audited
from pdp.engine.bundle.file import read_bundle
from pdp.engine.bundle.follow import BundleHealth, WatchingEngine
from pdp.engine.bundle.repository_reader import FolderReader, HttpReader
from pdp.engine.bundle.trust import BundleEvent, BundleTrust, ReleaseFloor
from pdp.engine.opa.engine import SidecarEngine
from pdp.engine.protocol import Engine
from pdp.errors import BundleError, EngineError, UsageError
from pdp.json import canonical
from pdp.workbench.bundles.publish import publish, rollback
from tests.support.bundle_releases import bundle, key, tiny
from tests.support.bundle_server import BundleServer, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.bundle_server import Fault

NEVER = 3600.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "repository"


@pytest.fixture
def server(folder: Path) -> Iterator[BundleServer]:
    released(folder, bundle(1))
    with serving(folder) as server:
        yield server


def released(folder: Path, packed: bytes, channel: Any = "stable", **more: Any) -> None:
    publish(folder, packed, channel=channel, by="ann", why="x", audit=MemoryAudit(), keys=None, **more)


def trust(**more: Any) -> BundleTrust:
    return BundleTrust([key().public], **more)


def watching(repository: Any, **options: Any) -> WatchingEngine:
    """An engine that looks when it is told to, unless `every` says otherwise."""
    return WatchingEngine(repository, options.pop("trust", None) or trust(), **{"every": NEVER} | options)


def decided_by(engine: Engine) -> int | None:
    """The release that decides now."""
    return engine.decide_body(b"{}").release


def codes(engine: Engine) -> list[str]:
    return [reason.code for reason in engine.decide_body(b"{}").reasons]


# Following


@pytest.mark.parametrize("over_http", [False, True])
def test_a_new_release_takes_the_old_ones_place(folder: Path, server: BundleServer, over_http: bool) -> None:
    with watching(server.url if over_http else folder) as engine:
        before = (decided_by(engine), engine.health().state)
        released(folder, bundle(2), "canary")
        still = (engine.refresh().release, decided_by(engine))
        released(folder, bundle(2))
        unasked = decided_by(engine)
        health = engine.refresh()

        assert (before, still, unasked) == ((1, "current"), (1, 1), 1)
        assert decided_by(engine) == 2
        assert health == BundleHealth(
            state="current", revision=read_bundle(bundle(2)).revision, release=2, digest=engine.bundle.digest,
            age=health.age, error=None, message=None, refused=None,
        )  # fmt: skip
        assert health.age < 60


def test_an_engine_may_follow_the_canary(folder: Path) -> None:
    released(folder, bundle(1))
    released(folder, bundle(2), "canary")

    with watching(folder, channel="canary") as canary, watching(folder) as stable:
        assert (decided_by(canary), decided_by(stable)) == (2, 1)


def test_a_rollback_reaches_engines_that_never_go_back(folder: Path, tmp_path: Path) -> None:
    released(folder, bundle(1, content=1))
    released(folder, bundle(2, content=2))
    floor = ReleaseFloor(tmp_path / "newest")
    with watching(folder, trust=trust(floor=floor)) as engine:
        rollback(folder, channel="stable", by="bob", why="bad", audit=MemoryAudit(), signing_key=key())
        health = engine.refresh()

    assert (health.state, health.release) == ("current", 3)
    assert health.revision == read_bundle(bundle(1, content=1)).revision


def test_it_looks_by_itself(folder: Path, server: BundleServer) -> None:
    with watching(server.url, every=0.05) as engine:
        # Three looks from now on, the last of which has not changed: what the second one brought is in its place.
        released(folder, bundle(2))
        assert server.wait_for("/index.json", 304, times=3)

        assert decided_by(engine) == 2
        assert [status for path, status in server.asked if path.startswith("/bundles/")] == [200, 200]


def test_the_thread_ends_with_the_engine(folder: Path) -> None:
    released(folder, bundle(1))
    closed = watching(folder, every=0.01)
    forgotten = watching(folder, every=0.01)
    threads = [thread for thread in threading.enumerate() if thread.name == "pdp-bundles"]
    closed.close()
    del closed, forgotten
    gc.collect()

    for thread in threads:
        thread.join(20)
    assert [thread.is_alive() for thread in threads] == [False, False]


def test_a_closed_engine_decides_nothing(folder: Path) -> None:
    released(folder, bundle(1))
    engine = watching(folder)
    engine.close()

    assert codes(engine) == ["engine.unavailable"]
    released(folder, bundle(2))
    engine.refresh()
    assert codes(engine) == ["engine.unavailable"]


def test_a_forked_child_goes_on_looking(folder: Path, server: BundleServer) -> None:
    with watching(server.url, every=0.05) as engine:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                os.read(reading, 1)
                end = time.monotonic() + 20
                while decided_by(engine) != 2 and time.monotonic() < end:
                    time.sleep(0.01)
                os._exit(decided_by(engine) or 0)
            os._exit(99)
        released(folder, bundle(2))
        os.write(writing, b"x")

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
        os.close(reading)
        os.close(writing)


# What is bad


@pytest.mark.parametrize(
    ("bad", "code", "message"),
    [
        (lambda: bundle(2, signed=None), "bundle.invalid", "not signed"),
        (
            lambda: bundle(2, signed="two"),
            "bundle.invalid",
            f"signed with the key {key('two').public.id}, not with {key().public.id}",
        ),
        (lambda: tiny(2, signed="one"), "bundle.invalid", ""),
    ],
    ids=["unsigned", "another key", "no policy"],
)  # fmt: skip
def test_the_last_good_one_is_kept_and_health_says_so(
    folder: Path, server: BundleServer, bad: Callable[[], bytes], code: str, message: str
) -> None:
    told: list[BundleEvent] = []
    with watching(server.url, trust=trust(report=told.append)) as engine:
        first = engine.bundle
        released(folder, bad())
        health = engine.refresh()
        fetched = len(server.asked)
        again = engine.refresh()

        assert decided_by(engine) == 1
        current = FolderReader(folder).current("stable")
        assert (health.state, health.release, health.error, health.refused) == ("behind", 1, code, current.digest)
        assert (health.message or "").startswith(f"{server.url}/{current.path}: {message}")
        # It was refused once, told once, and is not fetched again.
        assert (again.state, again.refused, again.message) == ("behind", current.digest, health.message)
        assert server.asked[fetched:] == [("/index.json", 304)]
        assert told == [
            BundleEvent("bundle.loaded", first.revision, 1, first.digest),
            BundleEvent(
                "bundle.refused", current.revision, 2, current.digest, previous_release=1, error_code=code,
                message=told[-1].message,
            ),
        ]  # fmt: skip
        released(folder, bundle(3))
        assert (engine.refresh().state, decided_by(engine), engine.health().refused) == ("current", 3, None)


def test_an_older_release_in_the_channel_is_refused(folder: Path, server: BundleServer) -> None:
    """An attacker puts the whole repository of yesterday in place of today's: signed, consistent, and old."""
    yesterday = {path: (folder / path).read_bytes() for path in ("index.json",)}
    with watching(server.url) as engine:
        released(folder, bundle(2))
        engine.refresh()
        for path, content in yesterday.items():
            (folder / path).write_bytes(content)
        health = engine.refresh()

        assert (health.state, health.release, health.error) == ("behind", 2, "bundle.stale")
        assert decided_by(engine) == 2


def test_refusals_are_audited(folder: Path) -> None:
    audit = MemoryAudit()
    released(folder, bundle(1))
    with watching(folder, trust=trust(report=audited(audit))) as engine:
        released(folder, bundle(2, signed=None))
        engine.refresh()

    assert [(one["type"], one["outcome"], one["error_code"]) for one in audit.events] == [
        ("bundle.loaded", "succeeded", None),
        ("bundle.refused", "failed", "bundle.invalid"),
    ]


@pytest.mark.parametrize("fault", ["cut", "slow", "broken", "garbage", "moved"])
def test_a_server_that_fails_changes_nothing(folder: Path, server: BundleServer, fault: Fault) -> None:
    reader = HttpReader(server.url, timeout=20)
    with WatchingEngine(reader, trust(), every=NEVER) as engine:
        released(folder, bundle(2))
        server.fault = fault
        reader._timeout = 0.5 if fault == "slow" else 20
        health = engine.refresh()

        assert (health.state, health.release, decided_by(engine)) == ("behind", 1, 1)
        assert health.error in {"engine.unavailable", "bundle.invalid"}
        server.fault = None
        server.released.set()
        reader._timeout = 20
        assert (engine.refresh().state, decided_by(engine)) == ("current", 2)


def test_a_bundle_that_was_cut_on_its_way_is_fetched_again(folder: Path, server: BundleServer) -> None:
    with watching(server.url) as engine:
        released(folder, bundle(2))
        path = folder / FolderReader(folder).current("stable").path
        good = path.read_bytes()
        path.write_bytes(good[:-100])
        health = engine.refresh()
        path.write_bytes(good)

        assert (health.state, health.error, health.refused) == ("behind", "engine.unavailable", None)
        assert engine.refresh().state == "current"
        assert decided_by(engine) == 2


def test_a_server_that_was_away_is_followed_again(folder: Path, server: BundleServer) -> None:
    with watching(server.url) as engine:
        server.kill()
        health = engine.refresh()
        released(folder, bundle(2))
        server.start()

        assert (health.state, health.message) == (
            "behind",
            f"{server.url}/index.json: cannot be had: Connection refused (check the address, and that it is served)",
        )
        assert engine.refresh().release == decided_by(engine) == 2


def test_whatever_goes_wrong_the_thread_goes_on(folder: Path) -> None:
    class Odd(FolderReader):
        def current(self, channel: Any) -> Any:
            if odd:
                raise ZeroDivisionError("oops")
            return super().current(channel)

    odd = False
    released(folder, bundle(1))
    with WatchingEngine(Odd(folder), trust(), every=NEVER) as engine:
        odd = True
        health = engine.refresh()
        odd = False

        assert (health.state, health.error, health.message) == (
            "behind",
            "engine.unavailable",
            "ZeroDivisionError: oops",
        )
        assert engine.refresh().state == "current"


# An index at fault


def indexed(folder: Path, **changes: Any) -> bytes:
    """Write other things into the index about its last bundle, consistently; return the index as it was."""
    path = folder / "index.json"
    good = path.read_bytes()
    index = json.loads(good)
    index["bundles"][-1] |= changes
    if "release" in changes:
        index["history"][-1]["release"] = changes["release"]
    path.write_bytes(canonical(index))
    return good


WRONG = [
    ({"release": 9}, "release"),
    ({"revision": "sha256:" + "0" * 64}, "revision"),
    ({"size": 5}, "size"),
    ({"key_id": None}, "key_id"),
    ({"release": 9, "size": 5}, "release and size"),
]


@pytest.mark.parametrize(("changes", "wrong"), WRONG)
def test_a_good_bundle_is_taken_once_the_index_is_right_again(
    folder: Path, changes: dict[str, Any], wrong: str
) -> None:
    released(folder, bundle(1))
    with watching(folder) as engine:
        released(folder, bundle(2))
        good = indexed(folder, **changes)
        health = engine.refresh()
        (folder / "index.json").write_bytes(good)
        restored = engine.refresh()

        current = FolderReader(folder).current("stable")
        assert (health.state, health.release, health.error, health.refused) == (
            "behind",
            1,
            "bundle.invalid",
            current.digest,
        )
        assert health.message == (
            f"{folder}/{current.path}: the index gives it another {wrong} than it has (restore index.json from a copy)"
        )
        assert (restored.state, restored.message, restored.refused, decided_by(engine)) == ("current", None, None, 2)


@pytest.mark.parametrize(("changes", "wrong"), WRONG)
def test_an_index_that_changes_what_it_says_of_the_bundle_at_hand_is_told(
    folder: Path, changes: dict[str, Any], wrong: str
) -> None:
    told: list[BundleEvent] = []
    released(folder, bundle(4))
    with watching(folder, trust=trust(report=told.append)) as engine:
        good = indexed(folder, **changes)
        health, again = engine.refresh(), engine.refresh()
        (folder / "index.json").write_bytes(good)
        restored = engine.refresh()

        assert (health.state, health.release, decided_by(engine)) == ("behind", 4, 4)
        assert (health.message or "").endswith(
            f": the index gives it another {wrong} than it has (restore index.json from a copy)"
        )
        assert (again.message, [one.type for one in told]) == (health.message, ["bundle.loaded", "bundle.refused"])
        assert (restored.state, restored.message, restored.refused) == ("current", None, None)


# What is old


def test_a_bundle_that_nobody_confirms_any_longer_decides_nothing(server: BundleServer) -> None:
    now = [1000.0]
    with watching(server.url, max_age=300.0, clock=lambda: now[0]) as engine:
        server.kill()
        now[0] += 300
        engine.refresh()
        kept = (engine.health().state, engine.health().age, decided_by(engine))
        now[0] += 1
        stale = engine.health()

        assert kept == ("behind", 300.0, 1)
        assert (stale.state, stale.age, codes(engine)) == ("stale", 301.0, ["bundle.stale"])
        assert engine.decide_body(b"{}").verdict == "DENY"
        assert engine.decide_plan(b"{}").reasons[0].code == "bundle.stale"
        assert engine.decide_body(b"{}").reasons[0].message == (
            "release 1 was last confirmed 301 s ago, 300 s are admitted"
        )
        server.start()
        assert engine.refresh().state == "current"
        assert decided_by(engine) == 1


def test_a_bad_release_does_not_keep_the_last_good_one_young(folder: Path, server: BundleServer) -> None:
    now = [1000.0]
    with watching(server.url, max_age=300.0, clock=lambda: now[0]) as engine:
        released(folder, bundle(2, signed=None))
        now[0] += 301
        assert engine.refresh().state == "stale"
        assert codes(engine) == ["bundle.stale"]


def test_a_clock_that_goes_back_makes_nothing_young_or_negative(server: BundleServer) -> None:
    now = [1000.0]
    with watching(server.url, max_age=300.0, clock=lambda: now[0]) as engine:
        now[0] = 500.0
        assert (engine.health().age, engine.refresh().age, decided_by(engine)) == (0.0, 0.0, 1)
        now[0] = 801.0
        assert codes(engine) == ["bundle.stale"]


# What is not followed


def test_an_engine_begins_with_a_good_bundle_or_not_at_all(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError) as away:
        watching(folder)
    released(folder, bundle(1, signed=None))
    with pytest.raises(BundleError) as unsigned:
        watching(folder)
    with pytest.raises(BundleError) as nothing:
        watching(folder, channel="canary")

    current = FolderReader(folder).current("stable")
    assert [(caught.value.message, caught.value.code) for caught in (away, unsigned, nothing)] == [
        (f"{folder}/index.json: cannot be read: No such file or directory", "engine.unavailable"),
        (f"{folder}/{current.path}: not signed", "bundle.invalid"),
        (f"{folder}: nothing was published in the channel canary", "bundle.invalid"),
    ]


def test_over_http_there_must_be_keys(folder: Path, server: BundleServer) -> None:
    with pytest.raises(UsageError) as caught:
        watching(server.url, trust=BundleTrust())
    assert caught.value.message == f"{server.url}: bundles over HTTP are taken from signers alone"
    with watching(folder, trust=BundleTrust()) as engine:
        assert decided_by(engine) == 1


SECONDS = "is not a number of seconds (above 0, at most 315360000)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, f"every: 0 {SECONDS}"),
        ({"every": float("nan")}, f"every: nan {SECONDS}"),
        ({"every": "60"}, f"every: '60' {SECONDS}"),
        ({"every": True}, f"every: True {SECONDS}"),
        ({"every": None}, f"every: None {SECONDS}"),
        ({"every": 10**400}, f"every: {'1'.ljust(40, '0')} {SECONDS}"),
        ({"max_age": -1}, f"max_age: -1 {SECONDS}"),
        ({"max_age": float("inf")}, f"max_age: inf {SECONDS}"),
        ({"max_age": "60"}, f"max_age: '60' {SECONDS}"),
        ({"channel": "stabel"}, "channel: 'stabel' is not a channel (stable or canary)"),
        ({"channel": None}, "channel: None is not a channel (stable or canary)"),
        ({"clock": 5}, "clock: 5 is no plain function (it returns seconds)"),
        ({"clock": None}, "clock: None is no plain function (it returns seconds)"),
        ({"trust": "key"}, "trust: str is not one (give a BundleTrust)"),
        ({"deadline": "5"}, "deadline: '5' is not a number of seconds (above 0, at most 3600)"),
        ({"memory_limit": "5"}, "memory_limit: '5' bytes are out of range (1048576 to 2147483648)"),
    ],
)
def test_what_cannot_be_used_is_said(folder: Path, options: dict[str, Any], message: str) -> None:
    released(folder, bundle(1))
    with pytest.raises(UsageError) as caught:
        watching(folder, **options)
    assert str(caught.value) == message


def test_what_is_no_repository_is_said() -> None:
    with pytest.raises(UsageError) as caught:
        watching(5)
    assert str(caught.value) == "repository: int is not one (give a RepositoryReader)"


# Under load


def test_swapping_loses_and_fails_no_decision(folder: Path) -> None:
    """Sixteen callers decide while releases come and go: each decision is one of a whole bundle, none is an error."""
    last = 5
    released(folder, bundle(1))
    seen: list[list[int | None]] = [[] for _ in range(16)]
    wrong: list[Any] = []

    def call(mine: list[int | None]) -> None:
        # Until the last release was seen, or something went wrong.
        while last not in mine[-1:] and not wrong:
            decision = engine.decide_body(b"{}")
            mine.append(decision.release)
            if [reason.code for reason in decision.reasons] != ["decision.request_invalid"]:
                wrong.append(decision)

    with watching(folder) as engine:
        callers = [threading.Thread(target=call, args=(mine,)) for mine in seen]
        for caller in callers:
            caller.start()
        for release in range(2, last + 1):
            released(folder, bundle(release))
            assert engine.refresh().release == release
        for caller in callers:
            caller.join()

    assert wrong == []
    # Nobody saw an older one after a newer one, nor a decision of none.
    assert all(mine == sorted(filter(None, mine)) for mine in seen)
    assert [mine[-1] for mine in seen] == [last] * 16


def test_who_is_about_to_ask_the_old_one_still_gets_an_answer(folder: Path) -> None:
    released(folder, bundle(1))
    with watching(folder) as engine:
        old = engine._engine()
        released(folder, bundle(2))
        engine.refresh()

        assert (decided_by(old), decided_by(engine)) == (1, 2)


# OPA's own plugin


CONFIG = """
services:
  repository: {{url: "{url}"}}
keys: {keys}
bundles:
  authz:
    service: repository
    resource: channels/stable.tar.gz
    signing: {{}}
    polling: {{min_delay_seconds: 1, max_delay_seconds: 1}}
"""


@contextlib.contextmanager
def polling_opa(opa: Path, server: BundleServer, folder: Path) -> Iterator[SidecarEngine]:
    """An OPA that polls the channel with its own bundle plugin and trusts two keys, and our engine that asks it."""
    trusted = [key(name).public for name in ("one", "two")]
    keys = json.dumps({each.id: {"algorithm": each.algorithm, "key": each.pem} for each in trusted})
    (folder / "opa.yaml").write_text(CONFIG.format(url=server.url, keys=keys))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        str(opa),
        "run",
        "--server",
        f"--addr={address}",
        "--skip-version-check",
        f"--config-file={folder}/opa.yaml",
    ]
    with (
        (folder / "opa.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
        SidecarEngine(f"http://{address}", failures=1_000_000) as engine,
    ):
        try:
            yield engine
        finally:
            process.kill()


def becomes(engine: Engine, release: int) -> bool:
    """Wait until that release decides."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if decided_by(engine) == release:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.opa
def test_a_real_opa_follows_the_channel_by_itself(
    opa: Path, folder: Path, tmp_path: Path, server: BundleServer
) -> None:
    with polling_opa(opa, server, tmp_path) as engine:
        assert becomes(engine, 1)
        assert server.wait_for("/channels/stable.tar.gz", 304), "unchanged, it is not sent again"
        released(folder, bundle(2, content=2))
        assert becomes(engine, 2)
        rollback(folder, channel="stable", by="bob", why="bad", audit=MemoryAudit(), signing_key=key())
        assert becomes(engine, 3)
        released(folder, bundle(4, signed="two"))
        assert becomes(engine, 4), "while keys are rotated, either signs"


@pytest.mark.opa
def test_a_real_opa_takes_nothing_bad_and_outlives_its_server(
    opa: Path, folder: Path, tmp_path: Path, server: BundleServer
) -> None:
    path = "/channels/stable.tar.gz"
    with polling_opa(opa, server, tmp_path) as engine:
        assert becomes(engine, 1)
        released(folder, bundle(2, signed="three"))
        assert server.wait_for(path, 200, times=2)
        strange = decided_by(engine)
        released(folder, bundle(3))
        server.fault = "cut"
        assert server.wait_for(path, 200, times=2)
        cut = decided_by(engine)
        server.fault = "slow"
        assert server.wait_until_slow()
        slow = decided_by(engine)
        server.kill()
        away = decided_by(engine)
        server.fault = None
        server.start()

        assert (strange, cut, slow, away) == (1, 1, 1, 1)
        assert becomes(engine, 3)
