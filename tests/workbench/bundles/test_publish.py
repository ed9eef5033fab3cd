"""Bundles are published to a repository and rolled back atomically. Releases never change, and each step is audited."""

import fcntl
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pdp.audit.chain import MemoryAudit
from pdp.audit.file import FileAudit
from pdp.audit.verify import verify_chain
from pdp.engine.bundle.file import read_bundle
from pdp.errors import AuditError, BundleError, UsageError
from pdp.json import canonical, digest
from pdp.workbench.bundles.publish import (
    ChannelChange,
    RepositoryError,
    history,
    next_release,
    publish_bundle,
    roll_back,
)
from tests.support.bundle_releases import key, key_file, tiny
from tests.support.command_line import pdp


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "repository"


def released(folder: Path, packed: bytes, **changes: Any) -> ChannelChange:
    options = {"channel": "stable", "by": "ann", "why": "a reason", "audit": MemoryAudit(), "keys": None}
    return publish_bundle(folder, packed, **{**options, **changes})


def rolled_back(folder: Path, **changes: Any) -> ChannelChange:
    options = {"channel": "stable", "by": "bob", "why": "it was bad", "audit": MemoryAudit()}
    return roll_back(folder, **{**options, **changes})


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def releases(folder: Path) -> list[int]:
    return sorted(int(path.name.split(".")[0]) for path in folder.glob("releases/*.tar.gz"))


def current(folder: Path, channel: str = "stable") -> int:
    """Return the current release of the channel. Check that the file of the channel equals the file of this release."""
    packed = (folder / f"channels/{channel}.tar.gz").read_bytes()
    release = read_bundle(packed).release
    assert (folder / f"releases/{release}.tar.gz").read_bytes() == packed
    return release


# Publishing


def test_publish_writes_the_release_file_and_the_channel_file(folder: Path) -> None:
    packed = tiny(1, signed="one")

    change = released(folder, packed, keys=[key().public])

    assert change == ChannelChange(
        time=change.time, action="publish", channel="stable", release=1, revision=read_bundle(packed).revision,
        digest=digest(packed), restores=None, by="ann", why="a reason",
    )  # fmt: skip
    assert files(folder) == {
        "channels/stable.tar.gz": packed,
        "history.jsonl": change.model_dump_json().encode() + b"\n",
        "releases/1.tar.gz": packed,
    }
    assert history(folder) == [change]
    assert all((folder / path).stat().st_mode & 0o777 == 0o644 for path in files(folder))


def test_channels_have_separate_current_releases_but_use_the_same_release_files(folder: Path) -> None:
    released(folder, tiny(1))
    released(folder, tiny(2), channel="canary")
    before = (current(folder), current(folder, "canary"))
    released(folder, tiny(2))

    assert (before, current(folder), current(folder, "canary"), releases(folder)) == ((1, 2), 2, 2, [1, 2])


def test_publishing_the_same_bundle_twice_changes_nothing(folder: Path) -> None:
    first = released(folder, tiny(1))
    before = files(folder)

    assert released(folder, tiny(1), why="again") == first
    assert files(folder) == before


TAKEN = "release 3 is already published with other content or another signature"
BUILD_ANEW = "build the bundle with --release 4"


