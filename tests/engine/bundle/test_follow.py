"""An engine and OPA's own bundle plugin follow a channel's file: new bundles are swapped in, bad ones are not."""

import contextlib
import gc
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pdp.audit.chain import MemoryAudit
from pdp.engine.bundle.file import read_bundle
from pdp.engine.bundle.follow import BundleHealth, FollowingEngine
from pdp.engine.bundle.trust import BundleTrust
from pdp.engine.opa.engine import SidecarEngine
from pdp.engine.protocol import PLAN, Engine
from pdp.errors import BundleError, UsageError
from pdp.workbench.bundles.publish import publish_bundle, roll_back
from tests.engine.bundle.bundle_server import BundleServer, Fault, serving
from tests.support import PATIENCE, until
from tests.support.bundle_releases import bundle, key, tiny

NEVER = 3600.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "repository"


@pytest.fixture
def file(folder: Path) -> Path:
    """The channel's file, whether it is there yet or not."""
    return folder / "channels/stable.tar.gz"


@pytest.fixture
def server(folder: Path) -> Iterator[BundleServer]:
    released(folder, bundle(1))
    with serving(folder) as server:
        yield server


def released(folder: Path, packed: bytes, channel: Any = "stable", **more: Any) -> None:
    publish_bundle(folder, packed, channel=channel, by="ann", why="x", audit=MemoryAudit(), keys=None, **more)


def trust(**more: Any) -> BundleTrust:
    return BundleTrust([key().public], **more)


def url(server: BundleServer) -> str:
    return f"{server.url}/channels/stable.tar.gz"


def following(source: Any, **options: Any) -> FollowingEngine:
    """An engine that looks when it is told to, unless `every` says otherwise."""
    return FollowingEngine(source, options.pop("trust", None) or trust(), **{"every": NEVER} | options)


def decided_by(engine: Engine) -> int | None:
    """The release that decides now."""
    return engine.decide_body(b"{}").release


def error_of(health: BundleHealth) -> tuple[str, str]:
    """Code and message of what went wrong at the last look."""
    assert health.error is not None
    return health.error.code, health.error.message


def codes(engine: Engine) -> list[str]:
    return [reason.code for reason in engine.decide_body(b"{}").reasons]


# Following


@pytest.mark.parametrize("over_http", [False, True])
def test_a_new_release_takes_the_old_ones_place(
    folder: Path, file: Path, server: BundleServer, over_http: bool
) -> None:
    with following(url(server) if over_http else file) as engine:
        before = (decided_by(engine), engine.health().state)
        released(folder, bundle(2), "canary")
        still = (engine.refresh().release, decided_by(engine))
        released(folder, bundle(2))
        unasked = decided_by(engine)
        health = engine.refresh()

        assert (before, still, unasked) == ((1, "current"), (1, 1), 1)
        assert decided_by(engine) == 2
        assert health == BundleHealth(
            "current", read_bundle(bundle(2)).revision, 2, health.age, None,
        )  # fmt: skip
        assert health.age < 60


def test_a_rollback_reaches_engines_that_never_go_back(folder: Path, file: Path, tmp_path: Path) -> None:
    released(folder, bundle(1, content=1))
    released(folder, bundle(2, content=2))
    with following(file, trust=trust(floor=tmp_path / "newest")) as engine:
        roll_back(folder, channel="stable", by="bob", why="bad", audit=MemoryAudit(), signing_key=key())
        health = engine.refresh()

    assert (health.state, health.release) == ("current", 3)
    assert health.revision == read_bundle(bundle(1, content=1)).revision


def test_it_looks_by_itself(folder: Path, server: BundleServer) -> None:
    with following(url(server), every=0.05) as engine:
        # Three looks from now on, the last of which has not changed: what the second one brought is in its place.
        released(folder, bundle(2))
        assert server.wait_for("/channels/stable.tar.gz", 304, times=3)

        assert decided_by(engine) == 2
        assert [status for _, status in server.asked if status != 304] == [200, 200]


