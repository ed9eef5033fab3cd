"""How the project file is parsed and found in the folders above. The file is trusted only with safe permissions."""

import grp
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from pdp.errors import FileFaultsError, UsageError
from pdp.project.file import Project, find_project, read_project
from tests.support.command_line import written

WHOLE = """\
manifest: manifest.yaml
governance: ../shared/governance.yaml
data: [data.yaml, /srv/directory.json]
policies: [policies]
scenarios: [.]
bundle: build/bundle.tar.gz
session: session.yaml
store: sqlite:///agent.db
engine: sidecar
opa_url: http://127.0.0.1:8181
public_url: https://pdp.example
"""


def test_paths_in_project_file_are_relative_to_its_folder(tmp_path: Path) -> None:
    assert read_project(written(tmp_path / "pdp.yaml", WHOLE)) == Project(
        manifest=tmp_path / "manifest.yaml",
        governance=tmp_path / "../shared/governance.yaml",
        data=(tmp_path / "data.yaml", Path("/srv/directory.json")),
        policies=(tmp_path / "policies",),
        scenarios=(tmp_path,),
        bundle=tmp_path / "build/bundle.tar.gz",
        session=tmp_path / "session.yaml",
        store=f"sqlite:///{tmp_path}/agent.db",
        engine="sidecar",
        opa_url="http://127.0.0.1:8181",
        public_url="https://pdp.example",
    )


@pytest.mark.parametrize(
    ("store", "opened"),
    [
        ("sqlite:////var/agent.db", "sqlite:////var/agent.db"),
        ("postgresql://app@db/agent", "postgresql://app@db/agent"),
    ],
)
def test_project_file_keeps_the_url_of_an_external_store(tmp_path: Path, store: str, opened: str) -> None:
    assert read_project(written(tmp_path / "pdp.yaml", f"store: {store}")).store == opened


@pytest.mark.parametrize(
    ("url", "accepted"),
    [
        ("https://pdp.example:8443/desk/", True),
        ("http://127.0.0.1:8181", True),
        ("http://[::1]:8181", True),
        ("http://pdp.example", False),
        ("http://localhost.example", False),
        ("https://ann:secret@pdp.example", False),
        ("https://pdp.example/?id=", False),
        ("https://pdp.example/#x", False),
        ("https://pdp.exampłe", False),
        ("javascript://pdp.example", False),
        ("https://", False),
    ],
)
def test_public_url_is_a_secure_address_to_which_a_path_can_be_added(tmp_path: Path, url: str, accepted: bool) -> None:
    file = written(tmp_path / "pdp.yaml", f"public_url: '{url}'\n")
    if accepted:
        assert read_project(file).public_url == url
    else:
        with pytest.raises(FileFaultsError, match=r"1:13: `public_url` must be https://HOST"):
            read_project(file)


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("manifst: m.yaml", ["1:1: unknown key `manifst` did you mean `manifest`?"]),
        ("data: d.yaml", ["1:7: `data` must be a list, not `d.yaml` write it in square brackets"]),
        (
            "manifest: 7\nengine: wasm\nstore: 1",
            [
                "1:11: `manifest` must be the path of a file or folder, not `7`",
                "2:9: `engine` must be one of embedded, sidecar, not `wasm`",
                "3:8: `store` must be a string, not `1` write it in quotes",
            ],
        ),
        ("- manifest", ["1:1: the file must be a mapping, not a list"]),
    ],
)
def test_faults_in_project_file_have_locations(tmp_path: Path, text: str, faults: list[str]) -> None:
    with pytest.raises(FileFaultsError) as caught:
        read_project(written(tmp_path / "pdp.yaml", text))
    assert [
        " ".join(part for part in (f"{fault.place.line}:{fault.place.column}: {fault.message}", fault.hint) if part)
        for fault in caught.value.faults
    ] == faults


# Finding the file


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a home folder that contains a repository with a subfolder. Each of these folders has a project file."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root = tmp_path / "home" / "desk"
    (root / "src" / "agent").mkdir(parents=True)
    (root / ".git").mkdir()
    return root


def test_nearest_project_file_in_the_parent_folders_is_found(repository: Path) -> None:
    written(repository / "pdp.yaml", "")

    found = [find_project(folder) for folder in (repository, repository / "src", repository / "src/agent")]

    assert found == [Path("pdp.yaml"), Path("../pdp.yaml"), Path("../../pdp.yaml")]


def test_project_file_above_the_repository_is_not_found(repository: Path) -> None:
    written(repository.parent / "pdp.yaml", "")

    assert find_project(repository / "src") is None


def test_project_file_above_the_home_folder_is_not_found(repository: Path) -> None:
    (repository / ".git").rmdir()
    written(repository.parent.parent / "pdp.yaml", "")
    assert find_project(repository / "src") is None

    written(repository.parent / "pdp.yaml", "")
    assert find_project(repository / "src") == Path("../../pdp.yaml")


def test_project_file_is_found_without_a_home_folder(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: object) -> None:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    written(repository / "pdp.yaml", "")

    assert find_project(repository / "src") == Path("../pdp.yaml")


# Trusting the file


def linked(file: Path) -> None:
    file.rename(file.with_name("elsewhere.yaml"))
    file.symlink_to("elsewhere.yaml")


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (linked, "the file is not a regular file"),
        (lambda file: file.chmod(0o646), "other users can write to {file}"),
        (lambda file: file.parent.chmod(0o777), "other users can write to {folder}"),
        (lambda file: file.parent.chmod(0o1777), "other users can write to {folder}"),
    ],
    ids=["a link", "a file for all", "a folder for all", "a sticky folder"],
)
def test_project_file_writable_by_others_is_rejected(
    repository: Path, change: Callable[[Path], None], refusal: str
) -> None:
    file = written(repository / "pdp.yaml", "manifest: m.yaml")
    change(file)

    with pytest.raises(UsageError) as caught:
        find_project(repository / "src")

    assert caught.value.message == f"{file}: not trusted: {refusal.format(file=file, folder=repository)}"


def test_project_file_of_another_user_is_rejected(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(repository / "pdp.yaml", "")
    monkeypatch.setattr(os, "geteuid", lambda: repository.stat().st_uid + 1)

    with pytest.raises(UsageError, match="the file belongs to another user"):
        find_project(repository)


@pytest.mark.parametrize(
    ("name", "members", "trusted"),
    [("ann", [], True), ("ann", ["ann"], True), ("ann", ["eve"], False), ("staff", [], False)],
)
def test_project_file_may_be_writable_by_a_private_group(
    repository: Path, monkeypatch: pytest.MonkeyPatch, name: str, members: list[str], *, trusted: bool
) -> None:
    """On many systems, each user has a private group. Write access of this group is no risk."""
    file = written(repository / "pdp.yaml", "")
    file.chmod(0o664)
    group = file.stat().st_gid
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="ann", pw_gid=group))
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name=name, gr_mem=members))

    if trusted:
        assert find_project(repository) == Path("pdp.yaml")
    else:
        with pytest.raises(UsageError, match="other users can write to"):
            find_project(repository)