@pytest.mark.parametrize(
    ("packed", "message", "hint"),
    [
        (tiny(3, other=1), TAKEN, BUILD_ANEW),
        (tiny(3, signed="one"), TAKEN, BUILD_ANEW),
        (tiny(2), "release 2 is older than release 3 in the channel stable", "to go back, run: pdp bundle rollback"),
        (
            tiny(4)[:-1],
            "bundle: the file is truncated",
            "copy the file again, or build the bundle with `pdp bundle build`",
        ),
    ],
    ids=["another content", "another signature", "older", "truncated"],
)
def test_publish_rejects_a_changed_older_or_truncated_release(
    folder: Path, packed: bytes, message: str, hint: str
) -> None:
    released(folder, tiny(3))
    before = files(folder)

    with pytest.raises(BundleError) as caught:
        released(folder, packed)

    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert files(folder) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": [key("two").public]}, "bundle: not signed"),
        ({"why": " "}, "why: must be one line of text"),
        ({"why": "a\x1b[31m"}, "why: must be one line of text"),
        ({"by": ""}, "by: must be one line of text"),
        ({"channel": "../x"}, "channel: '../x' is not a valid name"),
    ],
)  # fmt: skip
def test_publish_rejects_an_invalid_reason_or_an_unsigned_bundle(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((BundleError, UsageError)) as caught:
        released(folder, tiny(1), **changes)

    assert caught.value.message == message
    assert not folder.exists()


# Rolling back


def test_rollback_publishes_the_previous_bundle_content_under_the_next_release_number(folder: Path) -> None:
    for release in (1, 2):
        released(folder, tiny(release, signed="one", content=release))

    change = rolled_back(folder, signing_key=key())

    assert current(folder) == 3
    packed = (folder / "channels/stable.tar.gz").read_bytes()
    revision = read_bundle(tiny(1, content=1)).revision
    assert read_bundle(packed, keys=[key().public]).revision == revision
    assert change == ChannelChange(
        time=change.time, action="rollback", channel="stable", release=3, revision=revision, digest=digest(packed),
        restores=1, by="bob", why="it was bad",
    )  # fmt: skip


def test_second_rollback_restores_a_release_older_than_that_of_the_first_rollback(folder: Path) -> None:
    for release in (1, 2, 3):
        released(folder, tiny(release, content=release))

    assert [rolled_back(folder).restores, rolled_back(folder).restores] == [2, 1]
    with pytest.raises(UsageError) as caught:
        rolled_back(folder)
    assert caught.value.message == "the channel stable has no older content to roll back to"
    assert rolled_back(folder, to=3).restores == 3
    assert releases(folder) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"to": 7}, "the channel stable has no release 7"),
        ({"to": 3}, "the channel stable already has the content of release 3"),
        ({"to": 2}, "the channel stable has no release 2"),
        ({"channel": "canary"}, "the channel canary has no older content to roll back to"),
        ({"channel": "beta"}, "FOLDER: the channel beta has no release"),
        ({}, "release 1 is signed, so the rollback must be signed as well"),
        (
            {"signing_key": key("two")},
            f"bundle: signed with the key {key().public.id}, not with {key('two').public.id}",
        ),
        ({"why": ""}, "why: must be one line of text"),
    ],
)
def test_invalid_rollback_is_rejected(folder: Path, changes: dict[str, Any], message: str) -> None:
    released(folder, tiny(1, signed="one", content=1))
    released(folder, tiny(2, signed="one", content=2), channel="canary")
    released(folder, tiny(3, signed="one", content=3))
    before = files(folder)

    with pytest.raises((UsageError, BundleError)) as caught:
        rolled_back(folder, **changes)

    assert caught.value.message == message.replace("FOLDER", str(folder))
    assert files(folder) == before


def test_rollback_ignores_releases_of_other_channels(folder: Path) -> None:
    """If a release failed on the canary channel, a rollback of the stable channel must not select this release."""
    released(folder, tiny(1, content=1))
    released(folder, tiny(2, content=2), channel="canary")
    released(folder, tiny(3, content=3))

    assert rolled_back(folder).restores == 1


def test_rollback_rejects_a_release_file_that_is_unsigned_or_was_replaced(folder: Path) -> None:
    released(folder, tiny(1, evil=True))
    released(folder, tiny(2, signed="one"))

    with pytest.raises(BundleError) as unsigned:
        rolled_back(folder, signing_key=key())
    (folder / "releases/1.tar.gz").write_bytes(tiny(1, signed="one"))
    with pytest.raises(BundleError) as exchanged:
        rolled_back(folder, signing_key=key())

    assert unsigned.value.message == "bundle: not signed"
    assert exchanged.value.message == f"{folder}/releases/1.tar.gz: differs from the file that was published"


def test_rollback_accepts_an_old_key_after_rotation(folder: Path) -> None:
    released(folder, tiny(1, signed="one", content=1))
    released(folder, tiny(2, signed="two", content=2))

    change = rolled_back(folder, signing_key=key("two"), keys=[key("one").public])

    assert read_bundle(folder / "channels/stable.tar.gz", keys=[key("two").public]).release == 3
    assert change.restores == 1


# Audit


