"""A repository: changes that are whole or not made, in a folder and over HTTP, and what is recorded of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from pdp.audit.file import FileAudit, MemoryAudit, verify_chain
from pdp.engine.bundle.file import read_bundle
from pdp.engine.bundle.repository_index import Change, Index, Published
from pdp.engine.bundle.repository_reader import FolderReader, HttpReader, open_repository
from pdp.errors import AuditError, BundleError, EngineError, UsageError
from pdp.json import canonical, digest
from pdp.workbench.bundles.publish import publish, rollback
from pdp.workbench.bundles.repository import RepositoryError, changing
from tests.support import ROOT
from tests.support.bundle_releases import key, key_file, tiny
from tests.support.bundle_server import serving
from tests.support.command_line import pdp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.bundle_server import Fault

NOON = 1_782_900_000.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "repository"


def released(folder: Path, packed: bytes, **changes: Any) -> Change:
    options: dict[str, Any] = {
        "channel": "stable",
        "by": "ann",
        "why": "a reason",
        "audit": MemoryAudit(),
        "keys": None,
    }
    return publish(folder, packed, **options | {"clock": lambda: NOON} | changes)


def taken_back(folder: Path, **changes: Any) -> Change:
    options: dict[str, Any] = {"channel": "stable", "by": "bob", "why": "it was bad", "audit": MemoryAudit()}
    return rollback(folder, **options | {"clock": lambda: NOON} | changes)


def gate(packed: bytes, **changes: Any) -> dict[str, Any]:
    """What the release gate writes about a bundle that passes, as far as publishing looks at it."""
    bundle = read_bundle(packed)
    checks = [{"name": "scenarios", "status": "pass"}, {"name": "mutation", "status": "skip"}]
    return {"passed": True, "release": bundle.release, "revision": bundle.revision, "checks": checks, **changes}


def index_of(folder: Path) -> Index:
    return FolderReader(folder).index()


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def is_whole(folder: Path) -> bool:
    """Whether every bundle that the index names is there, and each channel's copy is one of them."""
    index = index_of(folder)
    reader = FolderReader(folder)
    copies = [digest(path.read_bytes()) for path in folder.glob("channels/*.tar.gz")]
    return all(digest(reader.fetch(each)) == each.digest for each in index.bundles) and {*copies} <= {
        each.digest for each in index.bundles
    }


# What a release leaves


def test_a_release_is_a_bundle_an_index_and_a_copy_for_opa(folder: Path) -> None:
    packed = tiny(1, signed="one")

    change = released(folder, packed, keys=[key().public], gate=gate(packed))

    name = f"bundles/{digest(packed).removeprefix('sha256:')}.tar.gz"
    assert files(folder) == {
        "index.json": index_of(folder).to_bytes(),
        "channels/stable.tar.gz": packed,
        name: packed,
    }
    assert index_of(folder) == Index(
        channels={"stable": digest(packed)},
        bundles=(
            Published(
                release=1,
                revision=read_bundle(packed).revision,
                digest=digest(packed),
                size=len(packed),
                key_id=key().public.id,
            ),
        ),
        history=(change,),
    )
    assert change == Change(
        sequence=1,
        time="2026-07-01T10:00:00Z",
        action="publish",
        channel="stable",
        release=1,
        digest=digest(packed),
        previous_release=None,
        restores=None,
        by="ann",
        why="a reason",
        gate=gate(packed),
    )
    assert all((folder / path).stat().st_mode & 0o777 == 0o644 for path in files(folder))


def test_channels_move_by_themselves_and_share_what_is_published(folder: Path) -> None:
    released(folder, tiny(1))
    released(folder, tiny(2), channel="canary")
    before = index_of(folder)
    released(folder, tiny(2))

    assert (before.channels["stable"], before.channels["canary"]) == (digest(tiny(1)), digest(tiny(2)))
    index = index_of(folder)
    assert {channel: each.release for channel in ("stable", "canary") if (each := index.current(channel))} == {
        "stable": 2,
        "canary": 2,
    }
    assert [each.release for each in index.bundles] == [1, 2]


def test_once_more_the_same_changes_nothing(folder: Path) -> None:
    first = released(folder, tiny(1))
    before = files(folder)

    assert released(folder, tiny(1), why="again") == first
    assert files(folder) == before


