"""`FollowingEngine` and OPA's bundle plugin load new bundles from a channel, and keep the last good bundle."""

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
    """The path of the channel's bundle file, which may not exist yet."""
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
    """Return an engine that reads its source only when `refresh` is called, unless `every` is given."""
    return FollowingEngine(source, options.pop("trust", None) or trust(), **{"every": NEVER} | options)


def decided_by(engine: Engine) -> int | None:
    """Return the release of the bundle that the engine uses for decisions."""
    return engine.decide_body(b"{}").release


def error_of(health: BundleHealth) -> tuple[str, str]:
    """Return code and message of the error in the engine's last check for a new bundle."""
    assert health.error is not None
    return health.error.code, health.error.message


def codes(engine: Engine) -> list[str]:
    return [reason.code for reason in engine.decide_body(b"{}").reasons]


# New releases


@pytest.mark.parametrize("over_http", [False, True])
def test_engine_replaces_its_bundle_with_a_new_release_of_the_channel(
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


def test_engine_loads_a_rollback_as_a_newer_release(folder: Path, file: Path, tmp_path: Path) -> None:
    released(folder, bundle(1, content=1))
    released(folder, bundle(2, content=2))
    with following(file, trust=trust(floor=tmp_path / "newest")) as engine:
        roll_back(folder, channel="stable", by="bob", why="bad", audit=MemoryAudit(), signing_key=key())
        health = engine.refresh()

    assert (health.state, health.release) == ("current", 3)
    assert health.revision == read_bundle(bundle(1, content=1)).revision


def test_engine_checks_source_periodically(folder: Path, server: BundleServer) -> None:
    with following(url(server), every=0.05) as engine:
        # A running check may miss the new bundle, so the test waits until three more checks have found no newer bundle.
        released(folder, bundle(2))
        assert server.wait_for("/channels/stable.tar.gz", 304, times=3)

        assert decided_by(engine) == 2
        assert [status for _, status in server.asked if status != 304] == [200, 200]


def test_thread_of_the_engine_ends_when_the_engine_is_closed_or_dropped(folder: Path, file: Path) -> None:
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


def test_closed_engine_denies(folder: Path, file: Path) -> None:
    released(folder, bundle(1))
    engine = following(file)
    engine.close()

    assert codes(engine) == ["engine.unavailable"]
    released(folder, bundle(2))
    engine.refresh()
    assert codes(engine) == ["engine.unavailable"]


def test_forked_child_denies(file: Path, folder: Path) -> None:
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


# Bad bundles


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
def test_engine_reports_an_invalid_bundle_and_keeps_the_last_valid_bundle(
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
        # The second check finds the same bad bundle, so the bundle is not read again, and the error is not recorded
        # again.
        assert (again.state, error_of(again)) == ("behind", error_of(health))
        assert [(event["type"], event["error_code"]) for event in audit.events] == [
            ("bundle.loaded", None), ("bundle.refused", code),
        ]  # fmt: skip
        released(folder, bundle(3))
        assert (engine.refresh().state, decided_by(engine)) == ("current", 3)


def test_engine_rejects_an_older_release_in_its_channel(folder: Path, file: Path, server: BundleServer) -> None:
    """An attacker replaces the bundle in the channel by an older bundle, whose signature is valid."""
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
        ("slow", "no complete answer within 0.2 s"),
        ("drip", "no complete answer within 0.2 s"),
        ("broken", "the server answered 500"),
        ("moved", "the server answered 302"),
        ("garbage", "damaged, or not a gzip file"),
        ("endless", "larger than 67108864 bytes"),
    ],
)
def test_engine_keeps_its_bundle_if_the_server_fails(
    folder: Path, server: BundleServer, fault: Fault, message: str
) -> None:
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
def test_truncated_bundle_file_is_read_again_at_the_next_check(
    folder: Path, file: Path, server: BundleServer, over_http: bool
) -> None:
    with following(url(server) if over_http else file) as engine:
        file.write_bytes(bundle(2)[:-100])
        health = engine.refresh()
        again = engine.refresh()
        file.write_bytes(bundle(2))

        assert (health.state, error_of(health)[0]) == ("behind", "bundle.invalid")
        assert error_of(again) == error_of(health)
        assert engine.refresh().state == "current"
        assert decided_by(engine) == 2


def test_engine_recovers_after_server_outage(folder: Path, server: BundleServer) -> None:
    with following(url(server)) as engine:
        server.kill()
        health = engine.refresh()
        released(folder, bundle(2))
        server.start()

        assert health.state == "behind"
        assert error_of(health)[1].startswith(f"{url(server)}: download failed: All connection attempts failed")
        assert engine.refresh().release == decided_by(engine) == 2


async def test_bundle_refresh_works_inside_an_event_loop(folder: Path, server: BundleServer) -> None:
    async with following(url(server)) as engine:
        released(folder, bundle(2))
        assert engine.refresh().release == 2


def test_engine_keeps_its_bundle_after_an_unexpected_error(
    folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str | None) -> Any:
        raise ZeroDivisionError("oops")

    released(folder, bundle(1))
    with following(file) as engine:
        with monkeypatch.context() as patched:
            patched.setattr(engine, "_read", fail)
            health = engine.refresh()

        assert (health.state, *error_of(health)) == ("behind", "engine.unavailable", "ZeroDivisionError: oops")
        assert engine.refresh().state == "current"


