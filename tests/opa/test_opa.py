"""Finding OPA, and installing it from a local server."""

import errno
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pdp.engine.opa.versions import OLDEST_GOOD, version_fault
from pdp.errors import UsageError
from pdp.opa.install import OpaInstallError, install_opa, release_asset
from pdp.opa.program import OPA_VERSION, cached_opa, find_opa, opa_version
from tests.support import ROOT
from tests.support.hostile_opa import HostileOpa, Peer, http

PROGRAM = f"#!/bin/sh\necho Version: {OPA_VERSION}\n".encode()
OTHER = b"#!/bin/sh\necho Version: 1.21.0\n"
ASSET = release_asset()
PATH = f"/v{OPA_VERSION}/{ASSET}"


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an empty cache, a PATH without programs, and no proxy."""
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("PDP_OPA", raising=False)


def executable(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)
    return path


# Finding OPA


def test_opa_program_is_searched_in_the_variable_then_the_path_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_opa() is None
    cached = executable(cached_opa(), PROGRAM)
    assert find_opa() == cached
    on_path = executable(tmp_path / "bin/opa", PROGRAM)
    assert find_opa() == on_path
    named = executable(tmp_path / "my opa", PROGRAM)
    monkeypatch.setenv("PDP_OPA", str(named))
    assert find_opa() == named


def test_later_version_of_opa_is_accepted(tmp_path: Path) -> None:
    later = executable(tmp_path / "bin/opa", b"#!/bin/sh\necho Version: 1.23.1\n")
    assert find_opa() == later


@pytest.mark.parametrize(
    "content",
    [OTHER, b"#!/bin/sh\nexit 1\n", PROGRAM + b"exit 1\n", b"\0\1\2", b"", PROGRAM[:-1] + b"-dev\n"],
    ids=["another version", "fails", "fails late", "binary junk", "empty", "a version like it"],
)  # fmt: skip
def test_opa_program_of_an_unsupported_version_is_skipped(tmp_path: Path, content: bytes) -> None:
    executable(tmp_path / "bin/opa", content)
    assert find_opa() is None

    cached = executable(cached_opa(), PROGRAM)
    assert find_opa() == cached


@pytest.mark.parametrize(
    ("content", "what"),
    [
        pytest.param(OTHER, f"{version_fault('1.21.0')}", id="another version"),
        pytest.param(b"junk", "is not an OPA program that can be run", id="no program"),
        pytest.param(None, "is not an OPA program that can be run", id="no file"),
    ],
)
def test_unsupported_program_named_in_pdp_opa_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, what: str
) -> None:
    named = tmp_path / "opa"
    if content is not None:
        executable(named, content)
    executable(tmp_path / "bin/opa", PROGRAM)
    monkeypatch.setenv("PDP_OPA", str(named))

    with pytest.raises(UsageError) as caught:
        find_opa()

    assert str(caught.value) == f"PDP_OPA names {named}, which {what} (set it to OPA 1.22.4, or unset PDP_OPA)"


@pytest.mark.opa
def test_real_opa_reports_its_version(opa: Path) -> None:
    assert opa_version(opa) == "1.22.4"


def test_all_files_of_the_repository_name_the_same_opa_version() -> None:
    """ADRs and the change log may name old versions. Ranges such as "1.21.0 to 1.22.0" may name faulty versions."""
    named = re.compile(r"(?:OPA|Open Policy Agent|openpolicyagent/opa:|opa@v) ?(\d+\.\d+\.\d+)\b(?! to )( or later)?")
    folders = ("benchmarks", "deploy", "docs", "examples", "pdp", "policies", "scripts", "tests")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.is_file()]
    found = {
        (str(file.relative_to(ROOT)), version, OLDEST_GOOD if or_later else OPA_VERSION)
        for file in (*files, *ROOT.glob("*.md"), *ROOT.glob("*.yml"))
        if file.suffix not in {".gz", ".pyc"} and file.name != "CHANGELOG.md" and "adr" not in file.parts
        for version, or_later in named.findall(file.read_text("utf-8", errors="replace"))
    }

    assert {"docker-compose.yml", "SECURITY.md"} <= {file for file, _, _ in found}
    assert [each for each in found if each[1] != each[2]] == []
    assert (version_fault(OPA_VERSION), version_fault(OLDEST_GOOD)) == (None, None)


# Installing the official release


def checksum(program: bytes = PROGRAM, name: str = f"  {ASSET}") -> bytes:
    return f"{hashlib.sha256(program).hexdigest()}{name}\n".encode()


def publishing(files: dict[str, bytes]) -> Callable[[Peer], None]:
    """Return the behaviour of a server that sends `files` (404 for other paths) and then closes the connection."""

    def behave(peer: Peer) -> None:
        if peer.request():
            asked = peer.last_request.split()[1].decode()
            peer.send(files.get(asked, http(b"not here", status=b"404 Not Found")))

    return behave


def release(program: bytes = PROGRAM, published: bytes | None = None) -> dict[str, bytes]:
    return {PATH: http(program), f"{PATH}.sha256": http(checksum(program) if published is None else published)}


@pytest.mark.parametrize("name", [f"  {ASSET}", f" *{ASSET}", ""])
def test_official_release_is_installed(tmp_path: Path, name: str) -> None:
    lines: list[str] = []
    with HostileOpa(publishing(release(published=checksum(name=name)))) as server:
        program = install_opa(lines.append, base_url=server.url)

    assert program == cached_opa() == find_opa()
    assert program.read_bytes() == PROGRAM
    assert [one.name for one in program.parent.iterdir()] == [program.name]
    assert lines == [f"downloading {server.url}{PATH}", f"OPA 1.22.4 is installed: {program}"]
    assert program.is_relative_to(tmp_path / "home")


def test_redirect_of_the_download_is_followed() -> None:
    files = release()
    moved = {f"/elsewhere{path}": response for path, response in files.items()}
    away = {path: http(b"", status=b"302 Found", headers=f"Location: /elsewhere{path}\r\n".encode()) for path in files}
    with HostileOpa(publishing(moved | away)) as server:
        program = install_opa(lambda _: None, base_url=server.url)

    assert program.read_bytes() == PROGRAM


def answered(response: bytes) -> Callable[[Peer], None]:
    return publishing(release() | {PATH: response})


def hang(peer: Peer) -> None:
    peer.request()
    peer.wait_until_closed()


WRONG = checksum(OTHER)


@pytest.mark.parametrize(
    ("behave", "message"),
    [
        pytest.param(publishing(release(published=WRONG)),
            f"{PATH}: has the checksum {checksum().decode()[:64]}, expected {WRONG.decode()[:64]}",
            id="wrong checksum"),
        pytest.param(publishing(release(published=b"<html> ...")),
            f"{PATH}: has the checksum {checksum().decode()[:64]}, expected <html>", id="no checksum"),
        pytest.param(publishing(release(published=b"")),
            f"{PATH}: has the checksum {checksum().decode()[:64]}, expected nothing", id="empty checksum"),
        pytest.param(publishing({}), f"{PATH}.sha256: download failed: the server answered 404", id="no such release"),
        pytest.param(answered(http(b"", status=b"503 X")), f"{PATH}: download failed: the server answered 503",
            id="not available"),
        pytest.param(answered(http(PROGRAM)[:-5]), f"{PATH}: download failed: ", id="truncated"),
        pytest.param(answered(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"),
            f"{PATH}: download failed: ", id="half a chunk"),
        pytest.param(answered(http(b"x" * 50_001)), f"{PATH}: download failed: larger than 50000 bytes",
            id="too large"),
        pytest.param(answered(b"junk\r\n\r\n"), f"{PATH}: download failed: ", id="not HTTP"),
        pytest.param(answered(b""), f"{PATH}: download failed: ", id="closed"),
        pytest.param(hang, f"{PATH}.sha256: download failed: timed out", id="hangs"),
    ],
)  # fmt: skip
def test_incomplete_download_of_a_release_is_rejected(
    behave: Callable[[Peer], None], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pdp.opa.install._LARGEST", 50_000)
    if behave is hang:
        monkeypatch.setattr("pdp.opa.install._PATIENCE", 0.2)
    with HostileOpa(behave) as server, pytest.raises(OpaInstallError) as caught:
        install_opa(lambda _: None, base_url=server.url)

    assert caught.value.message.startswith(f"OPA 1.22.4 could not be installed: {server.url}{message}")
    assert find_opa() is None


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\nX: ", http(b"x")[:-1]], ids=["head", "body"])
def test_slow_download_of_opa_times_out(begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdp.opa.install._LONGEST", 0.3)

    def drip(peer: Peer) -> None:
        peer.request()
        peer.send(begin.replace(b"Content-Length: 1", b"Content-Length: 9999"))
        peer.drip(b"x" * 9999)

    with HostileOpa(drip) as server, pytest.raises(OpaInstallError) as caught:
        install_opa(lambda _: None, base_url=server.url)

    assert caught.value.message == (
        f"OPA 1.22.4 could not be installed: {server.url}{PATH}: download failed: not done within 0.3 s"
    )


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("http://example.com/opa", "http://example.com/opa: must be an https URL without a user"),
        ("ftp://example.com/opa", "ftp://example.com/opa: must be an https URL without a user"),
        ("file:///etc/passwd", "file://127.0.0.1/etc/passwd: must be an https URL without a user"),
    ],
)
def test_download_from_a_url_without_https_is_rejected_even_after_a_redirect(place: str, message: str) -> None:
    away = http(b"", status=b"302 Found", headers=f"Location: {place}\r\n".encode())
    with HostileOpa(publishing({f"{PATH}.sha256": away})) as server, pytest.raises(OpaInstallError) as caught:
        install_opa(lambda _: None, base_url=server.url)

    assert caught.value.message == f"OPA 1.22.4 could not be installed: {message}"
    with pytest.raises(OpaInstallError, match="must be an https URL"):
        install_opa(lambda _: None, base_url=place)


@pytest.mark.parametrize(("program", "what"), [(OTHER, "is version 1.21.0"), (b"junk", "does not run on this machine")])
def test_downloaded_program_of_another_version_is_not_installed(program: bytes, what: str) -> None:
    with HostileOpa(publishing(release(program))) as server, pytest.raises(OpaInstallError) as caught:
        install_opa(lambda _: None, base_url=server.url)

    assert str(caught.value) == (
        f"OPA 1.22.4 could not be installed: the downloaded program {what} "
        "(get OPA 1.22.4 yourself and put it on PATH, or set PDP_OPA to it)"
    )
    assert list(cached_opa().parent.iterdir()) == []


def test_installation_reports_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where the folder should be")
    with HostileOpa(publishing(release())) as server, pytest.raises(OpaInstallError) as caught:
        install_opa(lambda _: None, base_url=server.url)

    assert f"OPA 1.22.4 could not be installed: [Errno {errno.ENOTDIR}] Not a directory: '{tmp_path}/home" in str(
        caught.value
    )


def test_installation_replaces_a_damaged_opa_program() -> None:
    damaged = executable(cached_opa(), b"damaged")
    with HostileOpa(publishing(release())) as server, damaged.open("rb") as in_use:
        install_opa(lambda _: None, base_url=server.url)

        # The old file may be a running program, so the old file is replaced and not overwritten.
        assert in_use.read() == b"damaged"
    assert find_opa() == cached_opa()


INSTALLING = """
import sys
from pdp.opa import install
install._PATIENCE = install._LONGEST = 600
install.install_opa(lambda line: None, base_url=sys.argv[1])
"""


@pytest.mark.process
def test_concurrent_installations_succeed() -> None:
    large = PROGRAM + b"exit 0\n" + os.urandom(3_000_000).hex().encode()
    with HostileOpa(publishing(release(large))) as server:
        processes = [subprocess.Popen([sys.executable, "-c", INSTALLING, server.url]) for _ in range(3)]
        codes = [process.wait() for process in processes]

    assert codes == [0] * 3
    assert cached_opa().read_bytes() == large
    assert list(cached_opa().parent.iterdir()) == [cached_opa()]