@pytest.mark.parametrize(
    ("packed", "message", "hint"),
    [
        (
            lambda: tiny(3, other=1),
            "release 3 was published already, with another content: releases never change",
            "build it with --release 4",
        ),
        (
            lambda: tiny(3, signed="one"),
            "release 3 was published already, with another signature: releases never change",
            "build it with --release 4",
        ),
        (
            lambda: tiny(2),
            "release 2 is older than release 3 in the channel stable",
            "to go back, run: pdp bundle rollback",
        ),
        (
            lambda: tiny(4)[:-1], "bundle: cut off", "copy the file again, or build it with `pdp bundle build`",
        ),
    ],
    ids=["another content", "another signature", "older", "truncated"],
)  # fmt: skip
def test_releases_never_change_and_never_go_back(
    folder: Path, packed: Callable[[], bytes], message: str, hint: str
) -> None:
    released(folder, tiny(3))
    before = files(folder)

    with pytest.raises(BundleError) as caught:
        released(folder, packed())

    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert files(folder) == before


def test_one_content_under_two_numbers_is_two_releases(folder: Path) -> None:
    released(folder, tiny(1))
    released(folder, tiny(2))

    first, second = index_of(folder).bundles
    assert first.revision == second.revision
    assert first.digest != second.digest


OTHER_REVISION = (
    f"gate results: about revision {read_bundle(tiny(1, content='other')).revision},"
    f" and the bundle is revision {read_bundle(tiny(1)).revision}"
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": [key("two").public]}, "bundle: not signed"),
        ({"gate": {"passed": False}}, "gate results: the release gate has not passed"),
        ({"gate": {}}, "gate results: the release gate has not passed"),
        ({"gate": {"passed": 1}}, "gate results: the release gate has not passed"),
        ({"gate": {"passed": True}}, "gate results: they do not say which release they are about"),
        ({"gate": gate(tiny(1), release=True)}, "gate results: they do not say which release they are about"),
        ({"gate": gate(tiny(1), revision=None)}, "gate results: they do not say which revision they are about"),
        ({"gate": gate(tiny(1), release=2)}, "gate results: about release 2, and the bundle is release 1"),
        ({"gate": gate(tiny(1, content="other"))}, OTHER_REVISION),
        ({"gate": gate(tiny(1), checks=[])}, "gate results: no checks"),
        ({"gate": gate(tiny(1), checks=12)}, "gate results: no checks"),
        *(
            ({"gate": gate(tiny(1), checks=checks)}, "gate results: not every check passed or was skipped,")
            for checks in (
                [{"status": "pass"}, {"status": "fail"}],
                [{"status": "pass"}, {}],
                [1],
                [{"status": "skip"}],
            )
        ),
        ({"gate": {"passed": True, "x": float("nan")}}, "gate results: x: number nan is not finite"),
        ({"gate": {"passed": True, "x": "x" * 70_000}}, "gate results: larger than 65536 bytes"),
        ({"why": " "}, "why: not a line of text"),
        ({"why": "a\x1b[31m"}, "why: not a line of text"),
        ({"by": ""}, "by: not a line of text"),
    ],
)
def test_what_is_not_published(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises((BundleError, UsageError)) as caught:
        released(folder, tiny(1), **changes)

    assert caught.value.message.partition(" is not finite")[0].startswith(message.partition(": number")[0])
    assert not folder.exists()


# Going back


def test_a_rollback_releases_the_old_content_under_the_next_number(folder: Path) -> None:
    for release in (1, 2):
        released(folder, tiny(release, signed="one", content=release))

    change = taken_back(folder, signing_key=key())

    current = index_of(folder).current("stable")
    assert current is not None
    packed = FolderReader(folder).fetch(current)
    found = read_bundle(packed, keys=[key().public])
    assert (found.release, found.revision) == (3, read_bundle(tiny(1, content=1)).revision)
    assert (folder / "channels/stable.tar.gz").read_bytes() == packed
    assert change == Change(
        sequence=3, time="2026-07-01T10:00:00Z", action="rollback", channel="stable", release=3, digest=digest(packed),
        previous_release=2, restores=1, by="bob", why="it was bad", gate=None,
    )  # fmt: skip


def test_a_second_rollback_goes_on_from_the_first(folder: Path) -> None:
    for release in (1, 2, 3):
        released(folder, tiny(release, content=release))

    assert [taken_back(folder).restores, taken_back(folder).restores] == [2, 1]
    with pytest.raises(UsageError) as caught:
        taken_back(folder)
    assert caught.value.message == "the channel stable had no other content before this one"
    assert taken_back(folder, to=3).restores == 3
    assert [each.release for each in index_of(folder).bundles] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"to": 7}, "the channel stable never had a release 7"),
        ({"to": 3}, "the channel stable has the content of release 3 already"),
        ({"to": 2}, "the channel stable never had a release 2"),
        ({"channel": "canary"}, "the channel canary had no other content before this one"),
        ({}, "release 1 is signed, so its content has to be signed anew under the next number"),
        (
            {"signing_key": key("two")},
            f"bundle: signed with the key {key().public.id}, not with {key('two').public.id}",
        ),
        ({"why": ""}, "why: not a line of text"),
    ],
)
def test_rollbacks_that_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    released(folder, tiny(1, signed="one", content=1))
    released(folder, tiny(2, signed="one", content=2), channel="canary")
    released(folder, tiny(3, signed="one", content=3))
    before = files(folder)

    with pytest.raises((UsageError, BundleError)) as caught:
        taken_back(folder, **changes)

    assert caught.value.message == message
    assert files(folder) == before