# Stale bundles


def test_engine_denies_if_its_bundle_is_stale(server: BundleServer) -> None:
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
            "release 1 was last compared with its source 301 s ago, but at most 300 s are allowed"
        )
        server.start()
        assert engine.refresh().state == "current"
        assert decided_by(engine) == 1


def test_bad_release_does_not_renew_the_age_of_the_last_good_bundle(folder: Path, server: BundleServer) -> None:
    now = [1000.0]
    with following(url(server), max_age=300.0, clock=lambda: now[0]) as engine:
        released(folder, bundle(2, signed=None))
        now[0] += 301
        assert engine.refresh().state == "stale"
        assert codes(engine) == ["bundle.stale"]


def test_age_of_a_bundle_is_not_negative_if_the_clock_goes_back(server: BundleServer) -> None:
    now = [1000.0]
    with following(url(server), max_age=300.0, clock=lambda: now[0]) as engine:
        now[0] = 500.0
        assert (engine.health().age, engine.refresh().age, decided_by(engine)) == (0.0, 0.0, 1)
        now[0] = 801.0
        assert codes(engine) == ["bundle.stale"]


# Invalid arguments


def test_engine_does_not_open_without_a_valid_bundle(folder: Path, file: Path) -> None:
    with pytest.raises(BundleError) as away:
        following(file)
    released(folder, bundle(1, signed=None))
    with pytest.raises(BundleError) as unsigned:
        following(file)

    assert [(caught.value.message, caught.value.code) for caught in (away, unsigned)] == [
        (f"{file}: cannot be read: No such file or directory", "bundle.invalid"),
        (f"{file}: not signed", "bundle.invalid"),
    ]


def test_bundle_source_over_http_requires_verification_keys(file: Path, server: BundleServer) -> None:
    with pytest.raises(UsageError) as caught:
        following(url(server), trust=BundleTrust())
    assert caught.value.message == f"{url(server)}: a bundle from a URL must be signed"
    with following(file, trust=BundleTrust()) as engine:
        assert decided_by(engine) == 1


def test_configured_http_headers_are_sent_and_never_shown(server: BundleServer) -> None:
    with following(url(server), headers={"Authorization": "Bearer secret"}) as engine:
        assert server.headers["Authorization"] == "Bearer secret"
        assert server.headers["Accept-Encoding"] == "identity"
        server.kill()
        assert "secret" not in str(engine.refresh())
    with pytest.raises(UsageError) as caught:
        following(url(server), headers={"Authorization": "Bearer secret\n"})
    assert str(caught.value) == "headers: 'Authorization' cannot be sent (use only printable ASCII characters)"


@pytest.mark.parametrize(
    "address",
    [
        "ftp://host/x", "https://", "file:///etc", "http://host/x?y", "http://host/x#y",
        "http://host:x", "http://host/a b", "http://host/a\nb",
    ],
)  # fmt: skip
def test_invalid_bundle_addresses_are_rejected(address: str) -> None:
    with pytest.raises(UsageError) as caught:
        following(address)
    assert caught.value.message == f"{address!r}: not a valid URL of a bundle"
    with pytest.raises(UsageError) as secret:
        following("http://user:secret@host/b.tar.gz")
    assert (
        str(secret.value) == "the URL of a bundle contains a password (send the password in the header Authorization)"
    )


SECONDS = "is not a number of seconds (give a number above 0, at most 315360000)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, f"every: 0 {SECONDS}"),
        ({"every": float("nan")}, f"every: nan {SECONDS}"),
        ({"max_age": -1}, f"max_age: -1 {SECONDS}"),
        ({"timeout": 0}, "timeout: 0 is not a number of seconds (give a number above 0, at most 3600)"),
        ({"deadline": "5"}, "deadline: '5' is not a number of seconds (give a number above 0, at most 3600)"),
        ({"memory_limit": "5"}, "memory_limit: '5' bytes are out of range (give 1048576 to 2147483648)"),
    ],
)
def test_invalid_arguments_are_rejected(folder: Path, file: Path, options: dict[str, Any], message: str) -> None:
    released(folder, bundle(1))
    with pytest.raises(UsageError) as caught:
        following(file, **options)
    assert str(caught.value) == message


# The next tests call the engine while a new bundle replaces the old bundle.


def test_caller_that_still_uses_the_replaced_engine_gets_an_answer(folder: Path, file: Path) -> None:
    released(folder, bundle(1))
    with following(file) as engine:
        old = engine._loaded[1]
        released(folder, bundle(2))
        engine.refresh()

        assert (decided_by(old), decided_by(engine)) == (1, 2)


# OPA's own bundle plugin


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
    """Run an OPA whose bundle plugin polls the channel and trusts two keys. Yield an engine that asks this OPA."""
    trusted = [key(name).public for name in ("one", "two")]
    keys = json.dumps({each.id: {"algorithm": "ES256", "key": each.pem} for each in trusted})
    (folder / "opa.yaml").write_text(CONFIG.format(url=server.url, keys=keys))
    with (
        # The path of a Unix socket must have less than 108 bytes, so the socket cannot be in the folder of the test.
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
    """Wait until the engine decides with the given release. Return False if it still does not after some time."""
    return until(lambda: decided_by(engine) == release)


@pytest.mark.opa
def test_opa_with_bundle_plugin_follows_the_channel(
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