def test_the_thread_ends_with_the_engine(folder: Path, file: Path) -> None:
    released(folder, bundle(1))
    closed = following(file, every=0.01)
    forgotten = following(file, every=0.01)
    threads = [thread for thread in threading.enumerate() if thread.name == "pdp-bundles"]
    closed.close()
    del closed, forgotten
    gc.collect()

    for thread in threads:
        thread.join(20)
    assert [thread.is_alive() for thread in threads] == [False, False]


def test_a_closed_engine_decides_nothing(folder: Path, file: Path) -> None:
    released(folder, bundle(1))
    engine = following(file)
    engine.close()

    assert codes(engine) == ["engine.unavailable"]
    released(folder, bundle(2))
    engine.refresh()
    assert codes(engine) == ["engine.unavailable"]


def test_a_forked_child_decides_nothing(file: Path, folder: Path) -> None:
    released(folder, bundle(1))
    with following(file) as engine:
        child = os.fork()
        if child == 0:
            denied = False
            with contextlib.suppress(BaseException):
                (reason,) = engine.decide_body(b"{}").reasons
                denied = reason.message == "the engine was opened before the process was forked"
            os._exit(0 if denied else 1)

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert decided_by(engine) == 1


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
def test_the_last_good_bundle_stays_and_health_says_why(
    folder: Path, server: BundleServer, bad: Callable[[], bytes], code: str, message: str
) -> None:
    audit = MemoryAudit()
    with following(url(server), trust=trust(audit=audit)) as engine:
        released(folder, bad())
        health, again = engine.refresh(), engine.refresh()

        assert decided_by(engine) == 1
        assert (health.state, health.release) == ("behind", 1)
        assert error_of(health)[0] == code
        assert error_of(health)[1].startswith(f"{url(server)}: {message}")
        # It was refused once, and reported once.
        assert (again.state, error_of(again)) == ("behind", error_of(health))
        assert [(event["type"], event["error_code"]) for event in audit.events] == [
            ("bundle.loaded", None), ("bundle.refused", code),
        ]  # fmt: skip
        released(folder, bundle(3))
        assert (engine.refresh().state, decided_by(engine)) == ("current", 3)


def test_an_older_release_in_the_channel_is_refused(folder: Path, file: Path, server: BundleServer) -> None:
    """An attacker puts yesterday's file in place of today's: signed, whole, and old."""
    yesterday = file.read_bytes()
    with following(url(server)) as engine:
        released(folder, bundle(2))
        engine.refresh()
        file.write_bytes(yesterday)
        health = engine.refresh()

        assert (health.state, health.release, error_of(health)[0]) == ("behind", 2, "bundle.stale")
        assert decided_by(engine) == 2


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("cut", "download failed: peer closed connection without sending complete message body"),
        ("slow", "no whole answer within 0.2 s"),
        ("drip", "no whole answer within 0.2 s"),
        ("broken", "the server answers 500"),
        ("moved", "the server answers 302"),
        ("garbage", "not a gzip file, or a damaged one"),
        ("endless", "larger than 67108864 bytes"),
    ],
)
def test_a_server_that_fails_changes_nothing(folder: Path, server: BundleServer, fault: Fault, message: str) -> None:
    with following(url(server), timeout=PATIENCE) as engine:
        released(folder, bundle(2))
        server.fault = fault
        source: Any = engine._read
        source._timeout = 0.2 if fault in {"slow", "drip"} else 20
        health = engine.refresh()

        assert (health.state, health.release, decided_by(engine)) == ("behind", 1, 1)
        code, text = error_of(health)
        assert code == ("bundle.invalid" if fault == "garbage" else "engine.unavailable")
        assert text.startswith(f"{url(server)}: {message}")
        server.fault = None
        server.released.set()
        source._timeout = 20
        assert (engine.refresh().state, decided_by(engine)) == ("current", 2)