def test_each_publish_and_rollback_is_audited_before_and_after(folder: Path) -> None:
    audit = MemoryAudit()
    released(folder, tiny(1, content=1), audit=audit)
    released(folder, tiny(2, content=2), audit=audit)
    change = rolled_back(folder, audit=audit)

    first, second = (read_bundle(tiny(1, content=content)).revision for content in (1, 2))
    assert [
        (event["type"], event["subject"], event["bundle_revision"], event["outcome"]) for event in audit.events
    ] == [
        (kind, who, revision, outcome)
        for kind, who, revision in (
            ("bundle.publish", "ann", first), ("bundle.publish", "ann", second), ("bundle.rollback", "bob", first),
        )
        for outcome in ("unknown", "succeeded")
    ]  # fmt: skip
    assert audit.events[-1]["arguments_digest"] == audit.digest(canonical(change.model_dump()))


def test_repository_does_not_change_if_the_audit_fails(folder: Path, tmp_path: Path) -> None:
    released(folder, tiny(1))
    before = files(folder)
    audit = FileAudit(tmp_path / "audit")
    audit.close()

    with pytest.raises(AuditError):
        released(folder, tiny(2), audit=audit)

    assert files(folder) == before


def test_replaced_channel_file_gets_a_later_mtime_even_if_the_clock_goes_back(folder: Path) -> None:
    """Web servers derive ETags from size and mtime in seconds, so two releases of equal size need different mtimes."""
    released(folder, tiny(1))
    copy = folder / "channels/stable.tar.gz"
    os.utime(copy, (4_000_000_000, 4_000_000_000))
    released(folder, tiny(2))

    assert copy.stat().st_mtime == 4_000_000_001


# Atomic changes


