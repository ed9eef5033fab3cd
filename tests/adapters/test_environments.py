"""Environments of adapters, and which of them a run of CI tests."""

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scripts.adapter_environments import environment, files_of, main
from scripts.rotation import chosen

pytestmark = pytest.mark.process

FILES = {name: files_of(name) for name in ("a", "b", "c", "d", "e")}
DAY = 86400


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    return tmp_path


def git(root: Path, *words: str, at: int = 0) -> None:
    """Run git, at a second of 2026."""
    when = f"{1767225600 + at} +0000"
    person = {f"GIT_{who}_{what}": "one" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environ = {**os.environ, **person, "GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when}
    subprocess.run(["git", *words], cwd=root, env=environ, check=True)


def commit(root: Path, path: str, at: int = 0) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(f"{path} at {at}\n")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", path, at=at)


def test_what_the_day_before_head_touches_is_chosen(repository: Path) -> None:
    for at, path in enumerate(["tests/adapters/a/one.py", "pdp/adapters/b.py"]):
        commit(repository, path, at)
    for at, path in enumerate(
        ["examples/frameworks/c_payments.py", "tests/adapters/d/deep/one.py", "pdp/adapters/ee.py"]
    ):
        commit(repository, path, DAY + 2 + at)

    assert chosen(repository, FILES, 0) == ["c", "d"]


def test_the_guard_is_part_of_each(repository: Path) -> None:
    commit(repository, "pdp/adapters/guard/outcome.py")

    assert chosen(repository, FILES, 2) == list(FILES)


def test_others_take_turns_and_come_on_top_of_what_was_changed(repository: Path) -> None:
    commit(repository, "pdp/adapters/a.py")
    turns = []
    for at in range(5):
        commit(repository, f"{at}.txt", at)
        turns.append(chosen(repository, FILES, 2))

    assert turns == [["a", "b", "e"], ["a", "b", "c"], ["a", "d", "e"], ["a", "b", "c"], ["a", "c", "d"]]
    assert chosen(repository, FILES, 2) == turns[-1]


def test_without_git_it_is_the_first_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(tmp_path, FILES, 2) == ["a", "b"]
    monkeypatch.setenv("PATH", "")
    assert chosen(tmp_path, FILES, 2) == ["a", "b"]


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    file = tmp_path / "locks/one.txt"
    file.parent.mkdir()
    file.touch()
    return file


def test_two_that_make_one_environment_get_the_same(lock: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"

    with ThreadPoolExecutor(2) as threads:
        pythons = list(threads.map(lambda _: environment("one", lock, (base,)), range(2)))

    assert pythons[0] == pythons[1]
    assert subprocess.run([pythons[0], "-c", ""], check=False).returncode == 0
    assert list(base.iterdir()) == [pythons[0].parents[1]]


def test_what_was_not_used_for_a_week_goes_when_another_is_made(lock: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    for name, days in {"one-idle": 8, "one-used": 6, "two-idle": 8, "one-0123.half": 8}.items():
        (base / name).mkdir(parents=True)
        os.utime(base / name, (0, time.time() - days * DAY))

    made = environment("one", lock, (base,)).parents[1].name

    assert {each.name for each in base.iterdir()} == {made, "one-used", "two-idle"}


def test_an_environment_whose_python_is_gone_is_made_anew(lock: Path, tmp_path: Path) -> None:
    python = environment("one", lock, (tmp_path,))
    python.unlink()

    assert environment("one", lock, (tmp_path,)) == python
    assert python.exists()


def test_a_cache_that_cannot_be_written_is_read_and_another_is_written(lock: Path, tmp_path: Path) -> None:
    cache, own = tmp_path / "cache", tmp_path / "own"
    cache.touch()
    written = environment("one", lock, (cache, own))
    cache.unlink()
    own.rename(cache)

    assert written.is_relative_to(own)
    assert environment("one", lock, (cache, own)).is_relative_to(cache)


def test_what_cannot_be_installed_leaves_nothing(lock: Path, tmp_path: Path) -> None:
    lock.write_text("no requirement\n")

    with pytest.raises(subprocess.CalledProcessError):
        environment("one", lock, (tmp_path / "base",))

    assert list((tmp_path / "base").iterdir()) == []


@pytest.mark.parametrize("option", ["--changed", "--newest", "--table", "--lock", "--python"])
def test_where_nothing_was_changed_nothing_is_done(
    option: str, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(repository, "README.md")
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))

    assert (main(["--changed", option]), capsys.readouterr().out) == (0, "")


def test_a_name_that_has_no_lock_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["langchain", "langchian"])

    said = (
        "scripts/adapters: error: no adapter with an environment of its own: langchian; there are agent_framework, crew"
    )
    assert said in capsys.readouterr().err
