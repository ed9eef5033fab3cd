"""Engines accept a bundle only if a trusted key has signed it and no newer bundle was accepted before."""

import fcntl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pdp.audit.chain import AuditEvent, MemoryAudit
from pdp.engine.bundle.file import read_bundle
from pdp.engine.bundle.follow import FollowingEngine
from pdp.engine.bundle.trust import BundleTrust, ReleaseFloorError, StaleBundleError
from pdp.errors import AuditError, BundleError
from pdp.json import canonical
from tests.support import PATIENCE
from tests.support.bundle_releases import bundle, key, tiny


def decided_by(packed: bytes, trust: BundleTrust, folder: Path) -> int | tuple[str, str] | None:
    """Return the release with which a new engine with this trust decides, or code and message of its error."""
    file = folder / "bundle.tar.gz"
    file.write_bytes(packed)
    try:
        with FollowingEngine(file, trust, every=3600) as engine:
            return engine.decide_body(b"{}").release
    except BundleError as error:
        return error.code, error.message.removeprefix(f"{file}: ")


def test_newer_bundles_are_accepted_and_older_bundles_are_rejected(tmp_path: Path) -> None:
    files = [
        bundle(4), bundle(4), bundle(3), bundle(4, limit=1), bundle(5, signed=None), bundle(5), bundle(4),
    ]  # fmt: skip
    # A new engine reads each bundle, as after a restart.
    results = [
        decided_by(packed, BundleTrust([key().public], floor=tmp_path / "newest.json"), tmp_path) for packed in files
    ]
    assert results == [
        4,
        4,
        ("bundle.stale", "release 3 is older than release 4, with which this engine decided before"),
        (
            "bundle.stale",
            "the bundle has the same number as release 4, with which this engine decided before, but other content",
        ),
        ("bundle.invalid", "not signed"),
        5,
        ("bundle.stale", "release 4 is older than release 5, with which this engine decided before"),
    ]


def test_release_signed_again_with_next_key_is_accepted(tmp_path: Path) -> None:
    trust = BundleTrust([key("one").public, key("two").public])

    assert [decided_by(bundle(2, signed=name), trust, tmp_path) for name in ("one", "two")] == [2, 2]
    assert trust.newest() == (2, read_bundle(bundle(2)).revision)


def test_rejected_bundle_does_not_become_the_newest_release(tmp_path: Path) -> None:
    trust = BundleTrust([key().public])

    assert isinstance(decided_by(tiny(9, signed="one"), trust, tmp_path), tuple)
    assert trust.newest() is None


def test_loaded_and_rejected_bundles_are_audited(tmp_path: Path) -> None:
    audit = MemoryAudit()
    trust = BundleTrust([key().public], audit=audit)
    for packed in (bundle(1), bundle(2, signed=None)):
        decided_by(packed, trust, tmp_path)

    names = ("type", "bundle_revision", "outcome", "error_code")
    assert [tuple(event[name] for name in names) for event in audit.events] == [
        ("bundle.loaded", read_bundle(bundle(1)).revision, "succeeded", None),
        ("bundle.refused", None, "failed", "bundle.invalid"),
    ]
    assert len({event["arguments_digest"] for event in audit.events}) == 2


def test_valid_bundle_is_loaded_even_if_the_load_cannot_be_audited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(MemoryAudit):
        def append(self, event: AuditEvent) -> None:
            raise AuditError("no space left")

    assert decided_by(bundle(1), BundleTrust([key().public], audit=Full()), tmp_path) == 1
    assert [record.getMessage() for record in caplog.records] == ["could not record the audit event bundle.loaded"]


@pytest.mark.parametrize("floor", [None, "newest"], ids=["in memory", "in a file"])
def test_older_bundle_cannot_replace_a_newer_bundle_that_was_loaded_concurrently(
    tmp_path: Path, floor: str | None
) -> None:
    """One engine has checked an older bundle. Before it loads this bundle, another engine loads a newer bundle."""
    path = None if floor is None else tmp_path / floor
    trust = BundleTrust([key().public], floor=path)
    other = trust if path is None else BundleTrust([key().public], floor=path)
    old = trust.admit(bundle(4))
    other.loaded(other.admit(bundle(5)))

    with pytest.raises(
        StaleBundleError, match=r"^release 4 is older than release 5, with which this engine decided before"
    ):
        trust.loaded(old)

    assert trust.newest() == other.newest() == (5, read_bundle(bundle(5)).revision)


def test_newest_release_is_read_after_the_lock_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While this process waits for the lock, another process stores the number of a newer release."""
    floor, waits = tmp_path / "newest", threading.Event()
    flock = fcntl.flock

    def watched(file: Any, how: int) -> None:
        try:
            flock(file, how)
        except BlockingIOError:
            waits.set()
            raise

    monkeypatch.setattr(fcntl, "flock", watched)
    trust = BundleTrust([key().public], floor=floor)
    old, newer = trust.admit(bundle(4)), read_bundle(bundle(5))
    with (tmp_path / "newest.lock").open("w") as lock, ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        loading = pool.submit(trust.loaded, old)
        assert waits.wait(PATIENCE)
        floor.write_bytes(canonical({"release": 5, "revision": newer.revision}))
        fcntl.flock(lock, fcntl.LOCK_UN)

        with pytest.raises(StaleBundleError):
            loading.result()

    assert trust.newest() == (5, newer.revision)


def test_bundle_is_rejected_if_the_lock_of_the_floor_file_times_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pdp.engine.bundle.trust.LOCK_SECONDS", 0.05)
    floor = tmp_path / "newest"
    with (tmp_path / "newest.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = decided_by(bundle(4), BundleTrust([key().public], floor=floor), tmp_path)

    assert refused == ("bundle.invalid", f"{floor}.lock: still locked by another process after 0.05 s")
    assert decided_by(bundle(4), BundleTrust([key().public], floor=floor), tmp_path) == 4


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"release":0,"revision":""}', b'{"release":"4","revision":"x"}', b"["]
)
def test_every_bundle_is_rejected_if_the_floor_file_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "newest").write_bytes(content)

    with pytest.raises(ReleaseFloorError) as caught:
        BundleTrust([key().public], floor=tmp_path / "newest").admit(bundle(4))

    assert str(caught.value) == (
        f"{tmp_path}/newest: damaged: expected the newest release number and its revision "
        f"(restore the file; without it, older bundles would be accepted again)"
    )


def test_floor_file_that_cannot_be_written_raises_an_error(tmp_path: Path) -> None:
    trust = BundleTrust([key().public], floor=tmp_path / "none/newest")

    with pytest.raises(ReleaseFloorError) as caught:
        trust.loaded(trust.admit(bundle(4)))

    assert caught.value.message == (
        f"{tmp_path}/none/newest: the newest release cannot be read or written: No such file or directory"
    )