def test_a_rollback_signs_nothing_that_somebody_put_into_the_folder(folder: Path) -> None:
    """Whoever can write the folder and its index cannot have a content of theirs signed by going back to it."""
    released(folder, tiny(1, evil=True))
    released(folder, tiny(2, signed="one"))

    with pytest.raises(BundleError) as caught:
        taken_back(folder, signing_key=key())

    assert caught.value.message == "bundle: not signed"


def test_after_a_rotation_the_old_key_may_be_named(folder: Path) -> None:
    released(folder, tiny(1, signed="one", content=1))
    released(folder, tiny(2, signed="two", content=2))

    change = taken_back(folder, signing_key=key("two"), keys=[key("one").public])

    assert index_of(folder).bundles[-1].key_id == key("two").public.id
    assert change.restores == 1


# Who did what


def test_each_change_is_audited_before_and_after(folder: Path) -> None:
    audit = MemoryAudit()
    released(folder, tiny(1, content=1), audit=audit)
    released(folder, tiny(2, content=2), audit=audit)
    change = taken_back(folder, audit=audit)

    revisions = [read_bundle(tiny(1, content=content)).revision for content in (1, 1, 2, 2, 1, 1)]
    assert [(one["type"], one["subject"], one["bundle_revision"], one["outcome"]) for one in audit.events] == [
        (kind, who, revision, outcome)
        for (kind, who, outcome), revision in zip(
            [
                (kind, who, outcome)
                for kind, who in (("bundle.publish", "ann"), ("bundle.publish", "ann"), ("bundle.rollback", "bob"))
                for outcome in ("unknown", "succeeded")
            ],
            revisions,
            strict=True,
        )
    ]
    assert audit.events[-1]["arguments_digest"] == audit.digest(canonical(change.model_dump()))


def test_a_change_that_cannot_be_audited_is_not_made(folder: Path, tmp_path: Path) -> None:
    released(folder, tiny(1))
    before = files(folder)
    audit = FileAudit(tmp_path / "audit")
    audit.close()

    with pytest.raises(AuditError):
        released(folder, tiny(2), audit=audit)

    assert files(folder) == before


def test_the_order_is_the_histories_whatever_the_clock_says(folder: Path) -> None:
    for release, now in ((1, NOON), (2, NOON - 86_400), (3, 0.0)):
        released(folder, tiny(release), clock=lambda now=now: now)

    history = index_of(folder).history
    assert [(each.sequence, each.release, each.time) for each in history] == [
        (1, 1, "2026-07-01T10:00:00Z"),
        (2, 2, "2026-06-30T10:00:00Z"),
        (3, 3, "1970-01-01T00:00:00Z"),
    ]


def test_a_file_that_is_replaced_is_dated_later_even_by_a_clock_that_was_set_back(folder: Path) -> None:
    """Web servers make ETags of the second and the size, which two releases may share."""
    released(folder, tiny(1))
    copy = folder / "channels/stable.tar.gz"
    os.utime(copy, (4_000_000_000, 4_000_000_000))
    released(folder, tiny(2))

    assert copy.stat().st_mtime == 4_000_000_001


# Nothing by half


