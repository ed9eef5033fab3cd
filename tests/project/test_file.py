"""The project file: what it states, where it is looked for, and when it is trusted."""

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
"""


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
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
    )


@pytest.mark.parametrize(
    ("store", "opened"),
    [
        ("sqlite:////var/agent.db", "sqlite:////var/agent.db"),
        ("postgresql://app@db/agent", "postgresql://app@db/agent"),
    ],
)
def test_a_store_elsewhere_stays_as_it_is(tmp_path: Path, store: str, opened: str) -> None:
    assert read_project(written(tmp_path / "pdp.yaml", f"store: {store}")).store == opened


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("manifst: m.yaml", ["1:1: unknown key `manifst` did you mean `manifest`?"]),
        ("data: d.yaml", ["1:7: `data` must be a list, not `d.yaml`"]),
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
def test_faults_have_their_places(tmp_path: Path, text: str, faults: list[str]) -> None:
    with pytest.raises(FileFaultsError) as caught:
        read_project(written(tmp_path / "pdp.yaml", text))
    assert [
        " ".join(part for part in (f"{fault.place.line}:{fault.place.column}: {fault.message}", fault.hint) if part)
        for fault in caught.value.faults
    ] == faults


# Where it is looked for


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a folder in it, below a home folder, each beside a project file of its own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root = tmp_path / "home" / "desk"
    (root / "src" / "agent").mkdir(parents=True)
    (root / ".git").mkdir()
    return root


def test_the_nearest_one_is_taken_as_seen_from_the_folder(repository: Path) -> None:
    written(repository / "pdp.yaml", "")

    found = [find_project(folder) for folder in (repository, repository / "src", repository / "src/agent")]

    assert found == [Path("pdp.yaml"), Path("../pdp.yaml"), Path("../../pdp.yaml")]


def test_the_search_ends_with_the_repository(repository: Path) -> None:
    written(repository.parent / "pdp.yaml", "")

    assert find_project(repository / "src") is None


def test_the_search_ends_with_the_home_folder(repository: Path) -> None:
    (repository / ".git").rmdir()
    written(repository.parent.parent / "pdp.yaml", "")
    assert find_project(repository / "src") is None

    written(repository.parent / "pdp.yaml", "")
    assert find_project(repository / "src") == Path("../../pdp.yaml")


def test_a_user_without_a_home_folder_has_projects(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: object) -> None:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    written(repository / "pdp.yaml", "")

    assert find_project(repository / "src") == Path("../pdp.yaml")


# When it is trusted


def linked(file: Path) -> None:
    file.rename(file.with_name("elsewhere.yaml"))
    file.symlink_to("elsewhere.yaml")


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (linked, "it is not a regular file"),
        (lambda file: file.chmod(0o646), "others can write to {file}"),
        (lambda file: file.parent.chmod(0o777), "others can write to {folder}"),
        (lambda file: file.parent.chmod(0o1777), "others can write to {folder}"),
    ],
    ids=["a link", "a file for all", "a folder for all", "a sticky folder"],
)
def test_one_that_others_may_have_written_is_refused(
    repository: Path, change: Callable[[Path], None], refusal: str
) -> None:
    file = written(repository / "pdp.yaml", "manifest: m.yaml")
    change(file)

    with pytest.raises(UsageError) as caught:
        find_project(repository / "src")

    assert caught.value.message == f"{file}: not used: {refusal.format(file=file, folder=repository)}"


def test_one_of_another_user_is_refused(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(repository / "pdp.yaml", "")
    monkeypatch.setattr(os, "geteuid", lambda: repository.stat().st_uid + 1)

    with pytest.raises(UsageError, match="it belongs to another user"):
        find_project(repository)


@pytest.mark.parametrize(
    ("name", "members", "trusted"),
    [("ann", [], True), ("ann", ["ann"], True), ("ann", ["eve"], False), ("staff", [], False)],
)
def test_a_group_of_the_users_own_may_write(
    repository: Path, monkeypatch: pytest.MonkeyPatch, name: str, members: list[str], *, trusted: bool
) -> None:
    """Many systems give each user such a group, and a umask that lets it write."""
    file = written(repository / "pdp.yaml", "")
    file.chmod(0o664)
    group = file.stat().st_gid
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="ann", pw_gid=group))
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name=name, gr_mem=members))

    if trusted:
        assert find_project(repository) == Path("pdp.yaml")
    else:
        with pytest.raises(UsageError, match="others can write to"):
            find_project(repository)