@pytest.mark.parametrize("over_http", [False, True])
def test_a_file_that_was_cut_is_read_again(folder: Path, file: Path, server: BundleServer, over_http: bool) -> None:
    with following(url(server) if over_http else file) as engine:
        file.write_bytes(bundle(2)[:-100])
        health = engine.refresh()
        again = engine.refresh()
        file.write_bytes(bundle(2))

        assert (health.state, error_of(health)[0]) == ("behind", "bundle.invalid")
        assert error_of(again) == error_of(health)
        assert engine.refresh().state == "current"
        assert decided_by(engine) == 2


def test_a_server_that_was_away_is_followed_again(folder: Path, server: BundleServer) -> None:
    with following(url(server)) as engine:
        server.kill()
        health = engine.refresh()
        released(folder, bundle(2))
        server.start()

        assert health.state == "behind"
        assert error_of(health)[1].startswith(f"{url(server)}: download failed: All connection attempts failed")
        assert engine.refresh().release == decided_by(engine) == 2


async def test_it_looks_from_within_an_event_loop_as_well(folder: Path, server: BundleServer) -> None:
    async with following(url(server)) as engine:
        released(folder, bundle(2))
        assert engine.refresh().release == 2


def test_whatever_goes_wrong_the_last_good_one_stays(folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str | None) -> Any:
        raise ZeroDivisionError("oops")

    released(folder, bundle(1))
    with following(file) as engine:
        with monkeypatch.context() as patched:
            patched.setattr(engine, "_read", fail)
            health = engine.refresh()

        assert (health.state, *error_of(health)) == ("behind", "engine.unavailable", "ZeroDivisionError: oops")
        assert engine.refresh().state == "current"


# What is old


def test_a_bundle_that_nobody_confirms_any_longer_decides_nothing(server: BundleServer) -> None:
    now = [1000.0]
    with following(url(server), max_age=300.0, clock=lambda: now[0]) as engine:
        server.kill()
        now[0] += 300
        engine.refresh()
        behind = (engine.health().state, engine.health().age, decided_by(engine))
        now[0] += 1
        stale = engine.health()

        assert behind == ("behind", 300.0, 1)
        assert (stale.state, stale.age, codes(engine)) == ("stale", 301.0, ["bundle.stale"])
        assert engine.decide_body(b"{}").verdict == "DENY"
        assert engine.decide_body(b"{}", PLAN).reasons[0].code == "bundle.stale"
        assert engine.decide_body(b"{}").reasons[0].message == (
            "release 1 was last confirmed 301 s ago, 300 s are admitted"
        )
        server.start()
        assert engine.refresh().state == "current"
        assert decided_by(engine) == 1


def test_a_bad_release_does_not_keep_the_last_good_one_young(folder: Path, server: BundleServer) -> None:
    now = [1000.0]
    with following(url(server), max_age=300.0, clock=lambda: now[0]) as engine:
        released(folder, bundle(2, signed=None))
        now[0] += 301
        assert engine.refresh().state == "stale"
        assert codes(engine) == ["bundle.stale"]


def test_a_clock_that_goes_back_makes_nothing_young_or_negative(server: BundleServer) -> None:
    now = [1000.0]
    with following(url(server), max_age=300.0, clock=lambda: now[0]) as engine:
        now[0] = 500.0
        assert (engine.health().age, engine.refresh().age, decided_by(engine)) == (0.0, 0.0, 1)
        now[0] = 801.0
        assert codes(engine) == ["bundle.stale"]


# What is not followed


def test_an_engine_begins_with_a_good_bundle_or_not_at_all(folder: Path, file: Path) -> None:
    with pytest.raises(BundleError) as away:
        following(file)
    released(folder, bundle(1, signed=None))
    with pytest.raises(BundleError) as unsigned:
        following(file)

    assert [(caught.value.message, caught.value.code) for caught in (away, unsigned)] == [
        (f"{file}: cannot be read: No such file or directory", "bundle.invalid"),
        (f"{file}: not signed", "bundle.invalid"),
    ]


def test_over_http_there_must_be_keys(file: Path, server: BundleServer) -> None:
    with pytest.raises(UsageError) as caught:
        following(url(server), trust=BundleTrust())
    assert caught.value.message == f"{url(server)}: bundles over HTTP are taken from signers alone"
    with following(file, trust=BundleTrust()) as engine:
        assert decided_by(engine) == 1