def test_two_who_publish_at_once_both_do(folder: Path) -> None:
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

    index = index_of(folder)
    assert is_whole(folder)
    assert len(index.history) == 9 - len(failed)
    # Whoever came after a higher number was told so.
    assert all("is older than release" in str(error) for error in failed)
    assert {each.release for each in (index.current("stable"), index.current("canary")) if each} == {8, 9}


CHILD = """
import os, signal, sys
from pathlib import Path
from pdp.audit.file import MemoryAudit
from pdp.workbench.bundles.publish import publish

folder, bundle, most = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes(), int(sys.argv[3])
seen = 0

def watch(event, arguments):
    # Whatever touches the folder: open, mkdir, rename, chmod, utime, remove.
    global seen
    if event.split(".")[0] in {"open", "os"} and arguments and str(folder) in str(arguments[0]):
        seen += 1
        if seen == most:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
publish(folder, bundle, channel="stable", by="ann", why="x", audit=MemoryAudit(), keys=None)
print(seen)
"""


def test_a_publish_that_is_killed_anywhere_leaves_the_old_state_or_the_new(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(tiny(2, content=2))
    outcomes = []
    for moment in range(1, 200):
        base = tmp_path / f"r{moment}"
        released(base, tiny(1))
        command = [sys.executable, "-c", CHILD, str(base), str(tmp_path / "b"), str(moment)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        release = index_of(base).bundles[-1].release
        outcomes.append((done.returncode, release))
        assert is_whole(base)
        # And the next one finds its way, and leaves nothing lying about.
        released(base, tiny(2, content=2))
        released(base, tiny(3))
        assert is_whole(base)
        assert (base / "channels/stable.tar.gz").read_bytes() == tiny(3)
        assert not [name for name in files(base) if ".draft-" in name]
        if done.returncode == 0:
            break

    codes = [code for code, _ in outcomes]
    assert codes == [-signal.SIGKILL] * (len(codes) - 1) + [0]
    assert len(codes) > 12
    # The old state up to one moment, and the new one from there on.
    assert [release for _, release in outcomes] == sorted(release for _, release in outcomes)
    assert outcomes[0][1] == 1


LIMITED = """
import resource, sys
from pathlib import Path
from pdp.audit.file import MemoryAudit
from pdp.workbench.bundles.publish import publish
from pdp.errors import PdpError

folder, bundle, most = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes(), int(sys.argv[3])
audit = MemoryAudit()
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
try:
    publish(folder, bundle, channel="stable", by="ann", why="x", audit=audit, keys=None)
except PdpError as error:
    print(error)
    print([(one["type"], one["outcome"]) for one in audit.events])
"""


@pytest.mark.parametrize("most", [0, 1000, 9000])
def test_a_disk_without_room_leaves_the_old_state(folder: Path, tmp_path: Path, most: int) -> None:
    """A limit on file sizes, which the operating system enforces on a write just as it does a full disk."""
    released(folder, tiny(1), gate=gate(tiny(1), notes="x" * 20_000))
    before = files(folder)
    (tmp_path / "b").write_bytes(tiny(2, content="x" * 100))

    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(folder), str(tmp_path / "b"), str(most)],
        cwd=ROOT, capture_output=True, check=True, text=True,
    )  # fmt: skip

    assert done.stdout == (
        f"{folder}: cannot be changed: File too large; it is as it was before "
        f"(check the disk's space, and the permissions of the folder)\n"
        f"[('bundle.publish', 'unknown'), ('bundle.publish', 'failed')]\n"
    )
    left = files(folder)
    # A bundle that no index names may lie there, whole; nobody sees it.
    assert {name: left[name] for name in before} == before
    assert is_whole(folder)


def test_who_waits_too_long_is_told(folder: Path) -> None:
    released(folder, tiny(1))

    with changing(folder), pytest.raises(RepositoryError) as caught, changing(folder, patience=0.01):
        pass

    assert str(caught.value) == f"{folder}: somebody else has been changing it for 0.01 s (try again later)"


def test_a_lost_copy_for_opa_comes_back_with_the_next_change(folder: Path) -> None:
    released(folder, tiny(1))
    (folder / "channels/stable.tar.gz").unlink()

    released(folder, tiny(1))

    assert (folder / "channels/stable.tar.gz").read_bytes() == tiny(1)