def test_concurrent_publishes_run_one_after_the_other(folder: Path) -> None:
    released(folder, tiny(1))
    start = threading.Barrier(8)
    failed: list[BaseException] = []

    def run(release: int) -> None:
        start.wait()
        try:
            released(folder, tiny(release), channel="canary" if release % 2 else "stable")
        except BundleError as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(release,)) for release in range(2, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(history(folder)) == 9 - len(failed)
    # A publish may fail only if a publish of a higher release number came before it.
    assert all("is older than release" in str(error) for error in failed)
    assert {current(folder), current(folder, "canary")} == {8, 9}


def in_child(run: Callable[[], object]) -> int:
    """Run a function in a forked process. Return its exit code, which is 0 if the function raised no exception."""
    child = os.fork()
    if child == 0:
        try:
            run()
        except BaseException:  # noqa: BLE001 - the forked process must end here
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(moment: int, folder: Path, packed: bytes) -> None:
    """Publish a bundle, and kill the process at its `moment`-th system call that changes the folder."""
    touched = 0

    def watch(event: str, arguments: Any) -> None:
        nonlocal touched
        if event.split(".", maxsplit=1)[0] in {"open", "os"} and arguments and str(folder) in str(arguments[0]):
            touched += 1
            if touched == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    released(folder, packed)


@pytest.mark.process
def test_killed_publish_leaves_the_repository_in_its_old_or_its_new_state(tmp_path: Path) -> None:
    outcomes = []
    for moment in range(1, 200):
        base = tmp_path / f"r{moment}"
        released(base, tiny(1))
        code = in_child(partial(killed_at, moment, base, tiny(2, content=2)))
        outcomes.append((code, current(base)))
        # After the crash, a publish succeeds and leaves no temporary files.
        released(base, tiny(2, content=2))
        assert current(base) == 2
        released(base, tiny(3))
        assert (current(base), releases(base)) == (3, [1, 2, 3])
        assert not [name for name in files(base) if "/." in name or name.startswith(".")]
        assert [change.release for change in history(base)] == [1, 2, 3]
        if code == 0:
            break

    codes = [code for code, _ in outcomes]
    assert codes == [-signal.SIGKILL] * (len(codes) - 1) + [0]
    assert len(codes) > 12
    # A crash before a certain system call leaves the old state. A crash at a later system call leaves the new state.
    assert [release for _, release in outcomes] == sorted(release for _, release in outcomes)
    assert outcomes[0][1] == 1


@pytest.mark.process
@pytest.mark.parametrize("most", [0, 1000, 9000])
def test_publish_on_a_full_disk_leaves_the_repository_unchanged(folder: Path, most: int) -> None:
    """A limit on the size of files makes a write fail, as on a full disk."""
    released(folder, tiny(1))
    before = files(folder)
    packed = tiny(2, content="x" * 100)

    def publish_with_little_room() -> None:
        audit = MemoryAudit()
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        with pytest.raises(RepositoryError) as caught:
            released(folder, packed, audit=audit)
        assert str(caught.value) == (
            f"{folder}: cannot be changed: File too large; the channel is unchanged "
            f"(check the disk space and the folder's permissions, then run the same command again)"
        )
        assert [(event["type"], event["outcome"]) for event in audit.events] == [
            ("bundle.publish", "unknown"),
            ("bundle.publish", "failed"),
        ]

    assert in_child(publish_with_little_room) == 0
    left = files(folder)
    # A complete release file may be left behind, but no channel refers to it.
    assert {name: left[name] for name in before} == before
    assert current(folder) == 1
    released(folder, packed)
    assert current(folder) == 2


def test_publish_fails_if_the_repository_stays_locked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdp.workbench.bundles.publish.PATIENCE", 0.01)
    released(folder, tiny(1))

    with (folder / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RepositoryError) as caught:
            released(folder, tiny(2))

    assert str(caught.value) == f"{folder}: locked by another change for more than 0.01 s (try again later)"


def test_publish_works_after_the_bundle_file_of_an_earlier_release_is_lost(folder: Path) -> None:
    released(folder, tiny(1))
    for path in folder.glob("*/*.tar.gz"):
        path.unlink()

    released(folder, tiny(2))
    assert current(folder) == 2

    # Publishing the lost bundle again restores its file.
    (folder / "channels/stable.tar.gz").unlink()
    released(folder, tiny(2))
    assert (current(folder), len(history(folder))) == (2, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "cannot be used: No such file or directory"),
        (lambda folder: folder.parent.mkdir() or folder.write_text("x"), "cannot be used: File exists"),
        (lambda folder: folder.mkdir(parents=True) or (folder / "mine").write_text("x"), "not a bundle repository"),
    ],
    ids=["no folder above", "a file", "a folder of something else"],
)
def test_publish_rejects_a_folder_that_is_not_a_repository(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    folder = tmp_path / "above/repository"
    make(folder)

    with pytest.raises(UsageError) as caught:
        released(folder, tiny(1))

    assert caught.value.message == f"{folder}: {message}"


@pytest.mark.parametrize("line", [b"", b"[]", b"{}", b"{", b'{"release":1}'])
def test_publish_rejects_a_damaged_history(folder: Path, line: bytes) -> None:
    released(folder, tiny(1))
    with (folder / "history.jsonl").open("ab") as file:
        file.write(line + b"\n")

    with pytest.raises(UsageError) as publishing:
        released(folder, tiny(2))
    with pytest.raises(UsageError) as going_back:
        rolled_back(folder)
    assert (
        publishing.value.message
        == going_back.value.message
        == f"{folder}/history.jsonl:2: not a valid entry of the history"
    )


def test_next_release_number_is_above_the_release_numbers_of_all_channels(folder: Path) -> None:
    assert next_release(folder) == 1
    released(folder, tiny(99), channel="canary")
    released(folder, tiny(9))

    assert next_release(folder) == 100


# The command line


def test_command_line_publishes_bundles_rolls_back_and_lists_releases(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PDP_SIGNING_KEY", "PDP_VERIFICATION_KEYS"):
        monkeypatch.delenv(name, raising=False)
    private = key_file(tmp_path)
    public = private.with_name("one.pub")
    for release in (1, 2):
        (tmp_path / f"{release}").write_bytes(tiny(release, signed="one", content=release))
    who = ["--by", "ann", "--channel", "stable"]

    gates = [gate_file(tmp_path / f"{release}.json", tmp_path / f"{release}") for release in (1, 2)]
    signed = ["--public-key", public, *who]

    first = pdp("bundle", "publish", tmp_path / "1", folder, "--why", "first", "--gate", gates[0], *signed)
    second = pdp("bundle", "publish", tmp_path / "2", folder, "--why", "second", "--no-gate", *signed, "--json")
    back = pdp("bundle", "rollback", folder, "--why", "bad", "--private-key", private, *who)

    changes = history(folder)
    digests = [change.digest for change in changes]
    assert first == (0, f"{folder}: publish stable: release 1\n  file  {digests[0]}\n", "")
    assert (second.code, second.json) == (0, changes[1].model_dump())
    assert back == (
        0,
        f"{folder}: rollback stable: release 3 with the content of release 1\n  file  {digests[2]}\n",
        "",
    )
    listed = pdp("bundle", "list", folder).out.splitlines()
    revision = changes[0].revision
    assert listed[:2] == [f"stable: release 3  {revision}", "next release: 4"]
    assert pdp("bundle", "list", folder, "--json").json == {
        "channels": {"stable": {"release": 3, "revision": revision, "digest": digests[2]}},
        "next_release": 4,
        "history": [change.model_dump() for change in changes],
    }
    assert [line[:7] + line[27:] for line in listed[2:]] == [
        "    3    rollback stable: release 3 with the content of release 1  by ann: bad",
        "    2    publish stable: release 2  by ann: second",
        "    1    publish stable: release 1  by ann: first",
    ]
    stream = (tmp_path / "repository.audit.jsonl").read_bytes().splitlines()
    assert verify_chain(stream) == 6


def test_publish_command_rejects_invalid_options(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PDP_SIGNING_KEY", "PDP_VERIFICATION_KEYS"):
        monkeypatch.delenv(name, raising=False)
    public = key_file(tmp_path).with_name("one.pub")
    (tmp_path / "b").write_bytes(tiny(1))
    release, signed = ["publish", tmp_path / "b", folder, "--why", "x", "--no-gate"], ["--public-key", public]
    for arguments, message, hint in (
        (release, "no public key to verify with",
         "give its PEM file with --public-key, or its text in the variable PDP_VERIFICATION_KEYS"),
        ([*release, *signed], f"{tmp_path}/b: not signed",
         "sign the bundle with `pdp bundle sign`, and verify it with the public key of the same pair"),
        ([*release, *signed, "--unsigned"], "--unsigned and --public-key cannot be used together",
         "remove one of them"),
        (["publish", tmp_path / "b", tmp_path / "none/r", "--why", "x", "--unsigned", "--no-gate"],
         f"audit file {tmp_path}/none/r.audit.jsonl cannot be opened: No such file or directory",
         "check folder and permissions"),
        (["rollback", folder, "--why", "x"], f"{folder}: not a bundle repository",
         "it has no folder `releases`; pass a repository, or a new or empty folder"),
        (["list", folder], f"{folder}: no published bundles", "publish a bundle with `pdp bundle publish`"),
        (["list", tmp_path / "b"], f"{tmp_path}/b: not a bundle repository", "pass the folder of a repository"),
    ):  # fmt: skip
        done = pdp("bundle", *arguments)
        assert (done.code, done.out, done.err.splitlines()[:2]) == (2, "", [f"error: {message}", f"    hint: {hint}"])


def test_publish_requires_a_passed_gate_result(tmp_path: Path, folder: Path) -> None:
    bundle, other = tmp_path / "b", tmp_path / "other"
    bundle.write_bytes(tiny(1, content=1))
    other.write_bytes(tiny(1, content=2))
    passed, failed = gate_file(tmp_path / "ok", bundle), gate_file(tmp_path / "no", bundle, passed=False)
    about_other, later = gate_file(tmp_path / "x", other), gate_file(tmp_path / "y", bundle, release=2)
    (tmp_path / "text").write_text("passed")
    publish = ["bundle", "publish", bundle, folder, "--why", "x", "--unsigned"]
    revision = read_bundle(bundle).revision
    for options, message in (
        ([], "no result of the release check is given"),
        (["--gate", passed, "--no-gate"], "--gate and --no-gate cannot be used together"),
        (["--gate", failed], f"{failed}: release 1 failed the gate"),
        (["--gate", about_other], f"the result is for release 1 (revision {read_bundle(other).revision}), not for"),
        (["--gate", later], f"the result is for release 2 (revision {revision}), not for this bundle, release 1"),
        (["--gate", tmp_path / "gone"], f"{tmp_path}/gone: no such file"),
        (["--gate", tmp_path / "text"], f"{tmp_path}/text:1:1: the file must be a mapping"),
    ):  # fmt: skip
        refused = pdp(*publish, *options)
        assert (refused.code, refused.out) == (2, ""), options
        assert message in refused.err
    assert not folder.exists()

    assert pdp(*publish, "--gate", passed).code == 0


def gate_file(file: Path, bundle: Path, **changes: Any) -> Path:
    """Write a file with the result of the release gate for a bundle."""
    read = read_bundle(bundle)
    file.write_bytes(canonical({"passed": True, "revision": read.revision, "release": read.release, **changes}))
    return file