def test_headers_are_sent_and_shown_nowhere(server: BundleServer) -> None:
    with following(url(server), headers={"Authorization": "Bearer secret"}) as engine:
        assert server.headers["Authorization"] == "Bearer secret"
        assert server.headers["Accept-Encoding"] == "identity"
        server.kill()
        assert "secret" not in str(engine.refresh())
    with pytest.raises(UsageError) as caught:
        following(url(server), headers={"Authorization": "Bearer secret\n"})
    assert str(caught.value) == "headers: 'Authorization' cannot be sent (printable ASCII characters alone)"


@pytest.mark.parametrize(
    "address",
    [
        "ftp://host/x", "https://", "file:///etc", "http://host/x?y", "http://host/x#y",
        "http://host:x", "http://host/a b", "http://host/a\nb",
    ],
)  # fmt: skip
def test_addresses_that_are_refused(address: str) -> None:
    with pytest.raises(UsageError) as caught:
        following(address)
    assert caught.value.message == f"{address!r}: not the address of a bundle"
    with pytest.raises(UsageError) as secret:
        following("http://user:secret@host/b.tar.gz")
    assert str(secret.value) == "the address of a bundle holds a password (give it as a header: Authorization)"


SECONDS = "is not a number of seconds (above 0, at most 315360000)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, f"every: 0 {SECONDS}"),
        ({"every": float("nan")}, f"every: nan {SECONDS}"),
        ({"max_age": -1}, f"max_age: -1 {SECONDS}"),
        ({"timeout": 0}, "timeout: 0 is not a number of seconds (above 0, at most 3600)"),
        ({"deadline": "5"}, "deadline: '5' is not a number of seconds (above 0, at most 3600)"),
        ({"memory_limit": "5"}, "memory_limit: '5' bytes are out of range (1048576 to 2147483648)"),
    ],
)
def test_arguments_that_cannot_be_used(folder: Path, file: Path, options: dict[str, Any], message: str) -> None:
    released(folder, bundle(1))
    with pytest.raises(UsageError) as caught:
        following(file, **options)
    assert str(caught.value) == message


# Under load


def test_who_is_about_to_ask_the_old_one_still_gets_an_answer(folder: Path, file: Path) -> None:
    released(folder, bundle(1))
    with following(file) as engine:
        old = engine._loaded[1]
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
    keys = json.dumps({each.id: {"algorithm": "ES256", "key": each.pem} for each in trusted})
    (folder / "opa.yaml").write_text(CONFIG.format(url=server.url, keys=keys))
    with (
        # A short path: that of a Unix socket has to stay below 108 characters.
        tempfile.TemporaryDirectory(prefix="pdp-opa-") as short,
        (folder / "opa.log").open("wb") as log,
        subprocess.Popen(
            [
                opa,
                "run",
                "--server",
                f"--addr=unix://{short}/opa.sock",
                "--skip-version-check",
                f"--config-file={folder}/opa.yaml",
            ],
            stdout=log,
            stderr=log,
        ) as process,
        SidecarEngine(f"unix://{short}/opa.sock", failures=1_000_000) as engine,
    ):
        try:
            yield engine
        finally:
            process.kill()


def becomes(engine: Engine, release: int) -> bool:
    """Wait until that release decides."""
    return until(lambda: decided_by(engine) == release)


@pytest.mark.opa
def test_a_real_opa_follows_the_channel_by_itself(
    opa: Path, folder: Path, tmp_path: Path, server: BundleServer
) -> None:
    with polling_opa(opa, server, tmp_path) as engine:
        assert becomes(engine, 1)
        assert server.wait_for("/channels/stable.tar.gz", 304), "unchanged, it is not sent again"
        released(folder, bundle(2, content=2))
        assert becomes(engine, 2)
        roll_back(folder, channel="stable", by="bob", why="bad", audit=MemoryAudit(), signing_key=key())
        assert becomes(engine, 3)
        released(folder, bundle(4, signed="two"))
        assert becomes(engine, 4), "while keys are rotated, either signs"