def test_a_lost_bundle_does_not_keep_the_next_from_being_published(folder: Path) -> None:
    released(folder, tiny(1))
    for path in folder.glob("*/*.tar.gz"):
        path.unlink()

    released(folder, tiny(2))

    assert (folder / "channels/stable.tar.gz").read_bytes() == tiny(2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "cannot be used: No such file or directory"),
        (lambda folder: folder.parent.mkdir() or folder.write_text("x"), "cannot be used: Not a directory"),
        (lambda folder: folder.mkdir(parents=True) or (folder / "mine").write_text("x"), "not a bundle repository"),
    ],
    ids=["no folder above", "a file", "a folder of something else"],
)
def test_a_folder_that_is_no_repository(tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    folder = tmp_path / "above/repository"
    make(folder)

    with pytest.raises(UsageError) as caught:
        released(folder, tiny(1))

    assert caught.value.message == f"{folder}: {message}"


def changed(folder: Path, **replaced: Any) -> bytes:
    return canonical(json.loads((folder / "index.json").read_bytes()) | replaced)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda folder: b"", "value: not JSON: Expecting value: line 1 column 1 (char 0)"),
        (lambda folder: b"[]", "Input should be an object"),
        (lambda folder: changed(folder, format=2), "format 2, this program reads format 1"),
        *(
            (
                lambda folder, found=found: changed(folder, format=found),
                "no format that is known, this program reads format 1",
            )
            for found in (True, 1.5, "1", None)
        ),
        (lambda folder: b"{}", "no format that is known, this program reads format 1"),
        (lambda folder: changed(folder, more=1), "more: Extra inputs are not permitted"),
        (lambda folder: changed(folder, history=[]), "the channels are not as the history left them"),
        (lambda folder: changed(folder, bundles=[]), "the history names a release that is not there"),
        (
            lambda folder: changed(folder, channels={"nightly": "sha256:" + "0" * 64}),
            "channels.nightly.[key]: Input should be 'stable' or 'canary'",
        ),
    ],
)
def test_an_index_that_is_damaged_is_not_believed(folder: Path, content: Callable[[Path], bytes], message: str) -> None:
    released(folder, tiny(1))
    (folder / "index.json").write_bytes(content(folder))

    with pytest.raises(BundleError) as read:
        index_of(folder)
    with pytest.raises(BundleError) as published:
        released(folder, tiny(2))

    assert read.value.message == published.value.message == f"{folder}/index.json: {message}"


def test_a_thousand_releases(folder: Path) -> None:
    """Written as one index, as each is a change of its own; then read, listed and changed once more."""
    content = tiny(1)
    released(folder, content)
    first = index_of(folder).history[0]
    digests = [digest(content), *(digest(str(each).encode()) for each in range(2, 1001))]
    bundles = tuple(
        Published(release=each, revision=digest(b"r"), digest=digests[each - 1], size=1, key_id=None)
        for each in range(1, 1001)
    )
    history = tuple(
        first.model_copy(update={"sequence": each, "release": each, "digest": digests[each - 1], "why": "x" * 200})
        for each in range(1, 1001)
    )
    index = Index(channels={"stable": digests[-1]}, bundles=bundles, history=history)
    (folder / "index.json").write_bytes(index.to_bytes())

    change = released(folder, tiny(1001))

    assert (change.sequence, change.previous_release) == (1001, 1000)
    assert len(index_of(folder).bundles) == 1001
    shown = pdp("bundle", "list", folder).out.splitlines()
    assert (len(shown), shown[2]) == (1004, "next release: 1002")


# Over HTTP


@pytest.fixture
def published(folder: Path) -> Iterator[tuple[Any, HttpReader]]:
    released(folder, tiny(1))
    with serving(folder) as server:
        yield server, HttpReader(server.url, timeout=20)


def test_the_index_is_read_again_only_where_it_has_changed(folder: Path, published: tuple[Any, HttpReader]) -> None:
    server, reader = published

    first, again = reader.index(), reader.index()
    released(folder, tiny(2))
    last = reader.index()

    assert first is again
    assert server.asked == [("/index.json", 200), ("/index.json", 304), ("/index.json", 200)]
    assert [each.release for each in last.bundles] == [1, 2]
    assert reader.fetch(reader.current("stable")) == tiny(2)
    assert pdp("bundle", "list", server.url, "--json").json == json.loads(last.to_bytes()) | {"next_release": 3}


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("cut", "{url}/index.json: cut off after"),
        ("slow", "{url}/index.json: no whole answer within 0.5 s"),
        ("broken", "{url}/index.json: the server answers 500"),
        ("moved", "{url}/index.json: the server answers 302"),
        ("garbage", "{url}/index.json: value: not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("endless", "{url}/index.json: larger than 33554432 bytes"),
    ],
)
def test_a_server_that_fails_is_an_error_and_forgotten_afterwards(
    published: tuple[Any, HttpReader], fault: Fault, message: str
) -> None:
    server, reader = published
    server.fault = fault
    reader._timeout = 0.5 if fault == "slow" else 20

    with pytest.raises((EngineError, BundleError)) as caught:
        reader.index()

    assert caught.value.message.startswith(message.format(url=server.url))
    server.fault = None
    reader._timeout = 20
    assert reader.fetch(reader.current("stable")) == tiny(1)


@pytest.mark.parametrize("over_http", [False, True])
def test_an_index_that_stays_damaged_is_an_error_each_time(
    folder: Path, published: tuple[Any, HttpReader], over_http: bool
) -> None:
    """And never unchanged, as if the one before still held."""
    reader = published[1] if over_http else FolderReader(folder)
    good = reader.index()
    (folder / "index.json").write_bytes(b"{}x")

    for _ in range(2):
        with pytest.raises(BundleError):
            reader.index()
    (folder / "index.json").write_bytes(good.to_bytes())
    assert reader.index() == good


def test_a_server_that_is_away_is_an_error(published: tuple[Any, HttpReader]) -> None:
    server, reader = published
    server.kill()

    with pytest.raises(EngineError) as caught:
        reader.index()

    assert caught.value.message == f"{server.url}/index.json: cannot be had: Connection refused"


def test_a_file_that_is_not_the_pinned_one_is_not_handed_out(folder: Path, published: tuple[Any, HttpReader]) -> None:
    """A thousand releases' worth of bytes flipped, container and all: the digest of the whole file pins each."""
    _, reader = published
    current = reader.current("stable")
    path = folder / current.path
    good = path.read_bytes()
    for place in range(0, len(good), max(1, len(good) // 500)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(EngineError, match="not the file that the index names"):
            FolderReader(folder).fetch(current)
    with pytest.raises(EngineError, match="not the file that the index names"):
        reader.fetch(current)


NO_ADDRESS = "not the address of a repository (such as https://HOST/bundles)"
GIVEN_AWAY = "a repository's address holds a password (give it as a header: Authorization)"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        *(
            (url, f"{url}: {NO_ADDRESS}")
            for url in (
                "ftp://host/x", "https://", "file:///etc", "http://host/x?y", "http://host/x#y", "http://[bad",
                "https://..", "http://a..b/x", "http://host:99999", "http://host:x", "http://host:0",
                "http://host/a b", "http://host/\N{LATIN SMALL LETTER A WITH DIAERESIS}", f"http://{'a' * 64}.example",
            )
        ),
        ("http://host/a\nb\x1b[31m", f"http://host/a?b?[31m: {NO_ADDRESS}"),
        ("ht\ntp://host", f"ht?tp://host: {NO_ADDRESS}"),
        ("ftp://" + "x" * 1000, f"ftp://{'x' * 194}: {NO_ADDRESS}"),
        ("http://u:p@host/", GIVEN_AWAY),
        ("http://u:p@host/?x", GIVEN_AWAY),
        ("http://:p@host/", GIVEN_AWAY),
        ("http://u:p@[bad", GIVEN_AWAY),
    ],
)  # fmt: skip
def test_addresses_that_are_no_repository(url: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_repository(url)
    assert str(caught.value) == message


def test_an_address_that_cannot_be_read_is_bad_usage_on_the_command_line() -> None:
    for url in ("http://[bad", "https://.."):
        ended = pdp("bundle", "list", url)
        assert (ended.code, ended.out, ended.err) == (
            2, "", f"error: {url}: not the address of a repository\n    hint: such as https://HOST/bundles\n",
        )  # fmt: skip


def test_a_header_that_cannot_be_sent_is_shown_nowhere(published: tuple[Any, HttpReader]) -> None:
    url = published[0].url
    reader = HttpReader(url, headers={"Authorization": "Bearer secret\n"})
    with pytest.raises(UsageError) as caught:
        reader.index()

    assert str(caught.value) == (
        f"{url}/index.json: cannot be asked for (check the address, the headers and the environment's proxy)"
    )
    assert "secret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("timeout", ["5", None, True, 0, float("nan")])
def test_times_that_are_none(timeout: Any) -> None:
    with pytest.raises(UsageError) as caught:
        HttpReader("http://host", timeout=timeout)
    assert str(caught.value) == f"timeout: {timeout!r} is not a number of seconds (above 0, at most 3600)"


# The command line


def test_a_release_travels_on_the_command_line(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PDP_SIGNING_KEY", "PDP_VERIFICATION_KEYS"):
        monkeypatch.delenv(name, raising=False)
    private = key_file(tmp_path)
    public = private.with_name("one.pub")
    for release in (1, 2):
        (tmp_path / f"{release}").write_bytes(tiny(release, signed="one", content=release))
    results = gate(tiny(2, content=2))
    (tmp_path / "gate.json").write_text(json.dumps(results))
    who = ["--by", "ann", "--channel", "stable"]

    first = pdp("bundle", "publish", tmp_path / "1", folder, "--why", "first", "--key", public, *who)
    second = pdp(
        "bundle", "publish", tmp_path / "2", folder, "--why", "second", "--key", public, *who,
        "--gate", tmp_path / "gate.json", "--json",
    )  # fmt: skip
    back = pdp("bundle", "rollback", folder, "--why", "bad", "--key", private, *who)

    digests = [change.digest for change in index_of(folder).history]
    assert first == (0, f"{folder}: publish stable: release 1\n  file  {digests[0]}\n", "")
    assert (second.code, second.json) == (0, index_of(folder).history[1].model_dump())
    assert second.json["gate"] == results
    assert back == (
        0,
        f"{folder}: rollback stable: release 3 with the content of release 1, was 2\n  file  {digests[2]}\n",
        "",
    )
    listed = pdp("bundle", "list", folder).out.splitlines()
    revision = index_of(folder).bundles[0].revision
    assert listed[:3] == [f"stable: release 3  {revision}", "canary: nothing", "next release: 4"]
    assert [line[:7] + line[27:] for line in listed[3:]] == [
        "    3    rollback stable: release 3 with the content of release 1, was 2  by ann: bad",
        "    2    publish stable: release 2, was 1  by ann: second",
        "    1    publish stable: release 1  by ann: first",
    ]
    stream = (tmp_path / "repository.audit.jsonl").read_bytes().splitlines()
    assert verify_chain(stream) == 6


def test_what_the_command_line_refuses(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PDP_SIGNING_KEY", "PDP_VERIFICATION_KEYS"):
        monkeypatch.delenv(name, raising=False)
    public = key_file(tmp_path).with_name("one.pub")
    (tmp_path / "b").write_bytes(tiny(1))
    (tmp_path / "gate").write_text("[]")
    why = ["--why", "x"]

    assert [
        pdp("bundle", *arguments)
        for arguments in (
            ["publish", tmp_path / "b", folder, *why],
            ["publish", tmp_path / "b", folder, *why, "--key", public],
            ["publish", tmp_path / "b", folder, *why, "--key", public, "--unsigned"],
            ["publish", tmp_path / "b", folder, *why, "--unsigned", "--gate", tmp_path / "gate"],
            ["publish", tmp_path / "b", tmp_path / "none/r", *why, "--unsigned"],
            ["rollback", folder, *why],
            ["list", folder],
        )
    ] == [
        (2, "", f"error: {message}\n    hint: {hint}\n")
        for message, hint in (
            (
                "no public key to verify with",
                "name one with --key, or give it in the variable PDP_VERIFICATION_KEYS",
            ),
            (
                f"{tmp_path}/b: not signed",
                "sign it with `pdp bundle sign`, and verify it with the public half of that key",
            ),
            ("--unsigned and --key exclude each other", "leave one of them out"),
            (f"{tmp_path}/gate: gate results are an object", "such as pdp release check writes"),
            (
                f"audit file {tmp_path}/none/r.audit.jsonl cannot be opened: No such file or directory",
                "name another file with --audit",
            ),
            (f"{folder}: not a bundle repository", "it has no index.json; name one, or a new or empty folder"),
            (
                f"{folder}/index.json: cannot be read: No such file or directory",
                "name a repository made by `pdp bundle publish`",
            ),
        )
    ]
